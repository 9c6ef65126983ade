"""Assign node ids and their incarnations, and choose the I/O mode of each inode in the kernel.

The kernel's rules are in its iomode.c. An inode with a passthrough open accepts no cached open and no other backing
id. An inode with a cached open (also one that exists only as a mapping) accepts no passthrough open: the user gets
EIO. So the mode of an open is chosen here, under one lock, from the opens that the kernel has not yet released.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from headrace.base.model import FILE_ID_MAX, FileId, Kind
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.node_ids import NODE_SHIFT, UPPER

IDLE_BACKINGS_MAX = 16384
"""Most backing ids that stay registered while nobody has the file open."""
REFUSED_MAX = 1 << 20
"""Most nodes that are remembered as refused with ESTALE once."""
INVALIDATED_INCARNATIONS_MAX = 256
"""Most incarnations of a damaged file whose pages are invalidated in the kernel, newest first."""


class Backing:
    """Holds one registered backing id, its slot in the handover state and its count of opens."""

    __slots__ = ("backing_id", "damaged", "evicted", "opens", "slot")

    def __init__(self, backing_id: int, slot: int, opens: int) -> None:
        self.backing_id = backing_id
        self.slot = slot
        self.opens = opens
        self.evicted = self.damaged = False


class InodeIoModes:
    """Decides for each open whether it is passthrough or cached, and counts opens. `unregister` releases a backing
    id."""

    def __init__(
        self, handover: HandoverState, unregister: Callable[[int], None], *, idle_max: int = IDLE_BACKINGS_MAX
    ) -> None:
        self._handover = handover
        self._unregister = unregister
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._backings: dict[int, Backing] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._cached_opens: dict[int, int] = {}
        self._incarnations: dict[int, int] = {}
        self._refused: set[int] = set()
        self._start = handover.next_incarnation()
        self.generations = handover.generations
        self.exchanges = handover.exchanges
        self.inherits = handover.init_flags != 0
        """True if an earlier session may have opened files that are open still."""
        self._adopt()

    def _adopt(self) -> None:
        for slot, node, backing_id, opens in self._handover.inherited_slots():
            backing = self._backings[node] = Backing(abs(backing_id), slot, opens)
            backing.evicted = backing.damaged = backing_id < 0
            id, incarnation = node & FILE_ID_MAX, node >> NODE_SHIFT
            self._incarnations[id] = max(incarnation, self._incarnations.get(id, 0))
            if opens == 0:
                self._idle[node] = None
        for node, backing in list(self._backings.items()):
            if backing.damaged and self.is_current(node):
                del self._incarnations[node & FILE_ID_MAX]  # later opens get a new node
            if backing.damaged and backing.opens == 0:
                self._drop(node)

    def node_of(self, id: FileId, kind: Kind) -> int:
        """Return the node id of an id. A file of the upper layer is always open in one mode, so it has no
        incarnations."""
        if kind is Kind.DIRECTORY or id & UPPER:
            return id
        return self._incarnations.get(id, self._start) << NODE_SHIFT | id

    def is_current(self, node: int) -> bool:
        return (
            bool(node & UPPER)
            or self._incarnations.get(node & FILE_ID_MAX, self._start) == node >> NODE_SHIFT
        )

    def open_hit(self, node: int) -> int:
        """Count an open of a node that has a backing id, and return that id; otherwise return 0. This is the hot path
        of OPEN."""
        with self._lock:
            backing = self._backings.get(node)
            if backing is None:
                return 0
            opens = backing.opens
            if backing.evicted and (opens == 0 or backing.damaged):
                return 0
            if opens == 0:
                self._idle.pop(node, None)
            backing.opens = opens = opens + 1
            self._handover.count(backing.slot, opens)
            return backing.backing_id

    def release_passthrough(self, node: int, unique: int, *, keep: bool = True) -> bool:
        """Count one open less. Return False when the node has no backing id. `unique` identifies the request: it may
        be counted already, by a session that died before its reply. `keep` keeps the backing id registered after
        the last release, for the next open."""
        with self._lock:
            if self._handover.releases.is_repeated(unique):
                return True
            backing = self._backings.get(node)
            if backing is None:
                return False
            self._handover.releases.record(unique)
            backing.opens = opens = max(0, backing.opens - 1)
            self._handover.count(backing.slot, opens)
            backing.evicted |= not keep
            if opens:
                return True
            if backing.evicted:
                self._drop(node)
                return True
            self._idle[node] = None
            if len(self._idle) > self._idle_max:
                self._drop(next(iter(self._idle)))
            return True

    def may_pass(self, node: int) -> bool:
        """Return whether a passthrough open is allowed: the node id is current, and it has no cached open."""
        return self.is_current(node) and node not in self._cached_opens

    def open_passthrough(self, node: int, register: Callable[[], int]) -> int:
        """Count one open and return its backing id; 0 when a cached open came first, or no slot is free."""
        with self._lock:
            backing = self._backings.get(node)
            if backing is not None and backing.evicted and backing.opens == 0:
                self._drop(node)
                backing = None
            if backing is None:
                if node in self._cached_opens:
                    return 0
                backing_id = register()
                slot = self._handover.add(node, backing_id)
                if slot < 0:
                    self._unregister(backing_id)
                    return 0
                self._backings[node] = Backing(backing_id, slot, 1)
                return backing_id
        return self.open_hit(node)

    def open_cached(self, node: int) -> int:
        """Count a cached open and return 0. For a node with passthrough opens, count one more and return its id."""
        with self._lock:
            backing = self._backings.get(node)
            if backing is None or backing.opens == 0:
                if backing is not None:
                    self._drop(node)
                self._cached_opens[node] = self._cached_opens.get(node, 0) + 1
                return 0
        return self.open_hit(node)

    def release_cached(self, node: int) -> None:
        with self._lock:
            opens = self._cached_opens.get(node, 0)  # 0: opened through an earlier session
            if opens > 1:
                self._cached_opens[node] = opens - 1
            else:
                self._cached_opens.pop(node, None)

    def refuse(self, node: int) -> bool:
        """Return True to answer ESTALE: the name has a new node id now. Return False for a node that was refused
        before: its caller can't look the name up again (/proc/self/fd/N), and must be served in the node's mode."""
        with self._lock:
            if node in self._refused:
                return False
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused.add(node)
            if self.is_current(node):
                id = node & FILE_ID_MAX
                self._incarnations[id] = self._handover.raise_incarnation((node >> NODE_SHIFT) + 1)
            return True

    def evict(self, ids: Iterable[int]) -> None:
        """Release the backing ids of evicted cache files; that of an open file stays until its last release."""
        with self._lock:
            for id in ids:
                node = self.node_of(FileId(id), Kind.FILE)
                backing = self._backings.get(node)
                if backing is None:
                    continue
                backing.evicted = True
                if backing.opens == 0:
                    self._drop(node)

    def damage(self, ids: Iterable[int]) -> list[int]:
        """Evict files whose bytes were wrong, and give each a new node, so that later opens read other bytes. Return
        all nodes under which the kernel may have pages of them."""
        damaged = list(ids)
        self.evict(damaged)
        with self._lock:
            for id in damaged:
                node = self.node_of(FileId(id), Kind.FILE)
                backing = self._backings.get(node)
                if backing is not None:
                    backing.damaged = True
                    self._handover.mark_damaged(backing.slot)
                    self._incarnations[id] = self._handover.raise_incarnation((node >> NODE_SHIFT) + 1)
            return [
                incarnation << NODE_SHIFT | id
                for id in damaged
                for newest in (self._incarnations.get(id, self._start),)
                for incarnation in range(max(0, newest - INVALIDATED_INCARNATIONS_MAX), newest + 1)
            ]

    def is_damaged(self, node: int) -> bool:
        """Return whether the node is open with a backing file whose bytes were wrong."""
        backing = self._backings.get(node)
        return backing is not None and backing.damaged

    def ids(self) -> list[int]:
        """Return the ids of the files that have backing ids."""
        with self._lock:
            return [node & FILE_ID_MAX for node in self._backings]

    def _drop(self, node: int) -> None:
        backing = self._backings.pop(node)
        self._idle.pop(node, None)
        self._handover.remove(backing.slot)
        self._unregister(backing.backing_id)

    def counts(self) -> tuple[int, int]:
        """Return the number of registered backing ids, and of nodes that are open in cached mode."""
        return len(self._backings), len(self._cached_opens)
