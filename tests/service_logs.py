"""Collect what the nodes, sessions and commands of a test log at level WARNING or above, for the fixture that fails a
test which did not expect it (`conftest.py`).

Each line counts once. Hosts that several tests share are followed: their logs are read at the end of each test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

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
        file.seek(_read_bytes.get(path, 0))
        text, newline, _ = file.read().rpartition(b"\n")
    _read_bytes[path] = _read_bytes.get(path, 0) + len(text) + len(newline)
    return text.decode(errors="backslashreplace").splitlines()
