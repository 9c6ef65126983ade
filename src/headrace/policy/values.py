"""Parse the values of a policy. Each function takes what TOML has, and raises ValueError with the reason."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from headrace.base.errors import UsageError
from headrace.base.priority import Priority
from headrace.base.sizes import parse_size
from headrace.base.tiers import TIERS
from headrace.base.write_modes import WriteModes
from headrace.policy.effects import (
    AUTO_REPLICAS,
    NEVER_S,
    CacheAdmission,
    LifeStart,
    TimeToLive,
    WritePromise,
)

REPLICAS_MAX = 64
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw])", re.ASCII)
LEAST = 1e-6
_BIT_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([KMGT]?)bit(?:/s)?", re.ASCII)
_DURATION_MAX_S = 100 * 365 * 86400
_NUMBER_MAX = 1e15
_WORD_CHARACTERS_MAX = 64
Enumerated = TypeVar("Enumerated", CacheAdmission, LifeStart)


def duration_s(value: object) -> float:
    """Return the seconds of a duration: "90s", "5m", "2h", "2d", "1w"."""
    match = _DURATION.fullmatch(word(value))
    if match is None:
        raise ValueError(f"{shown(value)} is no duration, for example 30s, 5m, 2h, 2d or 1w")
    seconds = float(match[1]) * _UNITS_S[match[2]]
    if seconds > _DURATION_MAX_S:
        raise ValueError(f"{shown(value)} is more than 100 years")
    return seconds


def fresh_s(value: object) -> float:
    """Return the age of a listing: a duration, "always" (0) or "never" (inf)."""
    ages_s = {"always": 0.0, "never": NEVER_S}
    text = word(value)
    return ages_s[text] if text in ages_s else duration_s(text)


def time_to_live(value: object) -> TimeToLive:
    """Return the time to live of "2d" (since the last use), "made+7d" or "fetched+12h"."""
    start, plus, rest = word(value).rpartition("+")
    if plus and start not in (LifeStart.MADE, LifeStart.FETCHED):
        raise ValueError(f"{shown(value)} counts from {shown(start)}, which is neither made nor fetched")
    seconds = duration_s(rest)
    if seconds <= 0:
        raise ValueError(f'{shown(value)} would let each file expire at once; admit = "never" does so')
    return TimeToLive(seconds, LifeStart(start) if plus else LifeStart.USED)


def admission(value: object) -> CacheAdmission:
    return _member(CacheAdmission, value)


def priority(value: object) -> Priority:
    names = {member.name.lower(): member for member in Priority}
    return _choice(names, value)


def replicas(value: object) -> int:
    """Return a number of replicas; AUTO_REPLICAS for "auto"."""
    if value == "auto":
        return AUTO_REPLICAS
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= REPLICAS_MAX:
        raise ValueError(f'{shown(value)} is neither a number from 1 to {REPLICAS_MAX} nor "auto"')
    return value


def tiers(value: object) -> tuple[str, ...]:
    """Return the names of tiers, in order of preference."""
    names = tuple(word(name) for name in _list(value))
    for name in names:
        _choice(dict.fromkeys(TIERS, ""), name)
    if len(set(names)) < len(names):
        raise ValueError(f"{shown(value)} names a tier twice")
    return names


def write_promise(value: object) -> WritePromise:
    """Return the promise of a write mode: off, local, back, back:2 or through."""
    text = word(value)
    if "=" in text or "," in text:
        raise ValueError(f"{shown(value)} is no write mode: the rule has the paths already")
    try:
        modes = WriteModes.parse(text)
    except UsageError as error:
        raise ValueError(f"{shown(value)} is no write mode: {error.hint or error.why}") from error
    return WritePromise(modes.of(b"/"), modes.copies(b"/"))


def sealing(value: object) -> bool:
    """Return whether a data set is sealed by its node: "auto" or "off"."""
    return _choice({"auto": True, "off": False}, value)


def patterns(value: object) -> tuple[str, ...]:
    """Return patterns as .gitignore has them. The pattern itself is checked where it is compiled."""
    return tuple(_list(value))


def size_or_share(value: object) -> int | float:
    """Return bytes as an int, or a share of the capacity, from 0 to 1, as a float."""
    text = word(value)
    if not text.endswith("%"):
        return size_bytes(value)
    try:
        share = float(text[:-1]) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ValueError(f"{shown(value)} is no share from 0% to 100%")
    return share


def size_bytes(value: object) -> int:
    try:
        return parse_size(word(value))
    except UsageError as error:
        raise ValueError(f"{shown(value)} is no size, {error.hint}") from error


def rate_bytes_s(value: object) -> float:
    """Return the bytes a second of "10Gbit" or "500MB"."""
    match = _BIT_RATE.fullmatch(word(value))
    if match is None:
        try:
            return positive(parse_size(word(value)))
        except UsageError as error:
            raise ValueError(f"{shown(value)} is no rate, for example 10Gbit or 500MB") from error
    return positive(float(match[1]) * 1000 ** " KMGT".index(match[2] or " ") / 8)


def positive(value: object) -> float:
    """Return a number above 0. One that is nearly 0 would become 0 when it is divided."""
    number = not_negative(value)
    if number < LEAST:
        raise ValueError(f"{number:g} is not above {LEAST:g}" if number else "0 is not above 0")
    return number


def not_negative(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is no number")
    if isinstance(value, float) and not math.isfinite(value):  # of a large int it would raise OverflowError
        raise ValueError(f"{shown(value)} is no number")
    if not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{shown(value)} is not between 0 and {_NUMBER_MAX:.0e}")
    return float(value)


def word(value: object) -> str:
    """Return a string that is not empty."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is no string")
    if not value.strip():
        raise ValueError("the string is empty")
    return value


def shown(value: object) -> str:
    """Return a value for a message, cut to some length."""
    try:
        text = repr(value)
    except (
        ValueError
    ):  # Python writes no int of more than 4300 digits, which TOML can have as hexadecimal digits
        return "a number of thousands of digits"
    return text if len(text) <= _WORD_CHARACTERS_MAX else text[:_WORD_CHARACTERS_MAX] + "…"


def _list(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise ValueError(f"{shown(value)} is no list of strings")
    if not value:
        raise ValueError("the list is empty")
    if "" in value:
        raise ValueError(f"{shown(value)} has an empty string")
    return value


def _member(kind: Callable[[str], Enumerated] | type[Enumerated], value: object) -> Enumerated:
    return _choice({str(member): member for member in kind}, value)  # type: ignore[union-attr]


Choice = TypeVar("Choice")


def _choice(members: dict[str, Choice], value: object) -> Choice:
    if not isinstance(value, str) or value not in members:
        raise ValueError(f"{shown(value)} is none of {', '.join(members)}")
    return members[value]
