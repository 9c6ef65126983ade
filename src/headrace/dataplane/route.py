"""Choose the peers to ask for bytes that this node does not have, and their order, without I/O.

    local → owner → replicas → origin

An owner reads from the origin itself. After a change of the members it first asks the former owners and the other
replicas for cached bytes. Other nodes ask the former owner first for a while: the handover to the new owner is running,
and readers need not wait behind it.

Peers never forward requests: they send cached bytes, or read them from the origin. No two nodes therefore wait for each
other.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo


@dataclass(frozen=True, slots=True)
class Hop:
    """Name a peer to ask. cached_only: it must not fetch missing bytes. early: it is asked before the owner."""

    node: NodeInfo
    cached_only: bool
    early: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """List the peers to ask, in order; the origin follows them. owned: this node is one of the owners."""

    hops: tuple[Hop, ...]
    owned: bool


def route(
    view: ClusterView,
    me: str,
    path: bytes,
    start: int,
    *,
    replicas: int,
    for_peer: bool,
    moving: bool,
    handing_over: bool = False,
) -> Route:
    """Return the route of a range, which lies in one segment. for_peer: a peer requested it. moving: members changed
    recently, so former owners may have bytes that the owners lack. handing_over: they changed so recently that former
    owners most likely have them."""
    segment = start // SEGMENT_BYTES
    owners = view.owners(path, segment, replicas=replicas)
    owned = any(owner.id == me for owner in owners)
    others = [owner for owner in owners if owner.id != me]
    if for_peer or (owners and owners[0].id == me):
        before = view.former_owners(path, segment, replicas=replicas) if moving else ()
        have = [*others, *before] if moving else []
        return Route(tuple(Hop(node, cached_only=True) for node in have if node.id != me), owned)
    hops = [Hop(owner, cached_only=False) for owner in others]
    if handing_over:
        before = view.former_owners(path, segment, replicas=replicas)
        hops = [Hop(node, cached_only=True, early=True) for node in before[:1] if node.id != me] + hops
    return Route(tuple(hops), owned)
