"""Say which nodes own a segment of a file. Pure: every node computes the same answer from the same view and policy.

The ring gives a path its owners, as many as the path has copies. A hot segment has further owners, its holders, which
its primary owner publishes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.ring.ring import key_of
from headrace.ring.view import ClusterView, NodeInfo


def no_holders(key: int) -> Sequence[str]:
    """Return the holders of a segment where no segment is hot."""
    return ()


@dataclass(frozen=True, slots=True)
class Ownership:
    """Places segments. copies: returns how many nodes of the ring own a path. holders: returns the ids of the nodes
    that own a segment besides, by its key."""

    copies: Callable[[bytes], int]
    holders: Callable[[int], Sequence[str]] = no_holders

    def owners(self, view: ClusterView, path: bytes, segment: int = 0) -> tuple[NodeInfo, ...]:
        """Return the owners of a segment: the primary first, then the others of the ring, then its holders."""
        key = key_of(path, segment)
        owners = [view.nodes[member.id] for member in view.ring.owners(key, self.copies(path))]
        for id in self.holders(key):
            holder = view.nodes.get(id)
            if holder is not None and not holder.draining and holder not in owners:
                owners.append(holder)
        return tuple(owners)

    def former_owners(self, view: ClusterView, path: bytes, segment: int = 0) -> tuple[NodeInfo, ...]:
        """Return members that owned the segment in a previous ring and do not now, the latest first."""
        return view.former_owners(path, segment, replicas=self.copies(path))
