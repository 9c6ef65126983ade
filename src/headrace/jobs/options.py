"""Parse the options of a job besides its path, once, where a request arrives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.base.errors import UsageError
from headrace.base.priority import Priority
from headrace.policy.values import REPLICAS_MAX
from headrace.seal.catalogue import SealId

ALLOWED = {
    "load": ("replicas", "priority", "verify"),
    "pin": ("replicas", "priority", "verify"),
    "seal": ("seal", "lazy"),
    "complete-seal": ("seal",),
    "unseal": ("seal",),
    "verify-seal": ("seal",),
    "push-seal": ("seal",),
    "pull-seal": ("seal",),
}
"""Options of each kind; other kinds have none."""
_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Holds the options of a job. `replicas` is the number of owners that load each file; 0 means as many as the
    cluster keeps. `verify` checks the loaded blocks against their checksums. `seal` is the seal to make, complete,
    remove, verify, push or pull; these kinds need it. Only one to make may have version 0: the next one of its name.
    `lazy`: a new seal loads nothing."""

    replicas: int = 0
    priority: Priority = Priority.NORMAL
    verify: bool = False
    seal: SealId | None = None
    lazy: bool = False


def parse_options(kind: str, options: Mapping[str, str]) -> JobOptions:
    """Return the options of a job. Raise UsageError for an unknown option or value."""
    for name in options:
        if name not in ALLOWED.get(kind, ()):
            raise UsageError(f"{kind}: option {name!r}", why="this kind of job has no such option")
    seal = _seal(kind, options.get("seal", "")) if "seal" in ALLOWED.get(kind, ()) else None
    return JobOptions(
        _replicas(options["replicas"]) if "replicas" in options else 0,
        _priority(options.get("priority", "normal")),
        options.get("verify", "false") == "true",
        seal,
        options.get("lazy", "false") == "true",
    )


def _seal(kind: str, text: str) -> SealId:
    if kind == "seal" and "@" not in text:
        return SealId(SealId.parse(f"{text}@1").name, 0)
    return SealId.parse(text)


def _replicas(text: str) -> int:
    copies = int(text) if text.isdecimal() and len(text) <= _DIGITS_MAX else 0
    if not 1 <= copies <= REPLICAS_MAX:
        raise UsageError(
            f"replicas {text!r}",
            why=f"not a number from 1 to {REPLICAS_MAX}",
            hint="leave it out for as many as the policy says",
        )
    return copies


def _priority(text: str) -> Priority:
    try:
        return Priority[text.upper()]
    except KeyError:
        raise UsageError(
            f"priority {text!r}", why="no such priority", hint="use high, normal or low"
        ) from None
