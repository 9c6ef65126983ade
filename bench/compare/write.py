"""Writing through a mount, beside the plain disk, JuiceFS and rclone; persisting beside s5cmd: all in one run.

Prints two Markdown tables (goals, numbers) and writes `bench/results/write-<date>.json` and `.md`. Needs root. What
each case does is said in `writebench/cases.py`. All else of the machine should rest: the disk is what is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program, server
from nodebench.machine import Workplace
from nodebench.results import Results
from writebench import cases, goals
from writebench.bench import Bench
from writebench.copies import copies
from writebench.exclusive import exclusive

CASES: dict[str, Callable[[Bench], None]] = {
    "large": cases.large,
    "small": cases.small,
    "persist": cases.persist,
    "copies": copies,
    "exclusive": exclusive,
}


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="all sizes and counts", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=45)
    return program.parse(parser, CASES, root_for="it mounts, and flushes the disk")


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    bench = Bench(place, server.start(place), results, given.scale, given.repeat, end_at)
    program.run_cases(bench, given, CASES, end_at=end_at)


def main() -> int:
    given, results = arguments(), Results()
    results.note("caches of all contenders and the plain folder are on one disk; each turn has new ones")
    results.note(
        "juicefs uploads while it is written to; juicefs-later and rclone begin an hour later: not at all"
    )
    return program.run(
        "write",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=goals.goals,
    )


if __name__ == "__main__":
    sys.exit(main())
