"""Limit the number of files that the jobs of a node work on at a time. Higher priorities are served first."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count


class PrioritySemaphore:
    """A semaphore with `permits` permits. Within a priority, it serves waiters in order of arrival. For one asyncio
    loop."""

    def __init__(self, permits: int) -> None:
        self._free = permits
        self._order = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def acquire(self, priority: int) -> AsyncIterator[None]:
        """Hold a permit within the context. Lower numbers of `priority` are served first. A cancelled wait takes no
        permit."""
        if self._free and not self._waiting:
            self._free -= 1
        else:
            await self._wait(priority)
        try:
            yield
        finally:
            self._release()

    async def _wait(self, priority: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (priority, next(self._order), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._release()  # the permit was granted just before the cancel
            raise

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
