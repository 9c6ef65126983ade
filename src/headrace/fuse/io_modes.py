"""Node ids, their incarnations, and which I/O mode the kernel has each inode in.

The kernel's rules (iomode.c): an inode with a passthrough open takes no cached open and no other backing id;
an inode with a cached open (also one that lives on as a mapping only) takes no passthrough open: EIO to the
user. So the mode of an open is decided here, under one lock, from the opens that the kernel has not yet
released.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from headrace.base.model import FILE_ID_MAX, FileId, Kind
from headrace.fuse.abi import RESENT_BIT
from headrace.fuse.handover_state import HandoverState

NODE_SHIFT = 48
UPPER = 1 << 47
"""Ids of the upper layer have this bit; those of the index are below it. Such a file is always open in one mode, so it
has no incarnations."""
IDLE_BACKINGS_MAX = 16384
REFUSED_MAX = 1 << 20
INCARNATIONS_TOLD_MAX = 256


class Backing:
    __slots__ = ("backing_id", "damaged", "evicted", "opens", "slot")

    def __init__(self, backing_id: int, slot: int, opens: int) -> None:
        self.backing_id = backing_id
        self.slot = slot
        self.opens = opens
        self.evicted = self.damaged = False


class InodeIoModes:
    """unregister: gives a backing id back to the kernel."""

    def __init__(
        self, ledger: HandoverState, unregister: Callable[[int], None], *, idle_max: int = IDLE_BACKINGS_MAX
    ) -> None:
        self._ledger = ledger
        self._unregister = unregister
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._backings: dict[int, Backing] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._cached_opens: dict[int, int] = {}
        self._incarnations: dict[int, int] = {}
        self._refused: set[int] = set()
        self._start = ledger.next_incarnation()
        self._adopt()

    def _adopt(self) -> None:
        for slot, node, backing_id, opens in self._ledger.found():
            self._backings[node] = Backing(backing_id, slot, opens)
            self._incarnations[node & FILE_ID_MAX] = node >> NODE_SHIFT
            if opens == 0:
                self._idle[node] = None

    def node_of(self, id: FileId, kind: Kind) -> int:
        if kind is Kind.DIRECTORY or id & UPPER:
            return id
        return self._incarnations.get(id, self._start) << NODE_SHIFT | id

    def is_current(self, node: int) -> bool:
        return (
            bool(node & UPPER)
            or self._incarnations.get(node & FILE_ID_MAX, self._start) == node >> NODE_SHIFT
        )

    def open_hit(self, node: int) -> int:
        """The backing id of a node that has one, with one more open; 0: none. The hot way of OPEN."""
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
            self._ledger.count(backing.slot, opens)
            return backing.backing_id

    def release_passthrough(self, node: int, unique: int, *, keep: bool = True) -> bool:
        """False: the node has no backing id. unique: of the request, which the session before may have counted, and
        died before it could say so. keep: when nobody has it open, for the next open."""
        with self._lock:
            if unique & RESENT_BIT:
                unique &= ~RESENT_BIT
                if unique in self._ledger.releases:
                    return True
            backing = self._backings.get(node)
            if backing is None:
                return False
            self._ledger.note_release(unique)
            backing.opens = opens = max(0, backing.opens - 1)
            self._ledger.count(backing.slot, opens)
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
        """Whether a passthrough open fits: the node is this session's, and no cached open of it lives."""
        return self.is_current(node) and node not in self._cached_opens

    def open_passthrough(self, node: int, register: Callable[[], int]) -> int:
        """A backing id with one open; 0: a cached open came first, or the ledger is full."""
        with self._lock:
            backing = self._backings.get(node)
            if backing is not None and backing.evicted and backing.opens == 0:
                self._drop(node)
                backing = None
            if backing is None:
                if node in self._cached_opens:
                    return 0
                backing_id = register()
                slot = self._ledger.add(node, backing_id)
                if slot < 0:
                    self._unregister(backing_id)
                    return 0
                self._backings[node] = Backing(backing_id, slot, 1)
                return backing_id
        return self.open_hit(node)

    def open_cached(self, node: int) -> int:
        """0: one more cached open. Else the node has passthrough opens, and this is one more of them."""
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
        """True: answer ESTALE, the name has a new node id now. False: this node was refused before, so
        whoever asks can't look the name up again (/proc/self/fd/N) and must be served in the mode the node
        is in."""
        with self._lock:
            if node in self._refused:
                return False
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused.add(node)
            if self.is_current(node):
                id = node & FILE_ID_MAX
                self._incarnations[id] = self._ledger.raise_incarnation((node >> NODE_SHIFT) + 1)
            return True

    def evict(self, ids: Iterable[int]) -> None:
        """Gives back what holds the space of dropped cache files; open files keep theirs until their last
        release."""
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
        """As evict, of files whose bytes were wrong: who opens one from now on gets another node, and other bytes. All
        nodes under which the kernel may have pages of them."""
        damaged = list(ids)
        self.evict(damaged)
        with self._lock:
            for id in damaged:
                node = self.node_of(FileId(id), Kind.FILE)
                backing = self._backings.get(node)
                if backing is not None:
                    backing.damaged = True
                    self._incarnations[id] = self._ledger.raise_incarnation((node >> NODE_SHIFT) + 1)
            return [
                incarnation << NODE_SHIFT | id
                for id in damaged
                for newest in (self._incarnations.get(id, self._start),)
                for incarnation in range(max(0, newest - INCARNATIONS_TOLD_MAX), newest + 1)
            ]

    def is_damaged(self, node: int) -> bool:
        """Its backing file has bytes that were wrong, and somebody has it open."""
        backing = self._backings.get(node)
        return backing is not None and backing.damaged

    def ids(self) -> list[int]:
        """Of the files that have backing ids."""
        with self._lock:
            return [node & FILE_ID_MAX for node in self._backings]

    def _drop(self, node: int) -> None:
        backing = self._backings.pop(node)
        self._idle.pop(node, None)
        self._ledger.remove(backing.slot)
        self._unregister(backing.backing_id)

    def counts(self) -> tuple[int, int]:
        """Registered backing ids; nodes open in cached mode."""
        return len(self._backings), len(self._cached_opens)
