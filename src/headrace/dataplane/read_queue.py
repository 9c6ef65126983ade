"""Order the reads that wait for their turn: tenants share by their weights, and one that reads little waits for little.

This is start-time fair queueing. Each read of a tenant begins, in virtual time, where the one before it ended. The
virtual time is the beginning of the read that went last.
"""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import dataclass, field

from headrace.base.priority import Priority

READ_COST_BYTES = 1 << 16
"""What a read costs beside its bytes. Otherwise a tenant with small files would take all places."""


@dataclass(frozen=True, slots=True)
class ReadClass:
    """Says for whom a read is made. share: the weight of the tenant. priority: of reads that no reader waits for."""

    tenant: str = ""
    share: float = 1.0
    priority: Priority = Priority.NORMAL


NO_TENANT = ReadClass()


@dataclass(order=True, slots=True)
class _WaitingRead:
    begin: float
    number: int
    size_bytes: int = field(compare=False)
    turn: asyncio.Future[None] = field(compare=False)


class FairReadQueue:
    """Holds the waiting reads of all tenants. A read whose future is done waits no more. For one loop."""

    def __init__(self) -> None:
        self._heap: list[_WaitingRead] = []
        self._ends: dict[str, float] = {}
        self._now = 0.0
        self._count = 0

    def __bool__(self) -> bool:
        """Return whether a read waits."""
        while self._heap and self._heap[0].turn.done():
            heapq.heappop(self._heap)
        if not self._heap:
            self._ends.clear()
            self._now = 0.0
        return bool(self._heap)

    def add(self, size_bytes: int, turn: asyncio.Future[None], read_class: ReadClass) -> None:
        """Add a read. turn: gets its result when the read may begin."""
        begin = max(self._now, self._ends.get(read_class.tenant, 0.0))
        self._ends[read_class.tenant] = begin + (size_bytes + READ_COST_BYTES) / read_class.share
        self._count += 1
        heapq.heappush(self._heap, _WaitingRead(begin, self._count, size_bytes, turn))

    def next_size_bytes(self) -> int:
        """Return the size of the read whose turn it is. The queue must not be empty."""
        return self._heap[0].size_bytes

    def admit_next(self) -> None:
        """Tell the read whose turn it is to begin. The queue must not be empty."""
        read = heapq.heappop(self._heap)
        self._now = read.begin
        read.turn.set_result(None)
