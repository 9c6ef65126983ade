"""Hedge reads: request late bytes a second time on another connection, so that one silent connection does not stall
its reader until the deadline.

The share of hedged reads is small and bounded, so an origin that is slow as a whole does not receive twice the
requests.
"""

from __future__ import annotations

import asyncio
from collections import deque

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import Arrived, Version
from headrace.base.tasks import OwnedTasks
from headrace.origin.origin import Origin
from headrace.origin.wrapper import WrapperOrigin

LEAST_S = 2.0
"""Least seconds before a hedge. A guess: longer than the occasional pause of a busy store."""
FACTOR = 3.0
"""Multiple of the slowest recent read of that size after which a read is hedged."""
RECENT = 64
"""Recent reads that are remembered for each size."""
KNOWN = 8
"""Reads of a size after which their times set the limit; before that it follows from BYTES_S."""
BYTES_S = 4 << 20
HEDGES_MAX = 2
"""Most hedges of one read."""
SHARE = 0.05
AT_ONCE = 8
"""Share of reads that may be hedged, and most hedges in a burst."""
LATE_S = 0.5
"""Seconds by which a timer is late if this process was stalled, and not the origin."""


class HedgeBudget:
    """Limits hedged reads to a share of all reads, saved up to one burst."""

    def __init__(self) -> None:
        self._left = float(AT_ONCE)

    def earn(self) -> None:
        self._left = min(float(AT_ONCE), self._left + SHARE)

    def spend(self) -> bool:
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class SlowestReads:
    """Remembers the recent durations of reads, by the power of two of their size."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def add(self, size_bytes: int, seconds: float) -> None:
        self._recent.setdefault(size_bytes.bit_length(), deque(maxlen=RECENT)).append(seconds)

    def limit_s(self, size_bytes: int) -> float:
        """Return the seconds to wait for a read before it is hedged."""
        recent = self._recent.get(size_bytes.bit_length(), ())
        if len(recent) < KNOWN:
            return LEAST_S + size_bytes / BYTES_S
        return max(LEAST_S, FACTOR * max(recent))


class HedgeOrigin(WrapperOrigin):
    """Wraps an Origin, and hedges its reads."""

    def __init__(self, inner: Origin) -> None:
        super().__init__(inner)
        self._slowest = SlowestReads()
        self._budget = HedgeBudget()
        self.reads_hedged = 0

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        async def ask() -> Arrived:
            begun_s = monotonic_s()
            arrived = await self._inner.read_range(key, start, end, version=version, deadline=deadline)
            self._slowest.add(end - start, monotonic_s() - begun_s)
            return arrived

        self._budget.earn()
        limit_s = self._slowest.limit_s(end - start)
        async with OwnedTasks(HeadraceError) as owned:
            tasks = {owned.start(ask())}
            for _ in range(HEDGES_MAX):
                done = await _first(tasks, limit_s)
                if done is not None:
                    return done.result()
                if not self._budget.spend():
                    break
                self.reads_hedged += 1
                tasks.add(owned.start(ask()))
                limit_s *= 2
            done = await _first(tasks, None)
            assert done is not None
            return done.result()


async def _first(tasks: set[asyncio.Task[Arrived]], limit_s: float | None) -> asyncio.Task[Arrived] | None:
    """Return a task that has ended, preferably a successful one; None if none ended within the limit. An error counts
    even while another task is silent: the caller retries as that error demands."""
    while True:
        begun_s = monotonic_s()
        done, _ = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return min(done, key=lambda task: isinstance(task.exception(), HeadraceError))
        if limit_s is None or monotonic_s() - begun_s < limit_s + LATE_S:
            return None
