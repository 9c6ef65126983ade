"""Learn what the nodes of a cluster read from origins in this month, and keep what nodes read that left.

Each node publishes its own reads as the record `costs/NODE`. When a node is gone, the first of the others adds its
record to `spent/departed`, and deletes it. A node that comes back counts on from what these records say of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

import msgspec

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.cluster.records import Records
from headrace.origin.factory import parse_origin
from headrace.policy.spending import (
    BYTES_MAX,
    NODE_ID_MAX,
    Departed,
    Spending,
    decode_departed,
    decode_spending,
    encode_spending,
    larger,
)

log = logging.getLogger(__name__)

PREFIX = "costs"
DEPARTED = "spent/departed"
GONE_AFTER_S = 600.0
"""Seconds after which a node that is not in the cluster counts as gone. One that restarts keeps its record."""
FOLDED_MAX = 16
"""Nodes whose records are added at a time."""


def canonical(amounts: Mapping[str, int]) -> dict[str, int]:
    """Return the amounts by the canonical URLs of their origins. An earlier release wrote them as the policy did."""
    sums: dict[str, int] = {}
    for url, size_bytes in amounts.items():
        key = _canonical_url(url)
        sums[key] = min(BYTES_MAX, sums.get(key, 0) + size_bytes)
    return sums


def _canonical_url(url: str) -> str:
    try:
        return parse_origin(url)
    except HeadraceError:  # another release knows it, or a node that has its driver
        return url


class ClusterSpending:
    """Follows the records of the other nodes, and publishes that of this node. node: its id. members: returns the ids
    of the nodes that are in the cluster. Belongs to the node's loop."""

    def __init__(self, node: str, records: Records, members: Callable[[], Collection[str]]) -> None:
        self._node = node
        self._records = records
        self._members = members
        self._others: dict[str, Spending] = {}
        self._departed = Departed()
        self._published: Spending | None = None
        self._may_publish = False
        self._absent_since_s: dict[str, float] = {}

    async def follow(self, joined: asyncio.Event | None) -> None:
        """Wait until this node is in the cluster, and learn what the others spend."""
        if joined is not None:
            await joined.wait()
        await self._records.follow(f"{PREFIX}/", self._on_record)
        await self._records.follow(DEPARTED, self._on_departed)

    async def own(self, month: str) -> dict[str, int]:
        """Return what the records say that this node spent in a month, before this run. Raise
        ClusterUnavailableError."""
        raw = await self._records.get(f"{PREFIX}/{self._node}")
        recorded: Mapping[str, int] = {}
        if raw:
            try:
                spending = decode_spending(raw)
                recorded = spending.bytes if spending.month == month else {}
            except msgspec.DecodeError as error:
                log.warning("the spending record of this node is invalid error=%s", error)
        return larger(canonical(recorded), canonical(self._departed.of_node(month, self._node)))

    def month_bytes(self, month: str, url: str) -> int:
        """Return what all other nodes read of an origin in a month."""
        live = {self._node, *(id for id, other in self._others.items() if other.month == month)}
        others = sum(other.bytes.get(url, 0) for other in self._others.values() if other.month == month)
        return others + self._departed.bytes_of(month, url, live)

    def may_publish(self) -> None:
        """Publish from now on: what this node read before is known."""
        self._may_publish = True

    async def publish(self, spending: Spending) -> None:
        """Publish what this node spent, if that is new."""
        if not self._may_publish or spending == self._published or not (spending.bytes or self._published):
            return
        try:
            await self._records.put(f"{PREFIX}/{self._node}", encode_spending(spending))
            self._published = spending
        except HeadraceError as error:
            log.info("what was spent in this month can't be published error=%s", error)

    async def fold_departed(self, month: str) -> None:
        """Add the records of nodes that are gone to that of all departed nodes, and delete them. The first member does
        it. If two nodes do, nothing is counted twice. month: the present one."""
        gone = self._gone()
        if not gone or not self._may_publish or self._node != min(self._members(), default=""):
            return
        try:
            for id in gone[:FOLDED_MAX]:
                spending = self._others.get(id)  # None: another node added it meanwhile
                if spending is not None and not await self._fold(id, spending, month):
                    return
        except HeadraceError as error:
            log.info("the spending of nodes that left can't be added up error=%s", error)

    def _gone(self) -> list[str]:
        """Return the nodes with a record that have been out of the cluster for a while."""
        now_s, members = monotonic_s(), self._members()
        absent = [id for id in self._others if id not in members]
        self._absent_since_s = {id: self._absent_since_s.get(id, now_s) for id in absent}
        return [id for id, since_s in self._absent_since_s.items() if now_s - since_s >= GONE_AFTER_S]

    async def _fold(self, id: str, spending: Spending, month: str) -> bool:
        """Return whether the record of a node is part of that of the departed nodes now."""
        from headrace.cluster.membership import PREFIX as MEMBERS  # loads the client of etcd

        raw = await self._records.get(DEPARTED)
        try:
            departed = decode_departed(raw) if raw else self._departed
        except msgspec.DecodeError as error:
            log.warning("the spending record of departed nodes is invalid and is replaced error=%s", error)
            departed = self._departed
        new = msgspec.json.encode(departed.with_record(id, spending, month))
        is_stored = (
            await self._records.replace(DEPARTED, raw, new)
            if raw
            else await self._records.create(DEPARTED, new)
        )
        if is_stored:
            await self._records.delete(f"{PREFIX}/{id}", unless=f"{MEMBERS}{id}")
            log.info("what a node spent is kept with that of departed nodes node=%s", id)
        return is_stored

    def _on_record(self, key: str, value: bytes | None) -> None:
        node = key.removeprefix(f"{PREFIX}/")
        if node == self._node:
            if not value:  # lost with etcd's data: it is written again, also if nothing more is read
                self._published = None
            return
        self._others.pop(node, None)
        if not value:
            return
        if len(node) > NODE_ID_MAX:
            log.warning("a spending record is of no node: its name is too long key=%.80s", key)
            return
        try:
            spending = decode_spending(value)
        except msgspec.DecodeError as error:
            log.warning("the spending of a node is invalid node=%s error=%s", node, error)
            return
        self._others[node] = msgspec.structs.replace(spending, bytes=canonical(spending.bytes))

    def _on_departed(self, key: str, value: bytes | None) -> None:
        if not value:
            return  # it is kept: another node writes it again with the next one that leaves
        try:
            self._departed = decode_departed(value)
        except msgspec.DecodeError as error:
            log.warning("the spending record of departed nodes is invalid error=%s", error)
