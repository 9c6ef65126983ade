"""Plans: simulated hits, origin bytes and peak rate, and cold epochs of a real job with and without a plan.

Prints two Markdown tables (goals, numbers) and writes `bench/results/plan-<date>.json` and `.md`. In all
cases but `epochs`, `waits` and `nodes` only `headrace.plan`, the hook and the policies of the store run. What each case
does is said in `planbench/cases.py`, and in the module of its name.
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
from planbench import cases, epochs, extents, goals, nodes, predicted, waits

CASES: dict[str, Callable[[cases.Bench], None]] = {
    "single": cases.single,
    "joint": cases.joint,
    "substitution": cases.substitution,
    "peak": cases.peak,
    "predicted": predicted.predicted,
    "large": cases.large,
    "extents": extents.extents,
    "epochs": epochs.epochs,
    "waits": waits.waits,
    "nodes": nodes.nodes,
}


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="all counts", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=20)
    return program.parse(parser, CASES, root_for="it makes its folder as the other benchmarks do")


def main() -> int:
    given = arguments()

    def build(place: Workplace, results: Results) -> cases.Bench:
        return cases.Bench(place, results, given.scale, given.repeat)

    return program.run_bench("plan", given, CASES, build, goals.goals)


if __name__ == "__main__":
    sys.exit(main())
