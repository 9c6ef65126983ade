"""Choose which nodes hold the replicas of a node's writes, by the view alone. A record of the cluster says which nodes
hold them now, so that a node with old replicas knows that they are worthless."""

from __future__ import annotations

import msgspec
import xxhash

from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.records import Records
from headrace.ring.view import ClusterView, NodeInfo

PREFIX = "copies"


def choose_replicas(view: ClusterView, me: str) -> list[NodeInfo]:
    """Return all nodes that can hold this node's replicas, in the order of choice. Nodes follow each other on a ring by
    a hash of their ids: each is the first choice of only one other, and a node that joins or leaves changes one choice.
    Nodes of other zones come first."""
    own = view.nodes.get(me)
    zone = own.zone if own is not None else ""
    able = [node for node in view.nodes.values() if node.id != me and not node.draining]
    here = _place(me)
    able.sort(key=lambda node: (_place(node.id) - here) % (1 << 64))
    able.sort(key=lambda node: bool(zone) and node.zone == zone)
    return able


def _place(id: str) -> int:
    return xxhash.xxh3_64_intdigest(id.encode())


class ReplicaSetRecords:
    def __init__(self, records: Records) -> None:
        self._records = records

    async def put(self, writer: str, holders: set[str]) -> None:
        """Record the holders of a writer's replicas. ClusterUnavailableError."""
        await self._records.put(f"{PREFIX}/{writer}", msgspec.json.encode(sorted(holders)))

    async def is_holder(self, writer: str, node: str) -> bool:
        """Return whether a node's replicas are current. ClusterUnavailableError, also where no record exists: the
        replicas may be all that there is."""
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
