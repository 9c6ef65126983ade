"""Count the files that had the same inode number, and keep the counts where the next session finds them.

The disk's file system gives the inode number of a removed file to a new one, perhaps before the kernel has forgotten
the old node. So each later file of a number is another node: the count stands in the upper bits of the node id. What a
program has open stays the removed file, and a name that the kernel still knows leads to no later file.

A node id has room for 16 bits of the count. The kernel gets the rest as the generation. Should a node id come back, the
kernel fails each call on a file that is open under it with EIO (fuse_stale_inode).

When a file loses its last name, the next one is counted at once, whoever makes it. The removed file may still be open
when the session dies, and then its number is free.

The memory is made of words of 8 bytes. Each is stored as a whole, as the session may be killed at any time:

- the number of slots that were ever used
- the generation that nodes begin with; 0: no session yet
- two words for each slot: the node id of the first file of an inode number (0: free), and the count of later files
"""

from __future__ import annotations

from headrace.base.model import FILE_ID_MAX
from headrace.fuse.node_ids import NODE_SHIFT, UPPER

_USED, _FIRST = 0, 1
_HEAD_BYTES, _SLOT_BYTES = 16, 16
_GENERATION_MAX = 0xFFFFFFFF
_NODE_BITS = 16
_NODE_MASK = (1 << _NODE_BITS) - 1
_INODE_MAX = UPPER - 1
SLOTS = 65536
BYTES = _HEAD_BYTES + SLOTS * _SLOT_BYTES


class Generations:
    """Counts the later files of inode numbers. The caller holds a lock. memory: BYTES bytes that outlive the session,
    zeros at first."""

    def __init__(self, memory: memoryview | bytearray) -> None:
        self._head = memoryview(memory)[:_HEAD_BYTES].cast("Q")
        slots = memoryview(memory)[_HEAD_BYTES:].cast("Q")
        self._stored_nodes, self._stored_counts = slots[::2], slots[1::2]
        self._counts: dict[int, int] = {}
        """The count of each inode number that had a later file, by the node id of its first one."""
        self._known: dict[int, int] = {}
        """Number of nodes that the kernel knows, of each in `_counts`."""
        self._slots: dict[int, int] = {}
        self._free: list[int] = []
        self._inherited: dict[int, None] = {}
        """Keys of `_counts` for which an earlier session may have sent nodes. The kernel may know any of these."""
        self._used, self._first = self._head[_USED], self._head[_FIRST] & _GENERATION_MAX
        self.inherits = self._first != 0
        """True if an earlier session sent nodes to the kernel."""
        for slot in range(min(self._used, SLOTS)):
            first = self._stored_nodes[slot]
            if not first:
                self._free.append(slot)
                continue
            self._counts[first] = self._stored_counts[slot] & _GENERATION_MAX
            self._slots[first], self._inherited[first] = slot, None

    def begin_at(self, of_index: int) -> int:
        """Return the generation that all nodes begin with: that of the index when the first session began. A node that
        rebuilt its index since has another one, and the files of the upper layer are the same."""
        if not self._first:
            self._head[_FIRST] = self._first = of_index & _GENERATION_MAX
        return self._first

    def node_of(self, inode: int) -> int:
        """Return the node id of the newest file of an inode number."""
        first = UPPER | inode & _INODE_MAX
        return (self._counts.get(first, 0) & _NODE_MASK) << NODE_SHIFT | first

    def is_newest(self, node: int) -> bool:
        """Return whether no later file of the node's inode number was counted."""
        return node == self.node_of(node)

    def generation_of(self, node: int) -> int:
        """Return what the newest file of a node's inode number adds to the generation that nodes begin with."""
        return self._counts.get(node & FILE_ID_MAX, 0) >> _NODE_BITS

    def is_inherited(self, node: int) -> bool:
        """Return whether an earlier session counted a later file of a node's inode number."""
        return node & FILE_ID_MAX in self._inherited

    def renew(self, node: int, *, is_known: bool, is_counted: bool) -> int:
        """Count a later file of a node's inode number, and return its node id. The next session knows it when this
        returns. is_known: the kernel knows the node. is_counted: this session has counted all lookups of it."""
        first = node & FILE_ID_MAX
        if first not in self._counts:
            self._known[first] = int(is_known)
        self._counts[first] = (self._counts.get(first, 0) + 1) & _GENERATION_MAX
        slot = self._slots[first] if first in self._slots else self._free_slot()
        if slot >= 0:
            self._slots[first] = slot
            self._stored_counts[slot] = self._counts[first]
            self._stored_nodes[slot] = first
            if not is_counted:
                self._inherited[first] = None
        return self.node_of(first)

    def learn(self, node: int) -> None:
        """Record that the kernel is about to learn of a node."""
        first = node & FILE_ID_MAX
        if first in self._counts:
            self._known[first] = self._known.get(first, 0) + 1

    def forget(self, node: int) -> None:
        """Record that the kernel has forgotten a node, and drop the count with the last one. That of an earlier session
        stays: the kernel may know more nodes than this session sent."""
        first = node & FILE_ID_MAX
        if first not in self._counts:
            return
        self._known[first] = self._known.get(first, 0) - 1
        if self._known[first] <= 0 and first not in self._inherited:
            self._drop(first)

    def _drop(self, first: int) -> None:
        del self._counts[first]
        self._known.pop(first, None)
        slot = self._slots.pop(first, -1)
        if slot >= 0:
            self._stored_nodes[slot] = 0
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
