"""Keep the generations of nodes where the next session finds them.

The disk's file system gives the inode number of a removed file to a new one, perhaps before the kernel has forgotten
the old node. The new file then has another generation. The kernel compares the generation of each lookup with that of
the inode that it has. If they differ, each later call on an open file of that inode fails with EIO (fuse_stale_inode).
So a session repeats the generations that earlier ones sent.

When a file loses its last name, the next generation is counted at once, for whatever file has the number next. The
removed file may still be open when the session dies, and then its number is free.

The memory is made of words of 8 bytes. Each is stored as a whole, as the session may be killed at any time:

- the number of slots that were ever used
- the generation that nodes begin with; 0: no session yet
- two words for each slot: the node id (0: free), and the renewals with the bit _REMOVED
"""

from __future__ import annotations

_USED, _FIRST = 0, 1
_HEAD_BYTES, _SLOT_BYTES = 16, 16
_GENERATION_MAX = 0xFFFFFFFF
_REMOVED = 1 << 32
"""Bit of a node whose file was removed, if no later one was sent. The renewals are below it."""
SLOTS = 65536
BYTES = _HEAD_BYTES + SLOTS * _SLOT_BYTES


class Generations:
    """Counts how often each node became another file. The caller holds a lock. memory: BYTES bytes that outlive the
    session, zeros at first."""

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._head = memoryview(memory)[:_HEAD_BYTES].cast("Q")
        slots = memoryview(memory)[_HEAD_BYTES:].cast("Q")
        self._nodes, self._states = slots[::2], slots[1::2]
        self._renewals: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._inherited: dict[int, None] = {}
        """Nodes of which an earlier session may have sent lookups. How many the kernel has is not known."""
        self._removed: set[int] = set()
        self._used, self._first = self._head[_USED], self._head[_FIRST] & _GENERATION_MAX
        self.inherits = self._first != 0
        """True if an earlier session sent nodes to the kernel."""
        for slot in range(min(self._used, SLOTS)):
            node, state = self._nodes[slot], self._states[slot]
            if not node:
                self._free.append(slot)
                continue
            self._renewals[node] = state & _GENERATION_MAX
            self._slots[node], self._inherited[node] = slot, None
            if state & _REMOVED:
                self._removed.add(node)

    def begin_at(self, of_index: int) -> int:
        """Return the generation that all nodes begin with: that of the index when the first session began. A node that
        rebuilt its index since has another one, and the files of the upper layer are the same."""
        if not self._first:
            self._head[_FIRST] = self._first = of_index & _GENERATION_MAX
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
        self._renewals[node] = (self.of(node) + 1) & _GENERATION_MAX
        slot = self._slots[node] if node in self._slots else self._free_slot()
        if slot >= 0:
            self._slots[node] = slot
            self._write(node)

    def _write(self, node: int) -> None:
        slot = self._slots.get(node, -1)
        if slot >= 0:
            self._states[slot] = self.of(node) | (_REMOVED if node in self._removed else 0)
            self._nodes[slot] = node

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
            self._nodes[slot] = 0
            self._free.append(slot)

    def _free_slot(self) -> int:
        """Return a free slot; -1 when all are in use."""
        if not self._free and self._used < SLOTS:
            self._head[_USED] = self._used = self._used + 1
            return self._used - 1
        if not self._free and self._inherited:
            oldest = next(iter(self._inherited))
            del self._inherited[oldest]
            self._drop(oldest)
        return self._free.pop() if self._free else -1
