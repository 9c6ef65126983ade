"""Which nodes hold the copies of what a node wrote. Chosen by the view alone; what is true of it now is in the
cluster's records, so that a node with copies of long ago knows that they are worth nothing."""

from __future__ import annotations

import msgspec
import xxhash

from headrace.base.decoding import decode_json
from headrace.base.errors import ClusterUnavailableError
from headrace.cluster.records import Records
from headrace.ring.view import ClusterView, NodeInfo

PREFIX = "copies"


def choose_replicas(view: ClusterView, me: str) -> list[NodeInfo]:
    """All nodes that can keep this one's copies, in the order in which they are asked to: as they follow on a ring of
    all, by a hash of the ids, so that each is the first of one other only, and one that comes or goes changes that for
    one; those of other zones before those of this one."""
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
        """ClusterUnavailableError."""
        await self._records.put(f"{PREFIX}/{writer}", msgspec.json.encode(sorted(holders)))

    async def is_holder(self, writer: str, node: str) -> bool:
        """Whether the copies that the node has are those that count. ClusterUnavailableError, also where nobody says
        so: copies may be all that there is."""
        raw = await self._records.get(f"{PREFIX}/{writer}")
        if not raw:
            raise ClusterUnavailableError(
                f"record {PREFIX}/{writer}", why="it is not there, and nobody else says who has its copies"
            )
        try:
            return node in decode_json(raw, list[str])
        except msgspec.MsgspecError as error:
            raise ClusterUnavailableError(f"record {PREFIX}/{writer}", why=str(error)) from error
