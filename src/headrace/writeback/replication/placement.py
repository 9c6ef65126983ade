"""Choose the nodes that hold the replicas of a node's writes, from the view alone. A record of the cluster names the
present replicas, so a node with older ones knows that they are worthless."""

from __future__ import annotations

import msgspec
import xxhash

from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.records import Records
from headrace.ring.view import ClusterView, NodeInfo

PREFIX = "copies"
"""Prefix of the keys of these records."""


def choose_replicas(view: ClusterView, me: str) -> list[NodeInfo]:
    """Return all nodes that can hold this node's replicas, best first.

    The order follows a ring by the hash of node ids: each node is the first choice of only one other, and a node that
    joins or leaves changes one choice. Nodes of other zones come first.
    """
    own = view.nodes.get(me)
    zone = own.zone if own is not None else ""
    able = [node for node in view.nodes.values() if node.id != me and not node.draining]
    here = _place(me)
    able.sort(key=lambda node: (_place(node.id) - here) % (1 << 64))
    able.sort(key=lambda node: bool(zone) and node.zone == zone)
    return able


def _place(id: str) -> int:
    """Return the place of a node on the ring: the 64-bit hash of its id."""
    return xxhash.xxh3_64_intdigest(id.encode())


class ReplicaSetRecords:
    """Read and write the record of each writer's replica set."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def put(self, writer: str, holders: set[str]) -> None:
        """Record the nodes that hold a writer's replicas. Raises ClusterUnavailableError."""
        await self._records.put(f"{PREFIX}/{writer}", msgspec.json.encode(sorted(holders)))

    async def is_holder(self, writer: str, node: str) -> bool:
        """Return whether a node's replicas are current. Raises ClusterUnavailableError, also if no record exists: these
        replicas may be the only ones."""
        raw = await self._records.get(f"{PREFIX}/{writer}")
        if not raw:
            raise ClusterUnavailableError(
                f"record {PREFIX}/{writer}",
                why="the record is missing, and no other node knows the current replicas",
            )
        try:
            return node in decode_json(raw, list[str])
        except msgspec.MsgspecError as error:
            raise ClusterUnavailableError(f"record {PREFIX}/{writer}", why=str(error)) from error
