"""Choose the peers to ask for bytes that this node does not have, and their order, without I/O.

    local → nearest copy → owner → other copies → origin

An owner reads from the origin itself. After a change of the members it first asks the former owners and the other
replicas for cached bytes. Other nodes ask the former owner first for a while: the handover to the new owner is running,
and readers need not wait behind it.

A file with several copies is asked for at one of them, so that its primary owner serves no more than the others: at a
copy in the reader's zone, or else at any. Each reader has its own choice. It asks for cached bytes only: the primary
owner alone reads the origin for others, so that each byte leaves the origin once.

Peers never forward requests: they send cached bytes, or read them from the origin. No two nodes therefore wait for each
other.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.ring.ownership import Ownership
from headrace.ring.ring import key_of
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
    ownership: Ownership,
    for_peer: bool,
    moving: bool,
    handing_over: bool = False,
) -> Route:
    """Return the route of a range, which lies in one segment. for_peer: a peer requested it. moving: members changed
    recently, so former owners may have bytes that the owners lack. handing_over: they changed so recently that former
    owners most likely have them."""
    segment = start // SEGMENT_BYTES
    owners = ownership.owners(view, path, segment)
    owned = any(owner.id == me for owner in owners)
    others = [owner for owner in owners if owner.id != me]
    if for_peer or (owners and owners[0].id == me):
        before = ownership.former_owners(view, path, segment) if moving else ()
        have = [*others, *before] if moving else []
        return Route(tuple(Hop(node, cached_only=True) for node in have if node.id != me), owned)
    hops = [Hop(owner, cached_only=False) for owner in others]
    if len(others) > 1:
        near = _nearest(view, me, key_of(path, segment), others)
        if near is not owners[0]:
            hops.insert(0, Hop(near, cached_only=True, early=True))
    if handing_over:
        before = ownership.former_owners(view, path, segment)
        hops = [Hop(node, cached_only=True, early=True) for node in before[:1] if node.id != me] + hops
    return Route(tuple(hops), owned)


def _nearest(view: ClusterView, me: str, key: int, owners: list[NodeInfo]) -> NodeInfo:
    """Return the owner to ask first: one in the zone of this node if there is one. Among equals each pair of a reader
    and a segment has its own choice (rendezvous hashing)."""
    own = view.nodes.get(me)
    zone = "" if own is None else own.zone

    def rank(owner: NodeInfo) -> tuple[bool, int]:
        return owner.zone != zone, key_of(f"{me}/{owner.id}".encode(), key)

    return min(owners, key=rank)
