"""Eight nodes on this machine, in network namespaces behind shaped links: what a cluster must reach, measured.

Prints two Markdown tables (goals, numbers) and writes `bench/results/cluster-<date>.json` and `.md`. Needs root, `tc`,
SeaweedFS and etcd (all of `./dev bench` but root and tc). What each case does is said in `clusterbench/cases.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from clusterbench import cases, goals
from clusterbench.bench import Bench
from nodebench import program
from nodebench.machine import Workplace
from nodebench.results import Results

MEMORY = "/dev/shm"
MEMORY_BYTES = 10 << 30
CASES: dict[str, Callable[[Bench], None]] = {
    "once": cases.origin_once,
    "request": cases.one_request,
    "scaling": cases.scaling,
    "small": cases.small_files,
    "join": cases.join,
    "kill": cases.killed,
    "load": cases.load,
}


def arguments() -> argparse.Namespace:
    parser = program.parser_of(
        __doc__, CASES, scale_of="all counts", folder_for="where all files go, instead of memory"
    )
    program.add_limit(parser, minutes=45)
    return program.parse(parser, CASES, root_for="network namespaces, mounts")


def roomy(folder: str) -> bool:
    """A memory file system with room for the largest case, in memory that is free."""
    try:
        stat = os.statvfs(folder)
    except OSError:
        return False
    with open("/proc/meminfo") as source:
        available = next(int(line.split()[1]) << 10 for line in source if line.startswith("MemAvailable"))
    return min(stat.f_bavail * stat.f_frsize, available) >= MEMORY_BYTES


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    bench = Bench(place, results, given.scale, given.repeat, end_at)
    program.run_cases(bench, given, CASES, end_at=end_at, contender="headrace")


def main() -> int:
    given, results = arguments(), Results()
    results.note(
        f"links of {cases.RATE_MBIT} Mbit/s ({cases.LOAD_MBIT} for case 8, none for 5), so that they and not the "
        "cores are the limit; the object store's is not shaped; remote rates are the nodes' own count of peer bytes"
    )
    folder = given.folder or (MEMORY if roomy(MEMORY) else None)
    where = "memory (tmpfs)" if folder == MEMORY else "a folder of the disk"
    results.note(
        f"all files lie in {where}: a cluster's nodes have a disk each, and here all would share one"
    )
    return program.run(
        "cluster",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=folder,
        goals=goals.goals,
    )


if __name__ == "__main__":
    sys.exit(main())
