"""Define the kinds of records in a cluster, by their keys: who may seal a record, and what its absence means.

    nodes/ID                who is a member; leased
    mounts/PATH, pins/PATH  the mounts and the pins; also sealed by operators
    policies/cluster        the policy; also sealed by operators
    jobs/ID                 the jobs of all nodes; also sealed by operators
    jobs/ID/parts/NODE      the progress of a node in a job; leased
    written/NODE            where a node has dirty names
    copies/NODE             which nodes have replicas of them
    claims/FOLDER           which node has claimed an exclusive directory
    rights/FOLDER           which node has the directory lease; leased, and not sealed
    rates/NODE              what a node takes of the budgets of origins; leased
    hot/NODE                which nodes hold copies of a node's hot segments; leased
    costs/NODE              what a node read from origins in this month
    spent/departed          what nodes read that left the cluster, by months

A directory lease is not sealed, because anybody who can write to etcd could as well delete the record; its owner
checks that the record exists. A key of any other kind is neither written nor accepted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RecordKind:
    """Describes a kind. owner: the id of the only node that seals it; "": any node does. by_operators: operators do,
    too. is_leased: it is deleted when the node that wrote it leaves. is_lasting: only a sealed end, or a record with
    that meaning, removes it. is_ordered: of two versions, the one sealed later counts, as long as the seal of the
    earlier one is valid. is_object: it is a JSON object."""

    owner: str = ""
    by_operators: bool = False
    is_leased: bool = False
    is_lasting: bool = False
    is_ordered: bool = True
    is_object: bool = True
    is_sealed: bool = True


_BY_ALL = RecordKind(by_operators=True, is_lasting=True)
_KINDS = {
    "nodes": RecordKind(is_leased=True),
    "mounts": _BY_ALL,
    "pins": _BY_ALL,
    "policies": _BY_ALL,
    "jobs": RecordKind(by_operators=True),
    "written": RecordKind(is_lasting=True),
    "copies": RecordKind(is_lasting=True, is_object=False),
    "claims": RecordKind(is_lasting=True),
    "rates": RecordKind(is_leased=True, is_ordered=False),
    "hot": RecordKind(is_leased=True, is_ordered=False),
    "costs": RecordKind(is_lasting=True),
    "spent": RecordKind(is_lasting=True),
    "rights": RecordKind(is_leased=True, is_ordered=False, is_object=False, is_sealed=False),
}
_PART = RecordKind(is_leased=True, is_ordered=False)
_OWNED = ("nodes", "written", "copies", "rates", "hot", "costs")
_NAMED = (*_OWNED, "jobs", "claims", "rights", "policies", "spent")
"""Kinds whose keys need a name. The root directory has a mount and a pin as any path may, so those kinds need none."""


def kind_of(key: str) -> RecordKind | None:
    """Return the kind of a key, or None for a key that Headrace does not write."""
    prefix, slash, rest = key.partition("/")
    kind = _KINDS.get(prefix)
    if kind is None or not slash or (prefix in _NAMED and not rest):
        return None
    if prefix == "jobs":
        _, part, node = rest.partition("/parts/")
        if part:
            return replace(_PART, owner=node) if node else None
        return kind
    return replace(kind, owner=rest) if prefix in _OWNED else kind
