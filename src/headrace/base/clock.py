"""The time by which tasks wait and measure: seconds that never run back, from an unknown zero.

Code on the event loop waits with asyncio, and asks `monotonic_s` here. Both follow one clock: the machine's, or in a
test the one of its virtual loop (headrace.testing.virtual_loop), which needs no other change. The clock comes with the
context that a task runs in, so no object needs it as an argument. A deadline agrees with the `asyncio.timeout` made
from it. Threads see the machine's clock. What is stored, or must advance while the machine sleeps, uses boot_clock.py.

The hit path of clients calls time.monotonic itself: this indirection costs about 0.2 µs, each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar

Clock = Callable[[], float]

CLOCK: ContextVar[Clock] = ContextVar("clock", default=time.monotonic)


def monotonic_s() -> float:
    """Return the seconds of the calling task's clock."""
    return CLOCK.get()()


def wall_s() -> float:
    """Return the seconds since 1970. A default argument is this function, as `time.time` itself would be bound before
    a test sets another clock."""
    return time.time()
