"""Who is asked for bytes that are not here, and in which order. Pure.

    local → owner → replicas → origin

A node that owns them asks the origin itself, and before that only for what others have already: after a change of the
members, the owners of before and the other replicas. Others ask first who owned it before, for a while: the hand-over
to the new owner goes on, and readers are not to wait behind it. Nobody who is asked asks on for the asker's sake: what
a peer wants comes from here or from the origin, so two nodes can't wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo


@dataclass(frozen=True, slots=True)
class Hop:
    """cached_only: it must not fetch what it doesn't have. early: it is asked before the owner."""

    node: NodeInfo
    cached_only: bool
    early: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """hops: peers, in order; after them the origin. owned: this node is one of the owners."""

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
    """start: of the range, which lies in one segment. for_peer: a peer asked us for it. moving: members changed a
    short while ago, so that what is owned now may lie where it was owned before. handing_over: so short a while ago
    that it most likely does."""
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
