"""AU through a mount and from a seal beside the plain folder, on one machine, data on disk, not in memory:
`headrace bench training`.

All have the same files on the same disk: those of the mount and the seal are cached before. Turns alternate, and the
page cache is dropped before each epoch. Sizes and times are such that the plain folder passes with one accelerator on
two cores; unless `--accelerators` says how many, there are as many as it passes with. Writes
`bench/results/training-<date>.json` and `.md`. Needs root. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import NotRunError, Workplace, run, tool, unmount
from nodebench.report import Goal
from nodebench.results import Results

PLAIN, MOUNT, SEAL = "plain", "headrace", "sealed"
RATIO = 0.995
EPOCHS = 3
"""Of a turn."""
ACCELERATORS_MAX = 4


@dataclass(frozen=True)
class Case:
    """sizes, times: factors. steps: of an epoch, some five seconds of it."""

    sizes: float
    times: float
    steps: int


CASES: dict[str, Case] = {
    "unet3d": Case(0.05, 0.25, 32),
    "resnet50": Case(1.0, 0.5, 24),
    "cosmoflow": Case(0.1, 1.0, 900),
    "imagefolder": Case(1.0, 1.0, 12),
    "tokens": Case(1.0, 1.0, 100),
}


class Bench:
    def __init__(self, place: Workplace, results: Results, given: argparse.Namespace) -> None:
        self.place, self.results, self.given = place, results, given

    def train(self, name: str, folder: str, accelerators: int, *more: str) -> dict[str, Any]:
        """Return what a run said of itself. more: its last options count."""
        case = CASES[name]
        words = [tool("headrace"), "bench", "training", name, folder, "--json"]
        words += ["--scale-sizes", f"{case.sizes:g}", "--scale-times", f"{case.times:g}"]
        words += ["--steps", str(max(3, round(case.steps * self.given.scale)))]
        words += ["--version", "v2.0", "--accelerators", str(accelerators), "--epochs", str(EPOCHS), *more]
        result: dict[str, Any] = json.loads(run(words, timeout_s=600))
        if result["failed"]:
            raise NotRunError(f"{result['failed']} reads failed")
        return result

    def make(self, name: str) -> str:
        """Make the data set, in a folder of its own, for as many accelerators as there may be."""
        folder, many = self.place.folder(name), self.given.accelerators or ACCELERATORS_MAX
        self.train(name, folder, many, "--epochs", "1", "--keep-cache", "--scale-times", "0.001")
        return folder

    def accelerators(self, name: str, folder: str) -> int:
        """Return the number with which the plain folder passes."""
        if self.given.accelerators:
            return int(self.given.accelerators)
        for many in range(2, ACCELERATORS_MAX + 1):
            epochs = self.train(name, folder, many, "--no-generate")["epochs"]
            if 100 * statistics.median(epoch["au"] for epoch in epochs) < needed(name):
                return many - 1
        return ACCELERATORS_MAX

    def case(self, name: str) -> None:
        folder = self.make(name)
        many = self.accelerators(name, folder)
        self.results.note(f"{name}: {many} simulated accelerators")
        mount = HeadraceMount(self.place, folder, io="auto")
        sealed = os.path.join(self.place.folder(f"{name}-seal"), "mount")
        mount.start()
        try:
            mount.load()
            run([tool("headrace"), "seal", mount.root, "--as", "bench@1", "--at", sealed], timeout_s=600)
            for turn in range(self.given.repeat):
                places = [(PLAIN, folder), (MOUNT, mount.root), (SEAL, sealed)]
                for who, where in places if turn % 2 == 0 else reversed(places):
                    self.take(name, who, self.train(name, where, many, "--no-generate"))
        finally:
            unmount(sealed)
            mount.stop()

    def take(self, name: str, who: str, result: dict[str, Any]) -> None:
        for epoch in result["epochs"]:
            self.results.add(f"{name}: AU", who, 100 * epoch["au"], unit="%")
            self.results.add(f"{name}: samples", who, epoch["samples_s"], unit="a second")
            self.results.add(f"{name}: first batch", who, epoch["first_batch_s"], unit="s")
            self.results.add(f"{name}: MiB", who, epoch["bytes_s"] / 2**20, unit="a second")
        for note in result["notes"]:
            self.results.note(f"{name}, {who}: {note}")


def goals(results: Results) -> list[Goal]:
    listed = []
    for name in CASES:
        measure = f"{name}: AU"
        for contender in (MOUNT, SEAL):
            ratio = results.ratio(measure, contender, PLAIN)
            listed.append(Goal(f"{measure}, {contender}, of plain", RATIO, True, ratio))
        listed.append(Goal(f"{name}: plain passes, AU %", needed(name), True, results.median(measure, PLAIN)))
    return listed


def needed(name: str) -> float:
    return 70.0 if name == "cosmoflow" else 90.0


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="the steps of an epoch", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=30)
    parser.add_argument(
        "--accelerators", type=int, default=0, help="instead of as many as the plain folder passes with"
    )
    return program.parse(parser, CASES, root_for="it mounts, and drops the page cache")


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    bench = Bench(place, results, given)
    for name, case in CASES.items():
        results.note(f"{name}: sizes times {case.sizes:g}, times {case.times:g}, {case.steps} steps an epoch")
    results.note("an MLPerf Storage workload, scaled, is not an MLPerf Storage result")
    for name in program.in_time(given, CASES, results, end_at=end_at, contender="all"):
        sys.stderr.write(f"{name}\n")
        try:
            bench.case(name)
        except NotRunError as error:
            results.skip(name, "all", str(error))


def main() -> int:
    given, results = arguments(), Results()
    return program.run(
        "training",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=goals,
        digits=4,
    )


if __name__ == "__main__":
    sys.exit(main())
