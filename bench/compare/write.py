"""Writing through a mount, beside the plain disk, JuiceFS and rclone; persisting beside s5cmd: all in one run.

Prints two Markdown tables (goals, numbers) and writes `bench/results/write-<date>.json` and `.md`. Needs root. What
each case does is said in `writebench/cases.py`. All else of the machine should rest: the disk is what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from nodebench import server
from nodebench.machine import NotRunError, Workplace, memory_kept
from nodebench.report import table_of_values
from nodebench.results import Results
from writebench import cases, goals
from writebench.bench import Bench
from writebench.copies import copies

RESULTS = Path(__file__).resolve().parents[1] / "results"
CASES: dict[str, Callable[[Bench], None]] = {
    "large": cases.large,
    "small": cases.small,
    "persist": cases.persist,
    "copies": copies,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="of all sizes and counts; 1 is the published run"
    )
    parser.add_argument("--only", default="", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=45 * 60, help="seconds; no case begins after them")
    parser.add_argument("--folder", help="where the temporary folder goes; a disk's own file system")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the tables")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results as it is")
    given = parser.parse_args()
    unknown = {name for name in given.only.split(",") if name} - CASES.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    if os.geteuid() != 0:
        parser.error("needs root: it mounts, and flushes the disk")
    return given


def ended(number: int, _frame: FrameType | None) -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the cleaning up is not to be ended again
    raise SystemExit(128 + number)


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> None:
    end_at = time.monotonic() + given.limit
    bench = Bench(place, server.start(place), results, given.scale, given.repeat, end_at)
    wanted = [name for name in given.only.split(",") if name] or list(CASES)
    for name in (name for name in CASES if name in wanted):
        if time.monotonic() > end_at:
            results.skip(name, "all", f"the time of the run was up ({given.limit:.0f} s)")
            continue
        bench.say(name)
        with bench.attempt(name, "all"):
            CASES[name](bench)


def about(given: argparse.Namespace, seconds: float) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "scale": given.scale,
        "repeat": given.repeat,
        "seconds": round(seconds, 1),
    }


def report(given: argparse.Namespace, results: Results, machine: dict[str, object]) -> None:
    judged = [{**asdict(goal), "verdict": goal.verdict} for goal in goals.goals(results)]
    text = json.dumps({"machine": machine, **results.as_json(), "goals": judged}, indent=1)
    line = ", ".join(f"{key} {value}" for key, value in machine.items())
    tables = "\n\n".join([line, goals.table_of_goals(results), table_of_values(results)])
    if not given.no_write:
        RESULTS.mkdir(exist_ok=True)
        small = "" if given.scale == 1 else f"-scale-{given.scale:g}"  # must not pass for the published run
        stem = f"write-{time.strftime('%Y-%m-%d')}{small}"
        (RESULTS / f"{stem}.json").write_text(text + "\n")
        (RESULTS / f"{stem}.md").write_text(tables + "\n")
    print(text if given.json else tables)


def main() -> int:
    given = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    results, start = Results(), time.monotonic()
    results.note("caches of all contenders and the plain folder are on one disk; each turn has new ones")
    results.note(
        "juicefs uploads while it is written to; juicefs-later and rclone begin an hour later: not at all"
    )
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
    report(given, results, about(given, time.monotonic() - start))
    return 0


if __name__ == "__main__":
    sys.exit(main())
