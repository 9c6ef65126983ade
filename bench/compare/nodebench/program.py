"""Holds what the programs of all benchmarks share: their arguments, their end, what they print and write."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import TypeVar

from headrace.lab.killed_runs import Guard
from nodebench.machine import NotRunError, Workplace, memory_kept
from nodebench.report import Goal, rows_of, table_of_goals, table_of_values
from nodebench.results import Results
from nodebench.telling import Telling

RESULTS = Path(__file__).resolve().parents[2] / "results"
ON_A_DISK = "where the temporary folder goes; a disk's own file system"
BenchT = TypeVar("BenchT", bound=Telling)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parser_of(
    doc: str | None, cases: Mapping[str, object], *, scale_of: str, folder_for: str
) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all have. A program adds its own. doc: its first line is the help."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else "")
    parser.add_argument("--scale", type=float, default=1.0, help=f"of {scale_of}; 1 is the published run")
    parser.add_argument("--only", default="", help=f"of: {', '.join(cases)}")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", help=folder_for)
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the tables")
    parser.add_argument("--no-write", action="store_true", help="leave bench/results as it is")
    return parser


def add_limit(parser: argparse.ArgumentParser, minutes: int) -> None:
    parser.add_argument(
        "--limit", type=float, default=minutes * 60, help="seconds; no case begins after them"
    )


def parse(
    parser: argparse.ArgumentParser, cases: Mapping[str, object], *, root_for: str
) -> argparse.Namespace:
    """Ends the program when a case is unknown, or when it is not run by root."""
    given = parser.parse_args()
    unknown = {name for name in given.only.split(",") if name} - cases.keys()
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are: {', '.join(cases)}")
    if os.geteuid() != 0:
        parser.error(f"needs root: {root_for}")
    return given


def wanted(given: argparse.Namespace, cases: Mapping[str, object]) -> list[str]:
    """Return the cases to be run, in their own order."""
    named = [name for name in given.only.split(",") if name]
    return [name for name in cases if name in named or not named]


def in_time(
    given: argparse.Namespace, cases: Mapping[str, object], results: Results, *, end_at: float, contender: str
) -> Iterator[str]:
    """Yield the cases to be run, until time is up; the rest is noted as skipped."""
    for name in wanted(given, cases):
        if time.monotonic() > end_at:
            results.skip(name, contender, f"the time of the run was up ({given.limit:.0f} s)")
        else:
            yield name


def run_cases(
    bench: BenchT,
    given: argparse.Namespace,
    cases: Mapping[str, Callable[[BenchT], None]],
    *,
    end_at: float,
    contender: str = "all",
) -> None:
    """Runs the cases until time is up. A case that fails is listed with its reason, and the others go on."""
    for name in in_time(given, cases, bench.results, end_at=end_at, contender=contender):
        bench.say(name)
        with bench.attempt(name, contender):
            cases[name](bench)


def run_bench(
    name: str,
    given: argparse.Namespace,
    cases: Mapping[str, Callable[[BenchT], None]],
    build: Callable[[Workplace, Results], BenchT],
    goals: Callable[[Results], list[Goal]],
) -> int:
    """Runs all cases over one bench, until the limit that was given. build: makes it. Otherwise as `run`."""
    results = Results()

    def measure(place: Workplace) -> None:
        end_at = time.monotonic() + given.limit
        run_cases(build(place, results), given, cases, end_at=end_at)

    return run(name, given, results, measure, folder=given.folder, goals=goals)


def run(
    name: str,
    given: argparse.Namespace,
    results: Results,
    measure: Callable[[Workplace], None],
    *,
    folder: str | None,
    goals: Callable[[Results], list[Goal]],
    digits: int | None = None,
    tables: Callable[[], list[str]] | None = None,
    about: Mapping[str, object] | None = None,
) -> int:
    """Measures in a temporary folder below `folder`, which is gone in the end; prints and writes what came of it.
    Goals of cases that --only leaves out are not listed. digits: of a goal's table. tables: instead of that of the
    goals and that of the values. about: more of what is said of the machine. The status of the program. When it is
    interrupted, what it has is printed, and not written. When it is killed, a guard ends what it started, unmounts, and
    removes the folder."""
    for number in SIGNALS:
        signal.signal(number, _ended)
    start = time.monotonic()
    if given.scale != 1:
        results.note(f"at scale {given.scale:g}: the goals are for scale 1")
    guard = Guard()
    place = Workplace.create(folder)
    guard.add_folder(Path(place.root), is_removed=True)
    status = 0
    try:
        with memory_kept() as remark:
            results.note(remark)
            measure(place)
    except Interrupted as error:
        results.note("interrupted: what is missing was not measured")
        status = error.code
    except NotRunError as error:
        print(f"could not measure: {error}", file=sys.stderr)
        return 1
    finally:
        place.undo.close()
    machine = {**_machine(given), **(about or {}), "seconds": round(time.monotonic() - start, 1)}
    listed = [goal for goal in goals(results) if goal.measured is not None or not given.only]
    text = json.dumps({"machine": machine, **results.as_json(), "goals": rows_of(listed)}, indent=1)
    line = ", ".join(f"{key} {value}" for key, value in machine.items())
    texts = tables() if tables else [table_of_goals(listed, digits), table_of_values(results)]
    page = "\n\n".join([line, *texts])
    if not given.no_write and not status:
        _write(name, given, text, page)
    print(text if given.json else page)
    return status


class Interrupted(SystemExit):
    """Is an interruption by a signal: no other end is taken for one."""

    code: int


def _ended(number: int, _frame: FrameType | None) -> None:
    for name in SIGNALS:
        signal.signal(name, signal.SIG_IGN)  # the cleaning up is not to be ended again
    raise Interrupted(128 + number)


def _machine(given: argparse.Namespace) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "scale": given.scale,
        "repeat": given.repeat,
    }


def _write(name: str, given: argparse.Namespace, text: str, page: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    small = "" if given.scale == 1 else f"-scale-{given.scale:g}"  # must not pass for the published run
    stem = f"{name}-{time.strftime('%Y-%m-%d')}{small}"
    (RESULTS / f"{stem}.json").write_text(text + "\n")
    (RESULTS / f"{stem}.md").write_text(page + "\n")
