"""Keep what must outlive a session process, in a memfd that the FD store holds and each session maps.

It holds what INIT negotiated, the highest incarnation ever used, and one slot for each registered backing id with its
count of opens. The session changes a slot before it replies to the kernel. After a crash a count may therefore be too
high, which only keeps the backing id too long, and never too low. A request that the kernel resends after a crash
would be applied again, so the last RELEASEs that were counted, and the last exchanges of names, are recorded. The
kernel's backing ids belong to the connection, so a new session continues to use them. So do the nodes of names that
mounts of the kernel lie on (`mountpoints.py`), and the generations of nodes (`generations.py`). One session writes at a
time.

A session may be killed within any write. So what belongs together is valid or not by one aligned word, which is stored
as a whole, through a memoryview, and last. Struct.pack_into would clear the bytes first, and store them one by one.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

from headrace.fuse import generations
from headrace.fuse.abi import RESENT_BIT
from headrace.fuse.generations import Generations

SLOTS = 65536
_HEAD = Struct("<8sQQ16s")  # magic, incarnation, init flags (0: no INIT yet), mode
_SLOT = Struct("<QiI")  # node id (0: free), backing id (negative: of a damaged file), opens
_INCARNATION, _INIT_FLAGS = 1, 2  # numbers of words
_MODE_AT, _MODE_BYTES = 24, 16
_SLOTS_AT = 64
_MAGIC = b"HRFUSE2\0"
_REQUESTS_BYTES = 64 * 8  # several: a session may die before the resent requests that an earlier one applied
_RELEASES_AT = _SLOTS_AT + SLOTS * _SLOT.size
_NAMES_AT = _RELEASES_AT + _REQUESTS_BYTES
_NAMES_HEAD_BYTES = 8  # length of what follows
NAMES_BYTES_MAX = 1 << 18
"""Most bytes of the kept names."""
_GENERATIONS_AT = _NAMES_AT + _NAMES_HEAD_BYTES + NAMES_BYTES_MAX
_EXCHANGES_AT = _GENERATIONS_AT + generations.BYTES
BYTES = _EXCHANGES_AT + _REQUESTS_BYTES


def create() -> int:
    fd = os.memfd_create("headrace-session", os.MFD_CLOEXEC)
    os.ftruncate(fd, BYTES)
    return fd


class AppliedRequests:
    """Records the last requests of one kind that were applied, for when the kernel resends them. The caller holds a
    lock. memory: one word for each request, its `unique`; 0: none."""

    def __init__(self, memory: memoryview) -> None:
        self._words = memory.cast("Q")
        inherited = self._words.tolist()
        self._inherited = frozenset(inherited)
        self._next = inherited.index(min(inherited))

    def record(self, unique: int) -> None:
        """Record a request. The next session knows it when this returns."""
        self._words[self._next] = unique & ~RESENT_BIT
        self._next = (self._next + 1) % len(self._words)

    def is_repeated(self, unique: int) -> bool:
        """Return whether the kernel resent a request that this session or an earlier one applied."""
        if not unique & RESENT_BIT:
            return False
        unique &= ~RESENT_BIT
        return unique in self._inherited or unique in self._words.tolist()


class HandoverState:
    """Reads and writes the handover state behind a descriptor; it is empty before the first session saves it."""

    def __init__(self, fd: int) -> None:
        if os.fstat(fd).st_size < BYTES:
            os.ftruncate(fd, BYTES)  # the FD store of an earlier version made it
        self._map = mmap.mmap(fd, BYTES)
        memory = memoryview(self._map)
        self._head = memory[:_SLOTS_AT].cast("Q")
        slots = memory[_SLOTS_AT:_RELEASES_AT]
        self._nodes, halves = slots.cast("Q")[::2], slots.cast("i")
        self._backing_ids, self._opens = halves[2::4], halves[3::4]
        self._names_length = memory[_NAMES_AT : _NAMES_AT + _NAMES_HEAD_BYTES].cast("Q")
        magic, self.incarnation, self.init_flags, mode = _HEAD.unpack_from(self._map)
        self.mode = mode.rstrip(b"\0").decode(errors="replace") if magic == _MAGIC else ""
        self._free: list[int] = []
        self._used: list[tuple[int, int, int, int]] = []
        self.releases = AppliedRequests(memory[_RELEASES_AT:_NAMES_AT])
        """The RELEASEs of passthrough opens. One is recorded before it is counted: if the session dies in between, the
        count is too high, not too low."""
        self.generations = Generations(memory[_GENERATIONS_AT:_EXCHANGES_AT])
        self.exchanges = AppliedRequests(memory[_EXCHANGES_AT:BYTES])
        """The renames that exchanged two names. A second exchange would undo the first."""
        # read, not mapped: a look at a page of the map would allocate it
        written = os.pread(fd, SLOTS * _SLOT.size, _SLOTS_AT).rstrip(b"\0")
        self._unused = -(-len(written) // _SLOT.size)
        """The lowest slot from which on all are free."""
        for slot in range(self._unused - 1, -1, -1):
            self._sort(slot)

    def _sort(self, slot: int) -> None:
        node, backing_id, opens = _SLOT.unpack_from(self._map, _SLOTS_AT + slot * _SLOT.size)
        if node:
            self._used.append((slot, node, backing_id, opens))
        else:
            self._free.append(slot)

    def inherited_slots(self) -> list[tuple[int, int, int, int]]:
        """Return (slot, node, backing id, opens) of each slot that an earlier session left in use. The backing id of a
        damaged file is negative."""
        return self._used

    def save(self, *, init_flags: int, mode: str) -> None:
        self.init_flags, self.mode = init_flags, mode
        self._map[_MODE_AT : _MODE_AT + _MODE_BYTES] = mode.encode().ljust(_MODE_BYTES, b"\0")
        self._head[0] = int.from_bytes(_MAGIC, "little")
        self._head[_INIT_FLAGS] = init_flags

    def next_incarnation(self) -> int:
        return self.raise_incarnation(self.incarnation + 1)

    def raise_incarnation(self, used: int) -> int:
        """Record that an incarnation is in use, and return it; it wraps after 65535 sessions of one mount."""
        self.incarnation = max(self.incarnation, used) if used < 0x10000 else 1
        self._head[_INCARNATION] = self.incarnation
        return self.incarnation if used >= 0x10000 else used

    @property
    def kept_names(self) -> bytes:
        """Return what `keep_names` stored last."""
        length = self._names_length[0]
        start = _NAMES_AT + _NAMES_HEAD_BYTES
        return self._map[start : start + min(length, NAMES_BYTES_MAX)]

    def keep_names(self, rows: bytes) -> None:
        """Replace the kept names; a session that dies meanwhile leaves none. More than NAMES_BYTES_MAX are not kept."""
        start = _NAMES_AT + _NAMES_HEAD_BYTES
        self._names_length[0] = 0
        if len(rows) <= NAMES_BYTES_MAX:
            self._map[start : start + len(rows)] = rows
            self._names_length[0] = len(rows)

    def add(self, node: int, backing_id: int) -> int:
        """Allocate a slot with one open, and return it; -1 when all slots are in use."""
        if self._free:
            slot = self._free.pop()
        elif self._unused < SLOTS:
            slot = self._unused
            self._unused += 1
        else:
            return -1
        self._backing_ids[slot] = backing_id
        self._opens[slot] = 1
        self._nodes[slot] = node
        return slot

    def count(self, slot: int, opens: int) -> None:
        self._opens[slot] = opens

    def mark_damaged(self, slot: int) -> None:
        self._backing_ids[slot] = -abs(self._backing_ids[slot])

    def remove(self, slot: int) -> None:
        self._nodes[slot] = 0
        self._free.append(slot)
