"""Share the lookups that reports cause between mounts. A flood of one, or an origin that hangs, delays no other.

Mounts take turns. One of several mounts never has more places than it leaves free for the others. For the node's loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.base.clock import monotonic_s
from headrace.base.token_bucket import TokenBucket, wait_for_turn


class FairGate:
    """Limits how many run at a time. is_shared: returns whether there are several mounts."""

    def __init__(self, running_max: int, is_shared: Callable[[], bool]) -> None:
        self._free = running_max
        self._is_shared = is_shared
        self._running: dict[bytes, int] = {}
        self._turns: dict[bytes, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, mount: bytes) -> AsyncIterator[None]:
        """Wait for a place, and have it until the end of the block. mount: the path of the mount."""
        await self._acquire(mount)
        try:
            yield
        finally:
            self._release(mount)

    async def _acquire(self, mount: bytes) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.setdefault(mount, deque()).append(turn)
        self._fill()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it got its place at the same moment
                self._release(mount)
            raise

    def _release(self, mount: bytes) -> None:
        self._free += 1
        self._running[mount] -= 1
        if not self._running[mount]:
            del self._running[mount]
        self._fill()

    def _fill(self) -> None:
        """Give the free places away. A mount that gets one is the last in turn then."""
        while self._free:
            mount = next(filter(self._may_run, self._turns), None)
            if mount is None:
                return
            turns = self._turns.pop(mount)
            turn = turns.popleft()
            if turns:
                self._turns[mount] = turns
            if not turn.cancelled():
                self._free -= 1
                self._running[mount] = self._running.get(mount, 0) + 1
                turn.set_result(None)

    def _may_run(self, mount: bytes) -> bool:
        return not self._is_shared() or self._running.get(mount, 0) < self._free


class ReportLane:
    """Limits how many run at a time, and how many begin in a second."""

    def __init__(self, running_max: int, starts_s: float, is_shared: Callable[[], bool]) -> None:
        self._gate = FairGate(running_max, is_shared)
        self._rate = TokenBucket(starts_s, monotonic_s(), burst_s=1.0)

    @asynccontextmanager
    async def turn(self, mount: bytes) -> AsyncIterator[None]:
        async with self._gate.place(mount):
            await wait_for_turn([self._rate.reserve(1, monotonic_s())])
            yield
