"""What a job may be told besides its path: parsed once, at the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from headrace.base.errors import UsageError

ALLOWED = {"load": ("replicas", "priority", "verify"), "pin": ("replicas", "priority", "verify")}
"""By kind; other kinds take none."""


class Priority(IntEnum):
    """Of jobs against each other; reads of training jobs go before all of them."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class JobOptions:
    """replicas: owners that load each file; 0: as many as the cluster keeps. verify: what was loaded is read back
    and compared with its checksums."""

    replicas: int = 0
    priority: Priority = Priority.NORMAL
    verify: bool = False


def parse_options(kind: str, options: Mapping[str, str]) -> JobOptions:
    """UsageError for a word or a value that is not known."""
    for name in options:
        if name not in ALLOWED.get(kind, ()):
            raise UsageError(f"{kind}: option {name!r}", why="it has no such option")
    return JobOptions(
        _replicas(options.get("replicas", "0")),
        _priority(options.get("priority", "normal")),
        options.get("verify", "false") == "true",
    )


def _replicas(text: str) -> int:
    if not text.isdecimal() or int(text) > 1000:
        raise UsageError(f"replicas {text!r}", why="not a number of nodes", hint="for example --replicas 2")
    return int(text)


def _priority(text: str) -> Priority:
    try:
        return Priority[text.upper()]
    except KeyError:
        raise UsageError(f"priority {text!r}", why="not known", hint="high, normal or low") from None
