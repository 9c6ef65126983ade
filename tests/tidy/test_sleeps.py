"""Tests wait for conditions. A fixed sleep is too short on a busy machine and too long on a quiet one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.tidy.survey import Module, survey, walk

VIRTUAL = ("unit", "model", "conformance")
"""Where no real process is waited for. Time passes with pass_time (testing/virtual_loop.py), and what a thread does is
waited for with until or wait_for (testing/waiting.py)."""
EXCEPTIONS = {
    "model/dataplane/writer_node.py": "the latency of an origin, drawn by chance, beside a session's real thread",
    "model/dataplane/writer_lives.py": "the pause of a program between two writes, which are real system calls",
    "model/dataplane/test_writes_model.py": "delays by chance, beside a session's real thread",
    "model/dataplane/test_reads_model.py": "the latency of an origin, drawn by chance, beside real disks",
    "unit/jobs/test_seals_and_memory.py": "the mover of tiers and the task that seals, beside real disks",
    "unit/jobs/test_auto_seal.py": "the loop of the task that seals, beside real disks",
    "unit/origin/test_late_page.py": "the threads of obstore receive a response that nobody awaits",
    "unit/prefetch/job_fixture.py": "the virtual seconds in which the fetcher and the cache's upkeep work",
    "unit/overlay/test_lock.py": "several threads try to be inside the lock at once",
}
PROGRAMS = ("integration/diagnose/scripts", "integration/diagnose/job_fork_server.py")
"""Programs that are looked at while they wait: their sleep is what the test is about."""


@survey("tests/")
def sleeps(module: Module) -> Iterator[tuple[int, bool, bool]]:
    """Yield the line of each sleep, whether a `while` repeats it, and whether the line has a comment."""
    if "sleep" not in module.text:
        return
    repeated = {id(inner) for loop in module.nodes(ast.While) for inner in walk(loop)}
    lines = module.text.splitlines()
    for node in module.nodes(ast.Call):
        if not isinstance(node.func, ast.Attribute) or not node.args or node.func.attr != "sleep":
            continue
        is_sleep = ast.unparse(node.func.value) in ("time", "asyncio")
        if is_sleep and ast.unparse(node.args[0]) != "0":
            has_comment = re.search(r"# (?!noqa: \w+$)", lines[node.lineno - 1]) is not None
            yield node.lineno, id(node) in repeated, has_comment


def sleeping_modules() -> dict[str, list[tuple[int, bool, bool]]]:
    """Return the sleeps by the path of their module below tests/."""
    return {name.removeprefix("tests/"): findings for name, findings in sleeps.findings().items()}


def test_time_is_virtual_where_no_process_is_waited_for() -> None:
    folders = tuple(f"{folder}/" for folder in VIRTUAL)
    assert {name for name in sleeping_modules() if name.startswith(folders)} == set(EXCEPTIONS)


def test_other_sleeps_poll_or_say_why() -> None:
    """By a comment in their line."""
    silent = [
        f"{name}:{number}"
        for name, findings in sleeping_modules().items()
        if not name.startswith((*VIRTUAL, *PROGRAMS))
        for number, is_repeated, has_comment in findings
        if not is_repeated and not has_comment
    ]
    assert silent == []


def test_each_sleep_is_counted() -> None:
    """Those of 0 only let others run."""
    text = "time.sleep(1)\nwhile it: time.sleep(2)\nawait asyncio.sleep(3)  # why\nawait asyncio.sleep(0)\n"
    assert sleeps.look(Module("a.py", text)) == [(1, False, False), (2, True, False), (3, False, True)]
