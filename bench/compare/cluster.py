"""Eight nodes on this machine, in network namespaces behind shaped links: what a cluster must reach, measured.

Prints two Markdown tables (goals, numbers) and writes `bench/results/cluster-<date>.json` and `.md`. Needs root, `tc`,
SeaweedFS and etcd (all of `./dev bench` but root and tc). What each case does is said in `clusterbench/cases.py`.
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

from clusterbench import cases, goals
from clusterbench.bench import Bench
from nodebench.machine import NotRunError, Workplace, memory_kept
from nodebench.report import table_of_values
from nodebench.results import Results

MEMORY = "/dev/shm"
MEMORY_BYTES = 10 << 30
RESULTS = Path(__file__).resolve().parents[1] / "results"
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts; 1 is the published run")
    parser.add_argument("--only", default="", help=f"of: {', '.join(CASES)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--limit", type=float, default=45 * 60, help="seconds; no case begins after them")
    parser.add_argument("--folder", help="where all files go, instead of memory")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the tables")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results as it is")
    given = parser.parse_args()
    unknown = {name for name in given.only.split(",") if name} - CASES.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    if os.geteuid() != 0:
        parser.error("needs root: network namespaces, mounts")
    return given


def ended(number: int, _frame: FrameType | None) -> None:
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # the cleaning up is not to be ended again
    raise SystemExit(128 + number)


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
    wanted = [name for name in given.only.split(",") if name] or list(CASES)
    for name in (name for name in CASES if name in wanted):
        if time.monotonic() > end_at:
            results.skip(name, "headrace", f"the time of the run was up ({given.limit:.0f} s)")
            continue
        bench.say(name)
        with bench.attempt(name):
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
        stem = f"cluster-{time.strftime('%Y-%m-%d')}{small}"
        (RESULTS / f"{stem}.json").write_text(text + "\n")
        (RESULTS / f"{stem}.md").write_text(tables + "\n")
    print(text if given.json else tables)


def main() -> int:
    given = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, ended)
    results, start = Results(), time.monotonic()
    results.note(
        f"links of {cases.RATE_MBIT} Mbit/s ({cases.LOAD_MBIT} for case 8, none for 5), so that they and not the "
        "cores are the limit; the object store's is not shaped; remote rates are the nodes' own count of peer bytes"
    )
    if given.scale != 1:
        results.note(f"at scale {given.scale:g}: the goals are for scale 1")
    folder = given.folder or (MEMORY if roomy(MEMORY) else None)
    where = "memory (tmpfs)" if folder == MEMORY else "a folder of the disk"
    results.note(
        f"all files lie in {where}: a cluster's nodes have a disk each, and here all would share one"
    )
    place = Workplace.create(folder)
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
