"""One node against its peers, and against the plain disk: all in one run, interleaved, on this machine.

Starts an object store, puts the data, measures, prints two Markdown tables (numbers, goals) and writes
`bench/results/node-<date>.json` and `.md`. Needs root (mounts, dropping the page cache). A contender that
can't run is listed with its reason. What each case measures is said in `nodebench/`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import cached, cold, data, footprint, program, report, server
from nodebench.bench import Bench
from nodebench.machine import Workplace
from nodebench.results import Results

CASES: dict[str, Callable[[Bench], None]] = {
    "sequential": cached.sequential,
    "small": cached.small_files,
    "mmap": cached.random_mmap,
    "coldload": cold.cold_load,
    "firstread": cold.first_read,
    "epoch": cold.first_epoch,
    "memory": footprint.memory,
    "entries": footprint.entries,
    "up": footprint.start,
}
WATCHDOG_S = 300
"""How long after the limit the run is ended from outside of what it waits for."""


def arguments() -> argparse.Namespace:
    parser = program.parser_of(__doc__, CASES, scale_of="all sizes and counts", folder_for=program.ON_A_DISK)
    program.add_limit(parser, minutes=30)
    parser.add_argument("--opens", type=int, default=2_000_000, help="of case memory, times --scale")
    return program.parse(parser, CASES, root_for="it mounts, and drops the page cache")


def watch(limit_s: float) -> None:
    """Past the limit the process gets SIGTERM; a minute later, if that did not help, it ends at once."""

    def bark() -> None:
        time.sleep(limit_s + WATCHDOG_S)
        print("the time is up", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        os._exit(124)

    threading.Thread(target=bark, daemon=True).start()


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    store = server.start(place)
    data_set = data.make(place.folder("plain"), os.path.join(place.root, "names"), given.scale)
    data.upload(data_set, store)
    bench = Bench(place, store, data_set, results, given.scale, given.repeat, given.opens, end_at)
    program.run_cases(bench, given, CASES, end_at=end_at)
    bench.stop_cached()


def main() -> int:
    given, results = arguments(), Results()
    watch(given.limit)
    return program.run(
        "node",
        given,
        results,
        lambda place: measure(given, place, results),
        folder=given.folder,
        goals=report.goals,
        tables=lambda: [
            report.table_of_goals(report.goals(results)),
            report.table_of_contenders(results),
            report.table_of_values(results),
        ],
        about={"opens": given.opens},
    )


if __name__ == "__main__":
    sys.exit(main())
