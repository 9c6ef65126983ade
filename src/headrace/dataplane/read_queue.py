"""Order the reads that wait for their turn: tenants share by their weights, and one that reads little waits for little.

This is start-time fair queueing. Each read of a tenant begins, in virtual time, where the one before it ended. The
virtual time is the beginning of the read that went last.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass

from headrace.base.priority import Priority

READ_COST_BYTES = 1 << 16
"""Cost of a read beside its bytes. Otherwise a tenant with small files would take all places."""


@dataclass(frozen=True, slots=True)
class ReadClass:
    """Says for whom a read is made. share: the weight of the tenant. priority: of reads that no reader waits for."""

    tenant: str = ""
    share: float = 1.0
    priority: Priority = Priority.NORMAL


NO_TENANT = ReadClass()


@dataclass(slots=True)
class _WaitingRead:
    number: int
    size_bytes: int
    cost: float
    turn: asyncio.Future[bool]


class FairReadQueue:
    """Holds the waiting reads of all tenants. A read whose future is done waits no more, and costs its tenant nothing.
    For one loop."""

    def __init__(self) -> None:
        self._reads: dict[str, deque[_WaitingRead]] = {}
        self._heap: list[
            tuple[float, int, str]
        ] = []  # each tenant with reads: where the first begins, its number
        self._ends: dict[str, float] = {}
        self._now = 0.0
        self._count = 0

    def __bool__(self) -> bool:
        """Return whether a read waits."""
        while self._heap:
            tenant = self._heap[0][2]
            reads = self._reads[tenant]
            while reads and reads[0].turn.done():
                reads.popleft()
            if reads:
                return True
            heapq.heappop(self._heap)
            del self._reads[tenant]
        self._ends.clear()
        self._now = 0.0
        return False

    def add(self, size_bytes: int, turn: asyncio.Future[bool], read_class: ReadClass) -> None:
        """Add a read. turn: gets its result when the read may begin."""
        self._count += 1
        tenant, cost = read_class.tenant, (size_bytes + READ_COST_BYTES) / read_class.share
        if tenant not in self._reads:
            self._reads[tenant] = deque()
            begin = max(self._now, self._ends.get(tenant, 0.0))
            heapq.heappush(self._heap, (begin, self._count, tenant))
        self._reads[tenant].append(_WaitingRead(self._count, size_bytes, cost, turn))

    def next_size_bytes(self) -> int:
        """Return the size of the read whose turn it is. The queue must not be empty."""
        return self._reads[self._heap[0][2]][0].size_bytes

    def admit_next(self, *, as_background: bool) -> None:
        """Tell the read whose turn it is to begin. The queue must not be empty. as_background: becomes the result of
        the read's turn."""
        self._now, _, tenant = heapq.heappop(self._heap)
        reads = self._reads[tenant]
        read = reads.popleft()
        self._ends[tenant] = self._now + read.cost
        if reads:
            heapq.heappush(self._heap, (self._ends[tenant], reads[0].number, tenant))
        else:
            del self._reads[tenant]
        read.turn.set_result(as_background)
