"""Asks a second time, on another connection, for bytes that don't come: one connection that went silent must not
stall its reader until the deadline.

Bounded: a small share of the reads is asked twice, so an origin that is slow as a whole is not asked for twice as much.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.origin import Condition, ListPage, Origin, PutSource

LEAST_S = 2.0
"""No read is asked for again sooner. A guess: longer than a busy store takes now and then."""
FACTOR = 3.0
"""Nor before so many times what the slowest of the last reads of its size took."""
RECENT = 64
KNOWN = 8
"""From so many reads of a size on it is known what is slow; before, by BYTES_S."""
BYTES_S = 4 << 20
AGAIN_MAX = 2
SHARE = 0.05
AT_ONCE = 8
"""Of the reads so many in a hundred are asked for again, and this many in a burst."""
LATE_S = 0.5
"""A timer that is so late says that this process stood still, not the origin."""


class Allowance:
    """How many reads may be asked for again: a share of those that were, kept up to a burst."""

    def __init__(self) -> None:
        self._left = float(AT_ONCE)

    def earn(self) -> None:
        self._left = min(float(AT_ONCE), self._left + SHARE)

    def spend(self) -> bool:
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Slowest:
    """What reads took of late, by their size's power of two."""

    def __init__(self) -> None:
        self._recent: dict[int, deque[float]] = {}

    def add(self, size_bytes: int, seconds: float) -> None:
        self._recent.setdefault(size_bytes.bit_length(), deque(maxlen=RECENT)).append(seconds)

    def limit_s(self, size_bytes: int) -> float:
        """How long a read is waited for before it is asked for again."""
        recent = self._recent.get(size_bytes.bit_length(), ())
        if len(recent) < KNOWN:
            return LEAST_S + size_bytes / BYTES_S
        return max(LEAST_S, FACTOR * max(recent))


class HedgeOrigin:
    """An Origin around an Origin."""

    def __init__(self, inner: Origin) -> None:
        self._inner = inner
        self._slowest = Slowest()
        self._allowance = Allowance()
        self.reads_hedged = 0

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def writable(self) -> bool:
        return self._inner.writable

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        async def ask() -> Arrived:
            begun_s = time.monotonic()
            arrived = await self._inner.read_range(key, start, end, version=version, deadline=deadline)
            self._slowest.add(end - start, time.monotonic() - begun_s)
            return arrived

        self._allowance.earn()
        limit_s = self._slowest.limit_s(end - start)
        under_way = {asyncio.ensure_future(ask())}
        try:
            for _ in range(AGAIN_MAX):
                done = await _first(under_way, limit_s)
                if done is not None:
                    return done.result()
                if not self._allowance.spend():
                    break
                self.reads_hedged += 1
                under_way.add(asyncio.ensure_future(ask()))
                limit_s *= 2
            done = await _first(under_way, None)
            assert done is not None
            return done.result()
        finally:
            for task in under_way:
                task.cancel()
            if len(under_way) > 1 or not all(task.done() for task in under_way):
                await asyncio.gather(*under_way, return_exceptions=True)

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        return await self._inner.head(key, deadline=deadline)

    def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        return self._inner.list_directory(key, deadline=deadline)

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        return await self._inner.put(
            key, source, condition=condition, attributes=attributes, deadline=deadline
        )

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        await self._inner.remove(key, condition=condition, deadline=deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._inner.make_directory(key, deadline=deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._inner.remove_directory(key, deadline=deadline)

    async def close(self) -> None:
        await self._inner.close()


async def _first(
    under_way: set[asyncio.Task[Arrived]], limit_s: float | None
) -> asyncio.Task[Arrived] | None:
    """One that ended, a good one where there is; None when none did within the limit. An error counts also while
    another one is silent: the caller tries again, by what that error says."""
    while True:
        begun_s = time.monotonic()
        done, _ = await asyncio.wait(under_way, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return min(done, key=lambda task: isinstance(task.exception(), HeadraceError))
        if limit_s is None or time.monotonic() - begun_s < limit_s + LATE_S:
            return None
