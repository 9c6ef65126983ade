"""Describe the cluster as one node sees it at one moment. Values only: each change makes another view with a higher
epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from headrace.base.namespace_path import check_node_id
from headrace.ring.ring import Ring, RingMember, key_of

SEGMENT_BYTES = 1 << 30
"""Size of the segments by which large files are spread. A smaller file belongs to its owners as a whole."""
FORMER_MAX = 4
"""Number of previous rings whose owners may still have the data that they owned then."""


class NodeInfo(msgspec.Struct, frozen=True):
    """Hold the record of a node in the cluster, which the node itself writes as JSON.

    instance: random id of one run of the node. address: "host:port" where peers connect. capacity_bytes: of its cache,
    which decides its share of the data. version: of the program; protocol: of the peers' messages. draining: it serves
    its data, but owns none any longer. api: URL of its REST API, for programs on other hosts; "" for none. writes: its
    write modes, percent-encoded; "" if its version has none here.
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
    writes: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no node writes, because a process that can write records can write any."""
        check_node_id(self.id)
        if not 0 <= self.capacity_bytes < 1 << 62:
            raise ValueError(f"a capacity of {self.capacity_bytes} bytes")
        if not 0 <= self.protocol < 1 << 31:
            raise ValueError(f"protocol {self.protocol}")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Hold the members and their ring. epoch: grows with every change of the members on this node; epochs of two nodes
    cannot be compared. former: previous rings, the newest first."""

    epoch: int
    nodes: Mapping[str, NodeInfo]
    ring: Ring
    former: tuple[Ring, ...] = field(default=())

    def owners(self, path: bytes, segment: int = 0, *, replicas: int = 1) -> tuple[NodeInfo, ...]:
        """Return the owners of a segment, the primary first. path: in the namespace, with its leading slash."""
        return tuple(self.nodes[member.id] for member in self.ring.owners(key_of(path, segment), replicas))

    def former_owners(self, path: bytes, segment: int = 0, *, replicas: int = 1) -> tuple[NodeInfo, ...]:
        """Return members that owned the segment in a previous ring and do not now, the latest first."""
        key = key_of(path, segment)
        current = {member.id for member in self.ring.owners(key, replicas)}
        former: dict[str, NodeInfo] = {}
        for ring in self.former:
            for member in ring.owners(key, replicas):
                if member.id in self.nodes and member.id not in current:
                    former.setdefault(member.id, self.nodes[member.id])
        return tuple(former.values())


def alone(info: NodeInfo) -> ClusterView:
    """Return the view of a node that has no cluster: it owns everything."""
    return ClusterView(0, {info.id: info}, Ring([_member(info)]))


def next_view(previous: ClusterView | None, nodes: Mapping[str, NodeInfo], *, epoch: int) -> ClusterView:
    """Return the view after a change. If the members of the ring changed, the view keeps the previous rings. If all
    nodes are draining, they remain owners."""
    owning = [info for info in nodes.values() if not info.draining] or list(nodes.values())
    members = tuple(sorted((_member(info) for info in owning), key=lambda member: member.id))
    if previous is not None and previous.ring.members == members:
        return ClusterView(epoch, dict(nodes), previous.ring, previous.former)
    former = () if previous is None else (previous.ring, *previous.former)[:FORMER_MAX]
    ring = Ring(members, previous=None if previous is None else previous.ring)
    return ClusterView(epoch, dict(nodes), ring, former)


def _member(info: NodeInfo) -> RingMember:
    return RingMember(info.id, info.capacity_bytes, info.zone)
