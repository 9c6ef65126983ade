"""Limit the range reads in flight. The limit grows while that helps, and halves when the origin is overloaded. The
module has only state and a queue of waiters, on one asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from headrace.base.clock import monotonic_s
from headrace.base.errors import OriginUnavailableError
from headrace.base.priority import Priority
from headrace.base.promotion import Promotion
from headrace.dataplane.read_queue import NO_TENANT, FairReadQueue, ReadClass

START = 8
"""First limit, and the least one that queueing leaves."""
LATENCY_TOLERANCE = 3.0
"""Multiple of the best time for reads of that size. A slower read shows that more reads would only queue."""
LATE_TOLERANCE = 6.0
"""Multiple of the best time after which a read that a reader waits for is late. Reads that queue stay below it."""
SLOW_IN_A_ROW = 3
"""Slow answers in a row that end the doubling. A queue slows all answers, a hiccup of the origin a few."""
PROBE_AFTER = 5000
"""Reads after which the window starts again with few in flight. Only that shows how fast an idle link answers now. It
costs a few rounds of answers."""


class Window:
    """Hold the limit. It doubles with every round of answers until they queue, as in TCP. Then it is halved, as the
    slow reads began a round before, and changes by one per round. It grows only while reads use it: answers to a few
    say nothing of more. An overloaded origin halves it.

    start: the first limit, while no read was recorded. least: queueing does not reduce the limit below this. tolerance:
    multiple of the best time that counts as queueing.
    """

    def __init__(
        self,
        *,
        maximum: int,
        start: int = START,
        least: int = START,
        tolerance: float = LATENCY_TOLERANCE,
    ) -> None:
        self.maximum = maximum
        self.limit = float(min(start, maximum))
        self._least = least
        self._tolerance = tolerance
        self._best_s: dict[int, float] = {}  # by the size's power of two: small and large reads don't compare
        self._doubling = True
        self._is_overloaded = False
        self._slow = 0
        self._reads = 0

    @property
    def is_growing(self) -> bool:
        """Return whether the limit still doubles, to find out what the link bears."""
        return self._doubling and int(self.limit) < self.maximum

    def late_s(self, bytes_read: int) -> float:
        """Return the seconds after which a read of that size is late. Before the first answer none is."""
        return LATE_TOLERANCE * self._best_s.get(bytes_read.bit_length(), float("inf"))

    def record(self, *, bytes_read: int, seconds: float, in_flight: int | None = None) -> None:
        """Record a read that succeeded. in_flight: the reads at its end; None: as many as the limit permits."""
        self._reads += 1
        if self._reads % PROBE_AFTER == 0:
            self._probe()
        size_class = bytes_read.bit_length()
        best_s = self._best_s[size_class] = min(self._best_s.get(size_class, seconds), seconds)
        if seconds > best_s * self._tolerance:
            self._slow += 1
            self._shrink()
            return
        self._slow = 0
        if in_flight is not None and 2 * in_flight < int(self.limit):
            self._doubling = not self._is_overloaded  # what a full window bears is found anew
        else:
            step = 1.0 if self._doubling else 1 / self.limit
            self.limit = min(float(self.maximum), self.limit + step)

    def _shrink(self) -> None:
        least = min(float(self._least), self.limit)
        if not self._doubling:
            self.limit = max(least, self.limit - 1 / self.limit)
        elif self._slow >= SLOW_IN_A_ROW:
            self._doubling = False
            self.limit = max(least, self.limit / 2)

    def _probe(self) -> None:
        self._best_s.clear()
        self._slow = 0
        self._doubling, self._is_overloaded = True, False
        self.limit = min(self.limit, float(self._least))

    def record_overload(self) -> None:
        """Reduce the limit by half."""
        self._doubling, self._is_overloaded = False, True
        self.limit = max(1.0, self.limit / 2)


class _Read(NamedTuple):
    """A read in flight. promotion: of a background read; None: a reader has waited for it from its begin."""

    began_s: float
    size_bytes: int
    promotion: Promotion | None

    @property
    def is_waited_for(self) -> bool:
        return self.promotion is None or self.promotion.is_promoted


class Gate:
    """Admit range reads: `async with gate.enter(size):` around each. Reads with a waiting reader precede background
    reads, which go by their priority. Tenants share each queue by their weights. bytes_max: limits the bytes in
    flight, too; a single read of any size is admitted. background_share: of the places and bytes, for reads that are
    admitted as background reads; a peer with many readers may hold these for long.

    While the window finds out what the link bears, reads on young connections may starve beside those on connections
    that were fast. So no background read begins meanwhile beside a late read that a reader waits for, unless few are in
    flight.
    """

    def __init__(self, window: Window, *, bytes_max: int, background_share: float = 1.0) -> None:
        self.window = window
        self.in_flight = 0
        self.bytes_in_flight = 0
        self._bytes_max = bytes_max
        self._background_share = background_share
        self._background_reads = self._background_bytes = 0
        self._reads: dict[object, _Read] = {}  # by their begin
        self._spares_late = True
        self._demand = FairReadQueue()
        self._background = {priority: FairReadQueue() for priority in Priority}

    @property
    def has_spare(self) -> bool:
        """Return whether more than half of the window is free, so that a further read delays no other."""
        return 2 * self.in_flight < int(self.window.limit) and not self._demand

    def record(self, *, bytes_read: int, seconds: float) -> None:
        """Record a read that succeeded, before it leaves."""
        self.window.record(bytes_read=bytes_read, seconds=seconds, in_flight=self.in_flight)

    @asynccontextmanager
    async def enter(
        self,
        size_bytes: int,
        *,
        background: bool,
        read_class: ReadClass = NO_TENANT,
        promotion: Promotion | None = None,
    ) -> AsyncIterator[None]:
        """Hold a place. promotion: of a background read, to have it precede others when a reader waits for it."""
        if background and not (promotion is not None and promotion.is_promoted):
            as_background = await self._acquire_promoted(size_bytes, read_class, promotion or Promotion())
        else:
            as_background = await self._acquire(size_bytes, self._demand, read_class, self._new_turn())
        key = object()
        self._reads[key] = _Read(
            monotonic_s(), size_bytes, (promotion or Promotion()) if background else None
        )
        try:
            yield
        except OriginUnavailableError:
            self.window.record_overload()
            raise
        finally:
            del self._reads[key]
            self._leave(size_bytes, as_background=as_background)

    async def _acquire_promoted(self, size_bytes: int, read_class: ReadClass, promotion: Promotion) -> bool:
        """Wait with the background reads, and with those of readers too from its promotion on. Return whether it was
        admitted as a background read."""
        turn = self._new_turn()

        def join_demand() -> None:
            self._demand.add(size_bytes, turn, read_class)  # what comes second to a turn is passed over
            self._admit()

        promotion.notify(join_demand)
        try:
            return await self._acquire(size_bytes, self._background[read_class.priority], read_class, turn)
        finally:
            promotion.notify(None)

    @staticmethod
    def _new_turn() -> asyncio.Future[bool]:
        return asyncio.get_running_loop().create_future()

    async def _acquire(
        self, size_bytes: int, queue: FairReadQueue, read_class: ReadClass, turn: asyncio.Future[bool]
    ) -> bool:
        queue.add(size_bytes, turn, read_class)
        self._admit()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # it was admitted before the cancel: another read gets its place
                self._leave(size_bytes, as_background=turn.result())
            raise

    def _leave(self, size_bytes: int, *, as_background: bool) -> None:
        self.in_flight -= 1
        self.bytes_in_flight -= size_bytes
        self._background_reads -= as_background
        self._background_bytes -= as_background * size_bytes
        self._admit()

    def _admit(self) -> None:
        while self.in_flight < int(self.window.limit) and (queue := self._next_queue()) is not None:
            as_background, size_bytes = queue is not self._demand, queue.next_size_bytes()
            if as_background and self.in_flight >= START and self._is_late_read():
                return
            if self.in_flight and self.bytes_in_flight + size_bytes > self._bytes_max:
                return
            if as_background and not self._has_background_place(size_bytes):
                return
            self.in_flight += 1
            self.bytes_in_flight += size_bytes
            self._background_reads += as_background
            self._background_bytes += as_background * size_bytes
            queue.admit_next(as_background=as_background)

    def _has_background_place(self, size_bytes: int) -> bool:
        """Return whether a further background read leaves the others their share."""
        reads_max, bytes_max = (
            self._background_share * most for most in (self.window.limit, self._bytes_max)
        )
        is_first = not self._background_reads
        return is_first or (
            self._background_reads < reads_max and self._background_bytes + size_bytes <= bytes_max
        )

    def _is_late_read(self) -> bool:
        """Return whether background reads wait for a late read now. After the window has grown they do so until there
        is no late one."""
        if not self._spares_late and not self.window.is_growing:
            return False
        now_s = monotonic_s()
        self._spares_late = any(
            read.is_waited_for and now_s - read.began_s > self.window.late_s(read.size_bytes)
            for read in self._reads.values()
        )
        return self._spares_late

    def _next_queue(self) -> FairReadQueue | None:
        """Return the queue whose next read comes first; None if none waits."""
        queues = (self._demand, *self._background.values())
        return next((queue for queue in queues if queue), None)
