"""Simulate nodes that share a budget of requests at one origin, tick by tick."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from headrace.base.token_bucket import TokenBucket
from headrace.policy.rate_shares import NodeBudget, NodeRate, OverloadFactor

TICK_S = 0.01
EXCHANGE_TICKS = 50
RECORD_DELAY_TICKS = 40
"""Ticks from a change of a record until the other nodes know it."""
BURST_S = 0.1


class SimulatedNode:
    """A node with waiting requests. It publishes and computes its rate each half second, after its own phase."""

    def __init__(self, name: str, phase: int, rate: float) -> None:
        self.name = name
        self.waiting = 0.0
        self.sent = 0
        self.overload = OverloadFactor()
        self._phase = phase
        self._arrived = 0.0
        self._ready_s: float | None = None  # when the request that is next may pass
        self._budget = NodeBudget(name, rate)
        self._bucket = TokenBucket(rate, 0.0, burst_s=BURST_S)
        self._published: deque[tuple[int, NodeRate]] = deque([(-EXCHANGE_TICKS, NodeRate(rate, rate))])

    def record_at(self, tick: int) -> NodeRate:
        """Return the newest record that others know at a tick."""
        while len(self._published) > 1 and self._published[1][0] <= tick - RECORD_DELAY_TICKS:
            self._published.popleft()
        return self._published[0][1]

    def step(self, tick: int, arriving: float, limit: float, records: dict[str, NodeRate]) -> int:
        """Let requests arrive, and send what the bucket permits. Return how many were sent."""
        now_s = tick * TICK_S
        self.waiting += arriving
        self._arrived += arriving
        factor = self.overload.factor(now_s)
        if tick % EXCHANGE_TICKS == self._phase or factor < self._published[-1][1].factor:
            passed_s = max(1, tick - self._published[-1][0]) * TICK_S
            demand = self._arrived / passed_s + self.waiting
            record = self._budget.exchange(limit, records, demand=demand, factor=factor)
            self._bucket.set_rate(self._budget.rate, now_s)
            self._published.append((tick, record))
            self._arrived = 0.0
        sent = 0
        while self.waiting >= 1:
            if self._ready_s is None:
                self._ready_s = now_s + self._bucket.reserve(1, now_s).wait_s(now_s)
            if self._ready_s > now_s:
                break
            self._ready_s = None
            self.waiting -= 1
            sent += 1
        self.sent += sent
        return sent


def requests_sent(
    limit: float,
    arrivals: Sequence[Callable[[float], float]],
    seconds: int,
    refuses: Callable[[float], bool] = lambda _: False,
) -> list[int]:
    """Return the requests at the origin in each tick. arrivals: of each node, requests a second at a time. refuses:
    whether the origin answers with 503 at a time."""
    nodes = [
        SimulatedNode(f"node-{number}", number * EXCHANGE_TICKS // len(arrivals), limit / len(arrivals))
        for number in range(len(arrivals))
    ]
    counts = []
    for tick in range(round(seconds / TICK_S)):
        records = {node.name: node.record_at(tick) for node in nodes}
        count = 0
        for node, arriving in zip(nodes, arrivals, strict=True):
            sent = node.step(tick, arriving(tick * TICK_S) * TICK_S, limit, records)
            count += sent
            if sent and refuses(tick * TICK_S):
                node.overload.record_overload(tick * TICK_S)
        counts.append(count)
    return counts


def most_within(counts: Sequence[int], seconds: float) -> int:
    """Return the most requests in any window of that length."""
    window = round(seconds / TICK_S)
    total = most = sum(counts[:window])
    for first, last in zip(counts, counts[window:], strict=False):
        total += last - first
        most = max(most, total)
    return most
