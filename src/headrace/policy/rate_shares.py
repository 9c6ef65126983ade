"""Divide a budget of an origin among the nodes of a cluster: requests or bytes a second.

Each node publishes what it needs and the rate that it takes, and computes its rate from what it knows of the others. It
lowers its rate at once. It raises it by its part of what nobody takes, publishes that, and uses it at its next exchange
only, when the others know. So the nodes keep within the budget without a leader, as long as a record arrives within one
exchange. While records can't be written, the others know the last one only: a node keeps to its rate, and to an equal
part of what no record takes. A node without a record counts with an equal part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.policy.dues import Entitlement, dues

LEAST_DEMAND_SHARE = 0.01
"""The part of an equal share that a node without demand holds, so that its first requests wait for no exchange."""
RECOVERY_SHARE_S = 0.02
"""The share of the budget that comes back in each second after an overload."""
LEAST_FACTOR = 0.05
REPEAT_S = 1.0
"""Answers of overload within that time are of one overload: they belong to requests that were in flight."""


class NodeRate(NamedTuple):
    """The record that a node publishes for one budget. demand: a second, also what waits. rate: that it takes. factor:
    the share of the budget that the origin bears, by the answers that this node got."""

    demand: float
    rate: float
    factor: float = 1.0
    share: float = 1.0


def least_rate(limit: float, nodes: int) -> float:
    """Return the rate that every node may use without asking. It is above 0."""
    return LEAST_DEMAND_SHARE * limit / nodes


def with_silent(records: Mapping[str, NodeRate], limit: float, nodes: int) -> dict[str, NodeRate]:
    """Return the records of the other nodes, and one that takes an equal part for each node without a record: that node
    begins with it. nodes: how many there are, this one included."""
    equal = NodeRate(limit / nodes, limit / nodes)
    return {**records, **{f"silent {number}": equal for number in range(nodes - 1 - len(records))}}


def rate_of(node: str, limit: float, records: Mapping[str, NodeRate]) -> float:
    """Return the rate that a node takes from now on. records: of all live nodes, the node's own one included."""
    bearable = _bearable(limit, records)
    least = least_rate(bearable, len(records))
    due = dues(
        bearable,
        {name: Entitlement(share=record.share) for name, record in records.items()},
        {name: max(record.demand, least) for name, record in records.items()},
    )
    rate = records[node].rate
    if due[node] <= rate:
        return due[node]
    unused = _unused(limit, records)
    lacking = sum(max(0.0, due[name] - record.rate) for name, record in records.items())
    return rate + unused * (due[node] - rate) / lacking if unused < lacking else due[node]


def _bearable(limit: float, records: Mapping[str, NodeRate]) -> float:
    """Return the part of a limit that the origin bears."""
    return limit * min(record.factor for record in records.values())


def _unused(limit: float, records: Mapping[str, NodeRate]) -> float:
    """Return what no record takes."""
    return max(0.0, _bearable(limit, records) - sum(record.rate for record in records.values()))


class NodeBudget:
    """A node's part of one budget. rate: what it may use now, at first an equal share."""

    def __init__(self, node: str, rate: float) -> None:
        self.rate = rate
        self._node = node
        self._taken = self._known = rate

    def scale(self, factor: float) -> None:
        """Keep the same part of a limit that is so many times the one before."""
        self.rate *= factor
        self._taken *= factor
        self._known *= factor

    def exchange(
        self,
        limit: float,
        records: Mapping[str, NodeRate],
        *,
        demand: float,
        factor: float,
        is_heard: bool = True,
    ) -> NodeRate:
        """Update the rate. Return the record to publish. records: of the other live nodes; share 1 for this one.
        is_heard: whether the record of the exchange before was published."""
        if is_heard:
            self._known = self._taken
        own = NodeRate(demand, self._known, factor)
        nodes = {**records, self._node: own}
        self._taken = rate_of(self._node, limit, nodes)
        most = self._known if is_heard else self._known + _unused(limit, nodes) / len(nodes)
        self.rate = max(min(self._taken, most), least_rate(limit * factor, len(nodes)))
        return own._replace(rate=self._taken)


class OverloadFactor:
    """Halve at an answer of overload (429 or 503), and recover by a constant share a second, as TCP does."""

    def __init__(self) -> None:
        self._factor = 1.0
        self._changed_s = float("-inf")

    def record_overload(self, now_s: float) -> bool:
        """Record an answer of overload. Return whether the factor falls for it."""
        if now_s - self._changed_s < REPEAT_S:
            return False
        self._factor = max(LEAST_FACTOR, self.factor(now_s) / 2)
        self._changed_s = now_s
        return True

    def factor(self, now_s: float) -> float:
        """Return the share of the budget that the origin bears."""
        if self._factor == 1.0:
            return 1.0
        return min(1.0, self._factor + RECOVERY_SHARE_S * (now_s - self._changed_s))
