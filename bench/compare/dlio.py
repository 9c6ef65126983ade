"""The real DLIO, which MLPerf Storage runs, beside `headrace bench training`: AU on the same files, in the same run.

DLIO makes the data set. Both then read it from a plain folder and through a mount that has it cached; turns alternate,
and the page cache is dropped before each epoch. Writes `bench/results/dlio-<date>.json` and `.md`. Needs root, and DLIO
in a virtual environment of its own: without `--dlio` it says how to make one. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from dliobench.dlio import Dlio, Epoch, install
from nodebench import program
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import NotRunError, Workplace, run, tool
from nodebench.report import Goal
from nodebench.results import Results

from headrace.bench import workloads

PLAIN, MOUNT = "plain folder", "headrace mount"
DLIO, OURS = "dlio", "headrace bench"
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src")
APART = 1.5
"""Points of AU."""
OF_STEPS = "AU of the steps"
"""AU without what follows an epoch's last step. DLIO of v3.0 ends its loader's workers there, and counts that; it is
much of these short epochs, and little of one of 500 steps. So this is what is compared."""
EPOCHS = 3
"""Of a turn."""


@dataclass(frozen=True)
class Case:
    """sizes, times: factors. steps: of an epoch. readers: 0 for the workload's."""

    sizes: float
    times: float
    steps: int
    readers: int = 0


CASES: dict[str, dict[str, Case]] = {
    "v2.0": {
        "unet3d": Case(0.05, 0.25, 24),
        "resnet50": Case(1.0, 0.5, 16),
        "cosmoflow": Case(0.1, 1.0, 800),
    },
    "v3.0": {"unet3d": Case(0.05, 0.5, 60, readers=4), "retinanet": Case(1.0, 1.0, 200)},
}
"""By version of MLPerf Storage. unet3d of v3.0 has 32 readers, more than two cores can start for each epoch."""


class Bench:
    def __init__(self, place: Workplace, results: Results, given: argparse.Namespace) -> None:
        self.place, self.results, self.given = place, results, given
        self.cases = CASES[given.version]
        self.dlio = Dlio(place, given.version, given.dlio, given.source)
        results.note(f"DLIO of MLPerf Storage {given.version}, or what --source has; {self.dlio.version}")

    def steps(self, name: str) -> int:
        return max(3, round(self.cases[name].steps * self.given.scale))

    def files(self, name: str) -> int:
        return workloads.workload(name, version=self.given.version).files(self.steps(name), 1)

    def case(self, name: str) -> None:
        folder = self.place.folder(name)
        self.dlio.make(name, folder, files=self.files(name), sizes=self.cases[name].sizes)
        self.ours(
            name, folder, "--epochs", "1", "--keep-cache", "--scale-times", "0.001"
        )  # notes what is there
        mount = HeadraceMount(self.place, folder, io="auto")
        mount.start()
        try:
            mount.load()
            for turn in range(self.given.repeat):
                places = [(PLAIN, folder), (MOUNT, mount.root)]
                for label, where in places if turn % 2 == 0 else reversed(places):
                    self.pair(name, label, where, first=DLIO if turn % 2 == 0 else OURS)
        finally:
            mount.stop()

    def pair(self, name: str, label: str, where: str, *, first: str) -> None:
        for who in (first, OURS if first == DLIO else DLIO):
            for epoch in self.epochs(name, where, who):
                self.results.add(f"{name}, {label}: AU", who, epoch.au, unit="%")
                self.results.add(f"{name}, {label}: {OF_STEPS}", who, epoch.au_of_steps, unit="%")
                self.results.add(f"{name}, {label}: compute a step", who, 1e3 * epoch.compute_s, unit="ms")

    def epochs(self, name: str, where: str, who: str) -> list[Epoch]:
        case = self.cases[name]
        if who == DLIO:
            return self.dlio.train(
                name,
                where,
                files=self.files(name),
                sizes=case.sizes,
                times=case.times,
                steps=self.steps(name),
                epochs=EPOCHS,
                readers=case.readers,
            )
        answer = self.ours(name, where, "--epochs", str(EPOCHS), "--no-generate")
        if answer["failed"]:
            raise NotRunError(f"{answer['failed']} reads failed")
        return [Epoch(100 * epoch["au"], 100 * epoch["au"], epoch["compute_s"]) for epoch in answer["epochs"]]

    def ours(self, name: str, where: str, *more: str) -> Any:
        """tfrecords by the same TensorFlow: in DLIO's virtual environment, with this checkout's code."""
        case, workload = self.cases[name], workloads.workload(name, version=self.given.version)
        by_tensorflow = workload.format == "tfrecord"
        words = [self.dlio.python, "-m", "headrace"] if by_tensorflow else [tool("headrace")]
        words += ["bench", "training", name, where, "--version", self.given.version, "--json"]
        words += ["--loader", "tensorflow" if by_tensorflow else "torch"]
        words += ["--scale-sizes", f"{case.sizes:g}", "--scale-times", f"{case.times:g}"]
        words += ["--steps", str(self.steps(name))]
        if case.readers:
            words += ["--readers", str(case.readers)]
        return json.loads(run([*words, *more], timeout_s=900, env={"PYTHONPATH": SOURCE}))


def goals(results: Results) -> list[Goal]:
    listed = []
    for name in dict.fromkeys(name for cases in CASES.values() for name in cases):
        for label in (PLAIN, MOUNT):
            measure = f"{name}, {label}: {OF_STEPS}"
            theirs, ours = results.median(measure, DLIO), results.median(measure, OURS)
            if theirs is not None and ours is not None:
                listed.append(Goal(f"{measure}, apart, points", APART, False, abs(theirs - ours)))
    return listed


def arguments() -> argparse.Namespace:
    named = {name: case for cases in CASES.values() for name, case in cases.items()}
    parser = program.parser_of(__doc__, named, scale_of="the steps of an epoch", folder_for=program.ON_A_DISK)
    parser.add_argument("--version", choices=CASES, default="v3.0", help="of MLPerf Storage")
    program.add_limit(parser, minutes=30)
    parser.add_argument("--dlio", default="", help="Python of the virtual environment that DLIO runs in")
    parser.add_argument("--source", default="", help="a checkout of DLIO, where it is not installed there")
    given = program.parse(parser, named, root_for="it mounts, and drops the page cache")
    if not given.dlio:
        parser.error(install(given.version))
    return given


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    bench = Bench(place, results, given)
    results.note("an MLPerf Storage workload, scaled, is not an MLPerf Storage result")
    for name in program.in_time(given, bench.cases, results, end_at=end_at, contender="all"):
        case = bench.cases[name]
        results.note(
            f"{name}: sizes times {case.sizes:g}, times {case.times:g}, {bench.steps(name)} steps an epoch"
        )
        sys.stderr.write(f"{name}\n")
        try:
            bench.case(name)
        except NotRunError as error:
            results.skip(name, "all", str(error))


def main() -> int:
    given, results = arguments(), Results()
    return program.run(
        "dlio",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=goals,
        digits=2,
    )


if __name__ == "__main__":
    sys.exit(main())
