"""Sealed data sets beside the plain folder, our mount in both modes, JuiceFS and rclone: all in one run.

Prints two Markdown tables (goals, numbers) and writes `bench/results/seal-<date>.json` and `.md`. Needs root. What each
case does is said in `sealbench/cases.py`. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import program
from nodebench.machine import Workplace
from nodebench.results import Results
from sealbench import cases, goals, lazy
from sealbench.bench import Bench

CASES: dict[str, Callable[[Bench], None]] = {
    "small": cases.small,
    "many": cases.many,
    "versions": cases.versions,
    "lazy": lazy.lazy,
}


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="all counts", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=60)
    parser.add_argument("--no-peers", action="store_true", help="leave out JuiceFS and rclone")
    return program.parse(parser, CASES, root_for="it mounts, and drops the page cache")


def main() -> int:
    given = arguments()

    def build(place: Workplace, results: Results) -> Bench:
        return Bench(place, results, given.scale, given.repeat, not given.no_peers)

    return program.run_bench("seal", given, CASES, build, goals.goals)


if __name__ == "__main__":
    sys.exit(main())
