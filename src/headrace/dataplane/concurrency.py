"""How many range reads are in flight: grows while it helps, halves when the origin is overloaded. Pure state plus
a queue of waiters; one asyncio loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from headrace.base.errors import OriginUnavailableError

START = 8
LATENCY_TOLERANCE = 3.0
"""A read that takes longer than this many times the best mean per byte says that more in flight only queue."""


class Window:
    """The limit itself: additive increase, multiplicative decrease."""

    def __init__(self, *, maximum: int) -> None:
        self.maximum = maximum
        self.limit = float(min(START, maximum))
        self._best_s_per_byte = float("inf")

    def succeeded(self, *, bytes_read: int, seconds: float) -> None:
        cost = seconds / max(1, bytes_read) / self.limit
        self._best_s_per_byte = min(self._best_s_per_byte * 1.001, cost)
        if cost <= self._best_s_per_byte * LATENCY_TOLERANCE:
            self.limit = min(float(self.maximum), self.limit + 1 / self.limit)

    def overloaded(self) -> None:
        self.limit = max(1.0, self.limit / 2)


class Gate:
    """`async with gate.enter():` around each range read. Demand goes before background."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.in_flight = 0
        self._demand: deque[asyncio.Future[None]] = deque()
        self._background: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def enter(self, *, background: bool) -> AsyncIterator[None]:
        await self._acquire(self._background if background else self._demand)
        try:
            yield
        except OriginUnavailableError:
            self.window.overloaded()
            raise
        finally:
            self.in_flight -= 1
            self._admit()

    async def _acquire(self, queue: deque[asyncio.Future[None]]) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.in_flight -= 1  # admitted and cancelled at once: hand the place on
                self._admit()
            raise

    def _admit(self) -> None:
        while self.in_flight < int(self.window.limit) and (self._demand or self._background):
            waiter = (self._demand or self._background).popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(None)
