"""Checkpoints on the local disk: how long training is stopped, what is stored, how fast it comes back.

Prints two Markdown tables (goals, numbers) and writes `bench/results/checkpoint-<date>.json` and `.md`. Needs root: it
drops the page cache. Takes memory for three states. What each case does is said in `checkpointbench/`.
"""

from __future__ import annotations

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from checkpointbench.cases import CASES, Bench, goals
from nodebench import program
from nodebench.machine import NotRunError, Workplace
from nodebench.results import Results


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="the state's size", folder_for=program.ON_A_DISK)
    return program.parse(parser, CASES, root_for="it drops the page cache")


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    bench = Bench(place, results, given.scale, given.repeat)
    for name in program.wanted(given, CASES):
        bench.say(name)
        try:
            CASES[name](bench)
        except (NotRunError, OSError) as error:
            bench.say(f"  not run: {error}")
            results.skip(name, "headrace", str(error))


def main() -> int:
    given, results = arguments(), Results()
    return program.run(
        "checkpoint",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=goals,
    )


if __name__ == "__main__":
    sys.exit(main())
