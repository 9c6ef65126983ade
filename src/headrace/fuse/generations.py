"""Keep the generations of nodes where the next session finds them.

The disk's file system gives the inode number of a removed file to a new one, perhaps before the kernel has forgotten
the old node. The new file then has another generation. The kernel compares the generation of each lookup with that of
the inode that it has. If they differ, each later call on an open file of that inode fails with EIO (fuse_stale_inode).
So a session repeats the generations that earlier ones sent.

When a file loses its last name, the next generation is counted at once, for whatever file has the number next. The
removed file may still be open when the session dies, and then its number is free.
"""

from __future__ import annotations

from struct import Struct

_HEAD = Struct(
    "<QI4x"
)  # number of slots that were ever used; the generation that nodes begin with, 0: no session yet
_SLOT = Struct("<QII")  # node id (0: free), renewals, 1: the file was removed and no later one was sent
SLOTS = 65536
BYTES = _HEAD.size + SLOTS * _SLOT.size


class Generations:
    """Counts how often each node became another file. The caller holds a lock. memory: BYTES bytes that outlive the
    session, zeros at first."""

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._memory = memory
        self._renewals: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._inherited: dict[int, None] = {}
        """Nodes of which an earlier session may have sent lookups. How many the kernel has is not known."""
        self._removed: set[int] = set()
        self._used: int
        self._first: int
        self._used, self._first = _HEAD.unpack_from(memory)
        self.inherits = self._first != 0
        """True if an earlier session sent nodes to the kernel."""
        for slot in range(min(self._used, SLOTS)):
            node, renewals, removed = _SLOT.unpack_from(memory, _offset(slot))
            if removed:
                self._removed.add(node)
            if node:
                self._renewals[node], self._slots[node], self._inherited[node] = renewals, slot, None
            else:
                self._free.append(slot)

    def begin_at(self, of_index: int) -> int:
        """Return the generation that all nodes begin with: that of the index when the first session began. A node that
        rebuilt its index since has another one, and the files of the upper layer are the same."""
        if not self._first:
            self._first = of_index & 0xFFFFFFFF
            self._write_head()
        return self._first

    def of(self, node: int) -> int:
        """Return how often a node became another file. Its generation is that much above the first one."""
        return self._renewals.get(node, 0)

    def renew(self, node: int) -> None:
        """Count that a node is another file now. The next session knows it when this returns."""
        self._removed.discard(node)
        self._count(node)

    def remove(self, node: int, *, counted: bool) -> None:
        """Record that the file of a node has no name any more, and count the next one. The next session knows it when
        this returns. counted: this session has counted all lookups of the node."""
        self._removed.add(node)
        self._count(node)
        if not counted and node in self._slots:
            self._inherited[node] = None

    def is_removed(self, node: int) -> bool:
        """Return whether the file of a node was removed, and the kernel knows no later one."""
        return node in self._removed

    def sent(self, node: int) -> None:
        """Record that the kernel is about to learn which file a node is now."""
        if node in self._removed:
            self._removed.discard(node)
            self._write(node)

    def _count(self, node: int) -> None:
        self._renewals[node] = (self.of(node) + 1) & 0xFFFFFFFF
        slot = self._slots[node] if node in self._slots else self._free_slot()
        if slot >= 0:
            self._slots[node] = slot
            self._write(node)

    def _write(self, node: int) -> None:
        slot = self._slots.get(node, -1)
        if slot >= 0:
            _SLOT.pack_into(self._memory, _offset(slot), node, self.of(node), node in self._removed)

    def forget(self, node: int) -> None:
        """Drop a node that the kernel has forgotten. One of an earlier session stays: the kernel may have more lookups
        of it than this session counted."""
        if node in self._renewals and node not in self._inherited:
            self._drop(node)

    def _drop(self, node: int) -> None:
        del self._renewals[node]
        self._removed.discard(node)
        slot = self._slots.pop(node, -1)
        if slot >= 0:
            _SLOT.pack_into(self._memory, _offset(slot), 0, 0, 0)
            self._free.append(slot)

    def _free_slot(self) -> int:
        """Return a free slot; -1 when all are in use."""
        if not self._free and self._used < SLOTS:
            self._used += 1
            self._write_head()
            return self._used - 1
        if not self._free and self._inherited:
            oldest = next(iter(self._inherited))
            del self._inherited[oldest]
            self._drop(oldest)
        return self._free.pop() if self._free else -1

    def _write_head(self) -> None:
        _HEAD.pack_into(self._memory, 0, self._used, self._first)


def _offset(slot: int) -> int:
    return _HEAD.size + slot * _SLOT.size
