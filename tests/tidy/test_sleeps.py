"""Tests wait for conditions. A fixed sleep is too short on a busy machine and too long on a quiet one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
VIRTUAL = ("unit", "model", "conformance")
"""Where no real process is waited for. Time passes with pass_time (testing/virtual_loop.py), and what a thread does is
waited for with until or wait_for (testing/waiting.py)."""
EXCEPTIONS = {
    "model/dataplane/writer_node.py": "the latency of an origin, drawn by chance, beside a session's real thread",
    "model/dataplane/writer_lives.py": "the pause of a program between two writes, which are real system calls",
    "model/dataplane/test_writes_model.py": "delays by chance, beside a session's real thread",
    "model/dataplane/test_reads_model.py": "the latency of an origin, drawn by chance, beside real disks",
    "unit/jobs/test_auto_seal.py": "the loop of the task that seals, beside real disks",
    "unit/prefetch/job_fixture.py": "the virtual seconds in which the fetcher and the cache's upkeep work",
    "unit/overlay/test_lock.py": "several threads try to be inside the lock at once",
}
PROGRAMS = ("integration/diagnose/scripts", "integration/diagnose/job_fork_server.py")
"""Programs that are looked at while they wait: their sleep is what the test is about."""


def sleeps(path: Path) -> Iterator[tuple[int, bool]]:
    """Yield the line of each sleep, and whether a `while` repeats it."""
    text = path.read_text()
    if "sleep" not in text:
        return
    tree = ast.parse(text)
    repeated = {
        id(inner) for loop in ast.walk(tree) if isinstance(loop, ast.While) for inner in ast.walk(loop)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        is_sleep = node.func.attr == "sleep" and ast.unparse(node.func.value) in ("time", "asyncio")
        if is_sleep and ast.unparse(node.args[0]) != "0":
            yield node.lineno, id(node) in repeated


def name_of(path: Path) -> str:
    return path.relative_to(TESTS).as_posix()


def test_time_is_virtual_where_no_process_is_waited_for() -> None:
    paths = [path for folder in VIRTUAL for path in sorted((TESTS / folder).rglob("*.py"))]
    sleeping = {name_of(path) for path in paths if any(sleeps(path))}
    assert sleeping == set(EXCEPTIONS)


def test_other_sleeps_poll_or_say_why() -> None:
    """By a comment in their line."""
    silent = []
    for path in sorted(TESTS.rglob("*.py")):
        if name_of(path).startswith((*VIRTUAL, *PROGRAMS)):
            continue
        lines = path.read_text().splitlines()
        silent += [
            f"{name_of(path)}:{number}"
            for number, polls in sleeps(path)
            if not polls and not re.search(r"# (?!noqa: \w+$)", lines[number - 1])
        ]
    assert silent == []
