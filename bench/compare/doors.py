"""The doors beside a plain folder, s5cmd, s3fs, nginx and SeaweedFS's gateway: all in one run.

Prints two Markdown tables (goals, numbers) and writes `bench/results/doors-<date>.json` and `.md`. Needs root. What
each case does is said in `doorsbench/cases.py` and `doorsbench/gateway.py`. All else of the machine should rest.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from doorsbench import cases, goals
from doorsbench.bench import Bench
from doorsbench.gateway import gateway
from nodebench import program, server
from nodebench.machine import Workplace
from nodebench.results import Results

CASES: dict[str, Callable[[Bench], None]] = {
    "start": cases.start,
    "small": cases.small,
    "loader": cases.loader,
    "cold": cases.cold,
    "gateway": gateway,
}


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="all counts", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=20)
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="how long each gateway is asked, each time"
    )
    return program.parse(parser, CASES, root_for="it mounts")


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    store, root = server.start(place), place.folder("plain")
    bench = Bench(place, store, results, given.scale, given.repeat, given.seconds, root)
    program.run_cases(bench, given, CASES, end_at=end_at)


def main() -> int:
    given, results = arguments(), Results()
    return program.run(
        "doors",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=goals.goals,
    )


if __name__ == "__main__":
    sys.exit(main())
