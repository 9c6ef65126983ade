"""Define what a policy decides about a file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from headrace.base.priority import Priority
from headrace.base.write_modes import WriteMode

NEVER_S = math.inf
AUTO_REPLICAS = 0
"""The number of replicas of `replicas = "auto"`: it follows the reads."""


class CacheAdmission(StrEnum):
    """Says when a file that was read enters the cache."""

    ALWAYS = "always"
    SECOND_READ = "second-read"
    NEVER = "never"


class LifeStart(StrEnum):
    """Names the moment from which a time to live counts: the last use, the file's own mtime, or the fetch."""

    USED = "used"
    MADE = "made"
    FETCHED = "fetched"


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """Says when a cached file expires: seconds after a moment."""

    seconds: float
    start: LifeStart = LifeStart.USED


@dataclass(frozen=True, slots=True)
class WritePromise:
    """Says how a path is written, and how many nodes have a file before close returns."""

    mode: WriteMode
    copies: int = 1


@dataclass(frozen=True, slots=True)
class Effects:
    """Holds the effects of a policy on a file. None: the configuration of the node or the mount decides.

    fresh_s: age in seconds at which a listing is fetched again; 0: always, inf: never. tiers: in order of preference.
    seal: whether the node seals the data set by itself. tenant: the name of the tenant that the file belongs to; "":
    none.
    """

    fresh_s: float | None = None
    admit: CacheAdmission = CacheAdmission.ALWAYS
    replicas: int | None = None
    priority: Priority = Priority.NORMAL
    tiers: tuple[str, ...] = ()
    ttl: TimeToLive | None = None
    write: WritePromise | None = None
    seal: bool | None = None
    tenant: str = ""


DEFAULT_EFFECTS = Effects()
EFFECT_NAMES = ("fresh", "admit", "replicas", "priority", "tier", "ttl", "write", "seal")
"""The names of effects in a rule."""
FIELD_OF = {"fresh": "fresh_s", "tier": "tiers"} | {
    name: name for name in EFFECT_NAMES if name not in ("fresh", "tier")
}
"""The field of `Effects` that has an effect."""
