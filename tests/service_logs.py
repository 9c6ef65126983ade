"""Collect what the nodes, sessions and commands of a test log at level WARNING or above, for the fixture that fails a
test which did not expect it (`conftest.py`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_UNEXPECTED = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|^Traceback")
_collected: list[str] = []


def collect(logs: Iterable[Path]) -> None:
    """Read the logs of services. Call it before the test ends them: what they log then is not of the test."""
    for path in logs:
        lines = path.read_text(errors="backslashreplace").splitlines()
        _collected.extend(f"{path.name}: {line}" for line in lines if _UNEXPECTED.search(line))


def take() -> list[str]:
    """Return the lines that were collected since the last call."""
    lines = [*_collected]
    _collected.clear()
    return lines
