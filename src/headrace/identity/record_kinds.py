"""The kinds of records that a cluster has, by their keys: who may seal one, and what it means that one is gone.

    nodes/ID                who is there; leased
    mounts/PATH, pins/PATH  what is attached, and pinned; also by operators
    jobs/ID                 what all nodes do together; also by operators
    jobs/ID/parts/NODE      what a node did of it; leased
    written/NODE            where a node wrote what no origin has yet
    copies/NODE             who has copies of that
    rights/FOLDER           who makes new names there; leased, and not sealed

A right is not sealed: who can write to etcd could as well take the record away. Its holder looks whether it is there.
A key of another kind is neither written nor believed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RecordKind:
    """owner: the id of the only node that seals it; "": any node does. by_operators: they do, too. is_leased: it goes
    with the node that wrote it. is_lasting: nobody takes it away but by a sealed end, or by a record that says so.
    is_ordered: of two, the one that was sealed later counts, for as long as the earlier one's seal holds. is_object:
    a JSON object, and not another value."""

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
    "jobs": RecordKind(by_operators=True),
    "written": RecordKind(is_lasting=True),
    "copies": RecordKind(is_lasting=True, is_object=False),
    "rights": RecordKind(is_leased=True, is_ordered=False, is_object=False, is_sealed=False),
}
_PART = RecordKind(is_leased=True, is_ordered=False)
_OWNED = ("nodes", "written", "copies")
_NAMED = (*_OWNED, "jobs", "rights")
"""And the root has a mount and a pin as any path has."""


def kind_of(key: str) -> RecordKind | None:
    """None for a key that no part of Headrace writes."""
    word, slash, rest = key.partition("/")
    kind = _KINDS.get(word)
    if kind is None or not slash or (word in _NAMED and not rest):
        return None
    if word == "jobs":
        _, part, node = rest.partition("/parts/")
        if part:
            return replace(_PART, owner=node) if node else None
        return kind
    return replace(kind, owner=rest) if word in _OWNED else kind
