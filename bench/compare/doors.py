"""The S3 gateway beside nginx, which serves the same files, and SeaweedFS's own gateway: all in one run.

Four clients, a process and a connection each (`doorsbench/load.py`), GET objects that are cached, page cache warm, turn
and turn about. Prints two Markdown tables (goals, numbers) and writes `bench/results/doors-<date>.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from doorsbench import load
from doorsbench.contenders import Contender, headrace, seaweedfs, web_server
from nodebench import server
from nodebench.machine import NotRunError, Workplace, kill_group, memory_kept
from nodebench.report import Goal, number, table_of_values
from nodebench.results import Results

RESULTS = Path(__file__).resolve().parents[1] / "results"
LARGE, SMALL = "1 GET 8 MiB, 4 connections", "2 GET 4 KiB, 4 connections"
OURS, WEED = "headrace", "seaweedfs"
CLIENTS = 4
MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    measure: str
    folder: str
    size_bytes: int
    count: int
    unit: str


def cases(scale: float) -> list[Case]:
    return [
        Case(LARGE, "large", 8 * MIB, max(4, round(64 * scale)), "GB/s"),
        Case(SMALL, "small", 4096, max(16, round(2000 * scale)), "requests/s"),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--scale", type=float, default=1.0, help="of all counts; 1 is the published run")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="how long each contender is asked, each time"
    )
    parser.add_argument("--folder", help="where the temporary folder goes")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the tables")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results as it is")
    return parser.parse_args()


def ended(number_: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number_)


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def make(case: Case, root: str, store: server.Server) -> list[str]:
    """The objects, on the disk and at the server; their names."""
    os.makedirs(f"{root}/{case.folder}")
    names = [f"{case.folder}/{n:05d}" for n in range(case.count)]
    for name in names:
        data = os.urandom(case.size_bytes)
        with open(f"{root}/{name}", "wb") as out:
            out.write(data)
        store.put(name, data)
    return names


def ask(place: Workplace, one: Contender, names: list[str], seconds: float) -> list[dict[str, Any]]:
    """What each client saw."""
    targets = os.path.join(place.folder("targets"), "list")
    with open(targets, "w") as out:
        out.write("\n".join(one.target_of(name) for name in names))
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-S",
                load.__file__,
                one.address,
                str(seconds),
                targets,
                str(n * len(names) // CLIENTS),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        for n in range(CLIENTS)
    ]
    found = []
    try:
        for process in running:
            out_, err = process.communicate(timeout=seconds + 120)
            if process.returncode:
                raise NotRunError(err.strip()[-300:])
            found.append(json.loads(out_))
    finally:
        for process in running:
            kill_group(process)
    return found


def value_of(case: Case, found: list[dict[str, Any]]) -> float:
    rates = [one["bytes" if case.unit == "GB/s" else "requests"] / one["seconds"] for one in found]
    return sum(rates) / (1e9 if case.unit == "GB/s" else 1)


def measure(given: argparse.Namespace, place: Workplace, results: Results) -> str:
    """The name of the web server."""
    store, root = server.start(place), place.folder("plain")
    names_of = {case.measure: make(case, root, store) for case in cases(given.scale)}
    ours = headrace(place, store)
    name, web = web_server(place, root)
    contenders = {OURS: ours, name: web, WEED: seaweedfs(store)}
    for case in cases(given.scale):
        say(case.measure)
        names = names_of[case.measure]
        for one in contenders.values():
            ask(place, one, names, min(3.0, given.seconds))  # all of it is cached, and in memory
        for _ in range(given.repeat):
            for who, one in contenders.items():
                value = value_of(case, ask(place, one, names, given.seconds))
                say(f"  {who} {value:,.2f} {case.unit}")
                results.add(case.measure, who, value, unit=case.unit)
    return name


def goals(results: Results, web: str) -> list[Goal]:
    return [
        Goal(f"{LARGE}: of {web}", 0.8, True, results.ratio(LARGE, OURS, web)),
        Goal(f"{SMALL}: of SeaweedFS's S3", 2.0, True, results.ratio(SMALL, OURS, WEED)),
    ]


def report(given: argparse.Namespace, results: Results, web: str) -> None:
    machine = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "scale": given.scale,
        "repeat": given.repeat,
    }
    judged = goals(results, web)
    lines = ["| goal | wanted | measured | verdict |", "|---|---|---|---|"]
    for goal in judged:
        measured = number(goal.measured) if goal.measured is not None else "–"
        lines.append(f"| {goal.text} | ≥ {goal.limit:g} | {measured} | {goal.verdict} |")
    about = ", ".join(f"{key} {value}" for key, value in machine.items())
    tables = "\n\n".join([about, "\n".join(lines), table_of_values(results)])
    text = json.dumps(
        {
            "machine": machine,
            **results.as_json(),
            "goals": [{**asdict(goal), "verdict": goal.verdict} for goal in judged],
        },
        indent=1,
    )
    if not given.no_write:
        RESULTS.mkdir(exist_ok=True)
        small = "" if given.scale == 1 else f"-scale-{given.scale:g}"
        stem = f"doors-{time.strftime('%Y-%m-%d')}{small}"
        (RESULTS / f"{stem}.json").write_text(text + "\n")
        (RESULTS / f"{stem}.md").write_text(tables + "\n")
    print(text if given.json else tables)


def main() -> int:
    given = arguments()
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, ended)
    results = Results()
    results.note("requests to both gateways are presigned; the web server checks nothing")
    place = Workplace.create(given.folder)
    try:
        with memory_kept() as remark:
            results.note(remark)
            web = measure(given, place, results)
    except NotRunError as error:
        print(f"could not measure: {error}", file=sys.stderr)
        return 1
    finally:
        place.undo.close()
    report(given, results, web)
    return 0


if __name__ == "__main__":
    sys.exit(main())
