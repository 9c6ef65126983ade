"""retinanet of MLPerf Storage v3.0 through a mount and from a seal, beside the plain directory, on one machine.

All have the same files on the same disk: the mount's and the seal's are cached before. `ratio`: AU, with the page cache
dropped before each epoch; turns alternate. `held`: as many B200 as reach AU 85 % with the files in the page cache, and
their demand on each core. `flat`: the same without compute, so that only loaders use the cores. Sizes and times are
those of v3.0. Writes `bench/results/retinanet-<date>.json` and `.md`. Needs root. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program
from nodebench.headrace_mount import HeadraceMount
from nodebench.machine import NotRunError, Workplace, run, tool, unmount
from nodebench.report import Goal
from nodebench.results import Results
from nodebench.telling import Telling

from headrace.bench import workloads

PLAIN, MOUNT, SEAL = "plain", "passthrough", "sealed"
RATIO = 0.995
EPOCHS = 3
"""Of a turn."""
STEPS = 60
"""Of an epoch: 2.9 s of compute."""
MOST = 8
"""Accelerators that `held` tries."""
B200 = workloads.workload("retinanet", version="v3.0", accelerator="b200")
DEMAND_BYTES_S = B200.batch * B200.sample_bytes / B200.compute_s["b200"]


class Bench(Telling):
    def __init__(self, place: Workplace, results: Results, given: argparse.Namespace) -> None:
        self.place, self.results, self.given = place, results, given
        self.roots: dict[str, str] = {}

    def train(self, where: str, accelerators: int, *more: str) -> dict[str, Any]:
        """Return the report of a run. more: its last options count."""
        words = [tool("headrace"), "bench", "training", "retinanet", where, "--version", "v3.0", "--json"]
        words += ["--steps", str(max(3, round(STEPS * self.given.scale))), "--epochs", str(EPOCHS)]
        words += ["--accelerators", str(accelerators), *more]
        report: dict[str, Any] = json.loads(run(words, timeout_s=600))
        if report["failed"]:
            raise NotRunError(f"{report['failed']} reads failed")
        return report

    def prepare(self) -> None:
        """Make the data set for as many accelerators as there may be, cache it, and seal it."""
        plain = self.place.folder("plain")
        self.say(f"data set for {self.given.most} accelerators")
        self.train(plain, self.given.most, "--epochs", "1", "--keep-cache", "--scale-times", "0.001")
        mount = HeadraceMount(self.place, f"file://{plain}", io="passthrough")
        mount.start()
        self.say("load and seal")
        mount.load()
        sealed = os.path.join(self.place.folder("seal"), "mount")
        run([tool("headrace"), "seal", mount.mountpoint, "--as", "bench@1", "--at", sealed], timeout_s=600)
        self.place.undo.callback(unmount, sealed)
        self.roots = {PLAIN: plain, MOUNT: mount.root, SEAL: sealed}

    def ratio(self) -> None:
        """AU of each with one accelerator, and with as many as use most of the cores."""
        for many in dict.fromkeys((1, self.given.accelerators)):
            for turn in range(self.given.repeat):
                names = list(self.roots)
                for name in names if turn % 2 == 0 else reversed(names):
                    self.say(f"ratio, {many} accelerators, turn {turn + 1}: {name}")
                    self.take(name, many, self.train(self.roots[name], many, "--no-generate"))

    def take(self, name: str, many: int, report: dict[str, Any]) -> None:
        for epoch in report["epochs"]:
            self.results.add(measure_of(many), name, 100 * epoch["au"], unit="%")
            spent = epoch["processor_s"] / (epoch["bytes_read"] / 2**30)
            self.results.add(f"processor time of the loaders, {many} B200", name, spent, unit="s/GiB")
        for note in report["notes"]:
            self.results.note(f"{name}, {many} B200: {note}")

    def held(self) -> None:
        """Search each contender's number upwards from that of the one before, or downwards."""
        many, cores = self.given.accelerators, os.cpu_count() or 1
        for name, root in self.roots.items():
            many = self.most_held(name, root, many)
            self.results.add("B200 held", name, many, unit="")
            self.results.add("B200 held for each core", name, many / cores, unit="")
            self.results.add(
                "demand held for each core", name, many * DEMAND_BYTES_S / cores / 1e6, unit="MB/s"
            )

    def most_held(self, name: str, root: str, start: int) -> int:
        many = start
        while many > 0 and not self.holds(name, root, many):
            many -= 1
        if many == start:
            while many < self.given.most and self.holds(name, root, many + 1):
                many += 1
        return many

    def holds(self, name: str, root: str, many: int) -> bool:
        """Return whether the best epoch after the first, which warms the page cache, reaches the AU that is needed."""
        report = self.train(root, many, "--no-generate", "--keep-cache")
        best = max(epoch["au"] for epoch in report["epochs"][1:])
        self.say(f"held, {name}, {many} accelerators: AU {100 * best:.1f} %")
        return bool(best >= B200.au_needed)

    def flat(self) -> None:
        """Samples of two accelerators that do not compute, as a number of B200 that would take so many."""
        cores = os.cpu_count() or 1
        for turn in range(self.given.repeat):
            names = list(self.roots)
            for name in names if turn % 2 == 0 else reversed(names):
                self.say(f"flat, turn {turn + 1}: {name}")
                words = ("--no-generate", "--keep-cache", "--scale-times", "0.0001")
                for epoch in self.train(self.roots[name], 2, *words)["epochs"][1:]:
                    b200 = epoch["samples_s"] * B200.compute_s["b200"] / B200.batch
                    self.results.add(
                        "samples of no compute, each core", name, epoch["samples_s"] / cores, unit="/s"
                    )
                    self.results.add("the same in demands of a B200", name, b200 / cores, unit="")


CASES: dict[str, Callable[[Bench], None]] = {"ratio": Bench.ratio, "held": Bench.held, "flat": Bench.flat}


def measure_of(many: int) -> str:
    return f"AU, {many} B200"


def goals(results: Results, given: argparse.Namespace) -> list[Goal]:
    return [
        Goal(
            f"{measure_of(many)}: {name}, of plain", RATIO, True, results.ratio(measure_of(many), name, PLAIN)
        )
        for many in dict.fromkeys((1, given.accelerators))
        for name in (MOUNT, SEAL)
    ]


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="the steps of an epoch", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=20)
    parser.add_argument("--accelerators", type=int, default=2, help="of the second part of `ratio`")
    parser.add_argument("--most", type=int, default=MOST, help="accelerators that `held` tries")
    return program.parse(parser, CASES, root_for="it mounts, and drops the page cache")


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    results.note("an MLPerf Storage workload, scaled, is not an MLPerf Storage result")
    bench = Bench(place, results, given)
    bench.prepare()
    program.run_cases(bench, given, CASES, end_at=end_at)


def main() -> int:
    given, results = arguments(), Results()
    return program.run(
        "retinanet",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=lambda results: goals(results, given),
        digits=4,
    )


if __name__ == "__main__":
    sys.exit(main())
