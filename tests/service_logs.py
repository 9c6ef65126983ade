"""Collect what the nodes, sessions and commands of a test log at level WARNING or above, for the fixture that fails a
test which did not expect it (`conftest.py`).

Each line counts once. Hosts and labs that several tests share are followed: their logs are read after each test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.lab.lab import Lab

_UNEXPECTED = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|^Traceback")
_followed: dict[object, Callable[[], Iterable[Path]]] = {}
_read_bytes: dict[Path, int] = {}
_collected: list[str] = []


def follow(host: object, logs: Callable[[], Iterable[Path]]) -> None:
    """Read the logs of a host at the end of each test, until `end`."""
    _followed[host] = logs


def end(host: object) -> None:
    """Pass over what the services of a host logged since the last `collect`: they were being ended."""
    logs = _followed.pop(host, list)
    for path in logs():
        _new_lines(path)


def collect(logs: Iterable[Path]) -> None:
    """Read the logs of services. Call it before the test ends them: what they log then is not of the test."""
    for path in logs:
        name = Path(*path.parts[-3:])
        _collected.extend(f"{name}: {line}" for line in _new_lines(path) if _UNEXPECTED.search(line))


@contextmanager
def following(lab: Lab, folder: Path) -> Iterator[Lab]:
    """Follow the nodes of a lab that has its logs below `folder`, and end it. What its processes log while it ends is
    passed over."""

    def logs() -> list[Path]:
        return [*folder.glob("node-*/*.log")]

    follow(lab, logs)
    try:
        yield lab
    finally:
        collect(logs())
        try:
            lab.down()
        finally:
            end(lab)


def take() -> list[str]:
    """Return the lines that were collected, and those of followed hosts, since the last call."""
    for logs in _followed.values():
        collect(logs())
    lines = [*_collected]
    _collected.clear()
    return lines


def drop() -> None:
    """Forget the lines that were collected after the last test, when shared hosts were ended."""
    _collected.clear()


def _new_lines(path: Path) -> list[str]:
    """Return the complete lines that were not read yet."""
    with path.open("rb") as file:
        start = _read_bytes.get(path, 0)
        if start > os.fstat(file.fileno()).st_size:
            start = 0  # a lab empties the log of a process that it starts again
        file.seek(start)
        text, newline, _ = file.read().rpartition(b"\n")
    _read_bytes[path] = start + len(text) + len(newline)
    return text.decode(errors="backslashreplace").splitlines()
