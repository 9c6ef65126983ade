"""1 → 8 nodes of a lab on this machine, behind shaped links: AU, samples and origin bytes; bandwidth of checkpoints.

Prints two Markdown tables (goals, numbers) and writes `bench/results/scaling-<date>.json` and `.md`. Needs root, `tc`,
SeaweedFS and etcd; checkpoints also loop devices and the cgroup controller blkio (v1). What each case does is said in
`scalingbench/cases.py`. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program
from nodebench.machine import NotRunError, Workplace
from nodebench.report import Goal
from nodebench.results import Results
from scalingbench import cases
from scalingbench.cases import HEADRACE, NODES, PLAIN, Bench

from headrace.base.errors import HeadraceError

MEMORY = "/dev/shm"
CASES: dict[str, Callable[[Bench], None]] = {
    "training": cases.training,
    "long": cases.long_training,
    "checkpoint": cases.checkpoint,
    "copies": cases.copies,
}
POINTS, LINEAR, LINEAR_WRITES, OF_DISK = 0.5, 0.98, 0.97, 0.97
WHEN = ("cold", "cached", f"cold{cases.LONG.name}")


def goals(results: Results) -> list[Goal]:
    listed = [*_of_training(results), *_of_checkpoints(results)]
    return [goal for goal in listed if goal.measured is not None]


def _of_training(results: Results) -> list[Goal]:
    listed = []
    for when in WHEN:
        for many in NODES[1:]:
            apart, share = _apart(results, when, many), _share(results, f"samples, {when}", many)
            listed.append(Goal(f"AU, {when}, {many} nodes: points from one node's", POINTS, False, apart))
            listed.append(Goal(f"samples/s, {when}, {many} nodes: of {many} × one", LINEAR, True, share))
    for many in NODES:
        for run in (cases.SHORT, cases.LONG):
            measure = f"origin bytes of data set{run.name}, {many} nodes"
            listed.append(Goal(measure, 1.01, False, results.median(measure, HEADRACE)))
    return listed


def _of_checkpoints(results: Results) -> list[Goal]:
    alone = results.ratio("checkpoint written, 1 nodes", HEADRACE, PLAIN)
    listed = [Goal("checkpoint written, one node: of its own disk", OF_DISK, True, alone)]
    for way in ("written", "read"):
        for many in NODES[1:]:
            share = _share(results, f"checkpoint {way}", many)
            listed.append(
                Goal(f"checkpoint {way}, {many} nodes: of {many} × one", LINEAR_WRITES, True, share)
            )
    for many in NODES[2:]:
        share = _share(results, "checkpoint with copies written", many, of=NODES[1])
        text = f"checkpoint with copies written, {many} nodes: of {many // NODES[1]} × two"
        listed.append(Goal(text, LINEAR_WRITES, True, share))
    return listed


def _apart(results: Results, when: str, nodes: int) -> float | None:
    alone, many = (results.median(f"AU, {when}, {count} nodes", HEADRACE) for count in (1, nodes))
    return abs(alone - many) if alone is not None and many is not None else None


def _share(results: Results, measure: str, nodes: int, *, of: int = 1) -> float | None:
    alone, many = (results.median(f"{measure}, {count} nodes", HEADRACE) for count in (of, nodes))
    return many / alone / (nodes / of) if alone and many is not None else None


def arguments() -> argparse.Namespace:
    parser = program.parser_of(
        __doc__, CASES, scale_of="steps and checkpoints", folder_for="where all files go, instead of memory"
    )
    program.add_limit(parser, minutes=30)
    return program.parse(parser, CASES, root_for="network namespaces, mounts")


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    bench = Bench(place, results, given.repeat, given.scale)
    end_at = time.monotonic() + given.limit
    for name in program.in_time(given, CASES, results, end_at=end_at, contender=HEADRACE):
        try:
            CASES[name](bench)
        except (NotRunError, HeadraceError, OSError) as error:
            bench.say(f"  not run: {error}")
            results.skip(name, HEADRACE, str(error))


def _words(setting: cases.Setting) -> str:
    disk, link = setting.disk_bytes_s / 1e6, setting.rate_bits_s / 1e6
    return f"mode of writing {setting.write}, disks of {disk:g} MB/s each way, links of {link:g} Mbit/s"


def main() -> int:
    given, results = arguments(), Results()
    for run in (cases.SHORT, cases.LONG):
        results.note(
            f"training{run.name}: {cases.WORKLOAD}, sizes times {run.sizes:g}, times {run.times:g}, "
            f"links of {cases.RATE}; the data set grows with the nodes"
        )
    results.note(
        f"checkpoints: {cases.MODEL}, sizes times {cases.CHECKPOINT_SCALE:g}; each node has a disk of its own, a loop "
        f"device over memory; {_words(cases.OWN_DISK)}; with copies: {_words(cases.WITH_COPIES)}"
    )
    return program.run(
        "scaling",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder or MEMORY,
        goals=goals,
        digits=3,
    )


if __name__ == "__main__":
    sys.exit(main())
