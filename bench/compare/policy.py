"""Policies: tenants, limits, time to live, admission, miss-ratio curves, budgets, events, levels, tiers, copies.

Prints two Markdown tables (goals, numbers) and writes `bench/results/policy-<date>.json` and `.md`. `limit` and `moves`
have a store on a disk; `events`, `levels` and `hot` have real nodes. In all other cases only `headrace.policy` and the
eviction of the store run, in simulated time. What each case does is said in `policybench/`.
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
from policybench import budgets, cases, events, expiry, goals, hot_set, levels, limits, moves, resolution

CASES: dict[str, Callable[[cases.Bench], None]] = {
    "expiry": expiry.expiry,  # before memory that others freed is used again
    "tenants": cases.tenants,
    "limit": limits.limit,
    "admission": cases.admission,
    "curve": cases.curve,
    "budget": budgets.budget,
    "resolve": resolution.resolve,
    "events": events.events,
    "levels": levels.levels,
    "tiers": moves.hits,
    "moves": moves.moves,
    "hot": hot_set.hot_set,
}


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="all counts", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=20)
    return program.parse(parser, CASES, root_for="it makes its folder as the other benchmarks do")


def main() -> int:
    given = arguments()

    def build(place: Workplace, results: Results) -> cases.Bench:
        return cases.Bench(place, results, given.scale, given.repeat)

    return program.run_bench("policy", given, CASES, build, goals.goals)


if __name__ == "__main__":
    sys.exit(main())
