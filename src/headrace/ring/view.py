"""The cluster as one node sees it at one moment. Values only: a change is another view with a higher epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.base.namespace_path import check_node_id
from headrace.ring.ring import Ring, RingMember, key_of

SEGMENT_BYTES = 1 << 30
"""Large files are spread by segments of this size; smaller ones belong to their owners whole."""
FORMER_MAX = 4
"""Rings before this one whose owners may still have what they owned then."""


class NodeInfo(msgspec.Struct, frozen=True):
    """What a node says of itself; its record in the cluster, as JSON.

    instance: random, of one run of the node. address: "host:port" where peers reach it. capacity_bytes: of its cache;
    its share of the data follows from it. version: of the program; protocol: of the peers' messages. draining: it
    serves what it has, and owns nothing any more. api: URL of its REST API, for programs of other hosts; "": none.
    """

    id: str
    instance: str
    address: str
    zone: str
    capacity_bytes: int
    version: str
    protocol: int
    draining: bool = False
    api: str = ""

    def __post_init__(self) -> None:
        """Refuse what no node says of itself: whoever can write records can write any."""
        check_node_id(self.id)
        if not 0 <= self.capacity_bytes < 1 << 62:
            raise ValueError(f"a capacity of {self.capacity_bytes} bytes")
        if not 0 <= self.protocol < 1 << 31:
            raise ValueError(f"protocol {self.protocol}")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """epoch: grows with every change of the members, on this node; those of two nodes are not to be compared. former:
    rings before this one, the newest first."""

    epoch: int
    nodes: Mapping[str, NodeInfo]
    ring: Ring
    former: tuple[Ring, ...] = field(default=())

    def owners(self, path: bytes, segment: int = 0, *, replicas: int = 1) -> tuple[NodeInfo, ...]:
        """Primary first. path: in the namespace, with its leading slash."""
        return tuple(self.nodes[one.id] for one in self.ring.owners(key_of(path, segment), replicas))

    def former_owners(self, path: bytes, segment: int = 0, *, replicas: int = 1) -> tuple[NodeInfo, ...]:
        """Nodes that are still there, owned it in an earlier ring, and don't now; the latest first."""
        key = key_of(path, segment)
        now = {one.id for one in self.ring.owners(key, replicas)}
        found: dict[str, NodeInfo] = {}
        for ring in self.former:
            for one in ring.owners(key, replicas):
                if one.id in self.nodes and one.id not in now:
                    found.setdefault(one.id, self.nodes[one.id])
        return tuple(found.values())


def alone(info: NodeInfo) -> ClusterView:
    """The view of a node that has no cluster: it owns everything."""
    return ClusterView(0, {info.id: info}, Ring([_member(info)]))


def next_view(before: ClusterView | None, nodes: Mapping[str, NodeInfo], *, epoch: int) -> ClusterView:
    """The view after a change. The rings before are kept where the members changed. Nobody but draining nodes: then
    they go on owning."""
    taking = [info for info in nodes.values() if not info.draining] or list(nodes.values())
    members = tuple(sorted((_member(info) for info in taking), key=lambda member: member.id))
    if before is not None and before.ring.members == members:
        return ClusterView(epoch, dict(nodes), before.ring, before.former)
    former = () if before is None else (before.ring, *before.former)[:FORMER_MAX]
    ring = Ring(members, before=None if before is None else before.ring)
    return ClusterView(epoch, dict(nodes), ring, former)


def _member(info: NodeInfo) -> RingMember:
    return RingMember(info.id, info.capacity_bytes, info.zone)
