"""Write values of effects as a rule spells them."""

from __future__ import annotations

import math

from headrace.base.priority import Priority
from headrace.policy.effects import AUTO_REPLICAS, LifeStart, TimeToLive, WritePromise

_UNITS = (("w", 604800), ("d", 86400), ("h", 3600), ("m", 60))


def text_of(value: object) -> str:
    """Return the text of a value; "-" for none."""
    match value:
        case None | "" | ():
            return "-"
        case bool():
            return "auto" if value else "off"
        case Priority():
            return value.name.lower()
        case TimeToLive(seconds=seconds, start=start):
            return duration_text(seconds) if start is LifeStart.USED else f"{start}+{duration_text(seconds)}"
        case WritePromise(mode=mode, copies=copies):
            return f"{mode}:{copies}" if copies > 1 else str(mode)
        case float():
            return "always" if value == 0 else "never" if math.isinf(value) else duration_text(value)
        case int():
            return "auto" if value == AUTO_REPLICAS else str(value)
        case tuple():
            return ", ".join(map(str, value))
    return str(value)


def duration_text(seconds: float) -> str:
    """Return a duration in the largest unit that it is a whole number of."""
    for unit, size_s in _UNITS:
        if seconds >= size_s and seconds % size_s == 0:
            return f"{seconds / size_s:.0f}{unit}"
    return f"{seconds:g}s"
