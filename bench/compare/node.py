"""One node against its peers, and against the plain disk: all in one run, interleaved, on this machine.

Starts an object store, puts the data, measures, prints two Markdown tables (numbers, goals) and writes
`bench/results/node-<date>.json` and `.md`. Needs root (mounts, dropping the page cache). A contender that
can't run is listed with its reason. What each case measures is said in `nodebench/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import cached, cold, data, footprint, report, server
from nodebench.bench import Bench
from nodebench.machine import NotRunError, Workplace, memory_kept
from nodebench.results import Results

RESULTS = Path(__file__).resolve().parents[1] / "results"
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all sizes and counts; 1 is the published run"
    )
    parser.add_argument("--only", default="", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--opens", type=int, default=2_000_000, help="of case memory, times --scale")
    parser.add_argument("--limit", type=float, default=30 * 60, help="seconds; no case begins after them")
    parser.add_argument("--folder", help="where the temporary folder goes; a disk's own file system")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the tables")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results as it is")
    given = parser.parse_args()
    unknown = {name for name in given.only.split(",") if name} - CASES.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    if os.geteuid() != 0:
        parser.error("needs root: it mounts, and drops the page cache")
    return given


def ended(number: int, _frame: FrameType | None) -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the cleaning up is not to be ended again
    raise SystemExit(128 + number)


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
    made = data.make(place.folder("plain"), os.path.join(place.root, "names"), given.scale)
    data.upload(made, store)
    bench = Bench(place, store, made, results, given.scale, given.repeat, given.opens, end_at)
    wanted = [name for name in given.only.split(",") if name] or list(CASES)
    for name in CASES:
        if name not in wanted:
            continue
        if time.monotonic() > end_at:
            results.skip(name, "all", f"the time of the run was up ({given.limit:.0f} s)")
            continue
        bench.say(name)
        with bench.attempt(name, "all"):
            CASES[name](bench)
    bench.stop_cached()


def machine(given: argparse.Namespace, seconds: float) -> dict[str, Any]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "scale": given.scale,
        "repeat": given.repeat,
        "opens": given.opens,
        "seconds": round(seconds, 1),
    }


def write(results: Results, about: dict[str, Any], tables: str) -> dict[str, Any]:
    goals = [
        {
            "goal": g.text,
            "limit": g.limit,
            "at_least": g.at_least,
            "measured": g.measured,
            "verdict": g.verdict,
        }
        for g in report.goals(results)
    ]
    everything = {"machine": about, **results.as_json(), "goals": goals}
    return {"json": json.dumps(everything, indent=1), "markdown": tables}


def main() -> int:
    given = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    watch(given.limit)
    results, start = Results(), time.monotonic()
    if given.scale != 1:
        results.note(f"at scale {given.scale:g}: the goals are for scale 1")
    place = Workplace.create(given.folder)
    try:
        with memory_kept() as remark:
            results.note(remark)
            measure(given, place, results)
    except NotRunError as error:
        print(f"could not measure: {error}", file=sys.stderr)
        return 1
    finally:
        place.undo.close()
    about = machine(given, time.monotonic() - start)
    about_line = ", ".join(f"{key} {value}" for key, value in about.items())
    parts = [
        report.table_of_goals(results),
        report.table_of_contenders(results),
        report.table_of_values(results),
    ]
    tables = "\n\n".join([about_line, *parts])
    texts = write(results, about, tables)
    if not given.no_write:
        RESULTS.mkdir(exist_ok=True)
        small = "" if given.scale == 1 else f"-scale-{given.scale:g}"  # must not pass for the published run
        stem = f"node-{time.strftime('%Y-%m-%d')}{small}"
        (RESULTS / f"{stem}.json").write_text(texts["json"] + "\n")
        (RESULTS / f"{stem}.md").write_text(tables + "\n")
    print(texts["json"] if given.json else tables)
    return 0


if __name__ == "__main__":
    sys.exit(main())
