"""What must outlive a session process: a memfd that the holder keeps and each session maps.

It holds what INIT negotiated, the highest incarnation ever used, and one slot for each registered backing id
with its count of open files. A slot is changed before the kernel is answered: after a crash a count may be
too high (the backing id is then kept too long), never too low: what the kernel asks again after a crash is counted
again, so the last RELEASEs are noted that were counted. The kernel's backing ids belong to the connection, so a new
session goes on using them. One session writes at a time.
"""

from __future__ import annotations

import mmap
import os
from struct import Struct

SLOTS = 65536
_HEAD = Struct("<8sQQ16s")  # magic, incarnation, init flags (0: no INIT yet), mode
_SLOT = Struct("<QiI")  # node id (0: free), backing id, opens
_COUNT = Struct("<I")
_SLOTS_AT = 64
_MAGIC = b"HRFUSE2\0"
_RELEASE = Struct("<Q")  # the kernel's number of the request; 0: none
_RELEASES_AT = _SLOTS_AT + SLOTS * _SLOT.size
_RELEASES = 64  # more than one: a session may die before it came to what an earlier one had counted
BYTES = _RELEASES_AT + _RELEASES * _RELEASE.size


def create() -> int:
    fd = os.memfd_create("headrace-session", os.MFD_CLOEXEC)
    os.ftruncate(fd, BYTES)
    return fd


class HandoverState:
    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, BYTES)
        magic, self.incarnation, self.init_flags, mode = _HEAD.unpack_from(self._map)
        self.mode = mode.rstrip(b"\0").decode(errors="replace") if magic == _MAGIC else ""
        self._free: list[int] = []
        self._found: list[tuple[int, int, int, int]] = []
        releases = [unique for (unique,) in _RELEASE.iter_unpack(self._map[_RELEASES_AT:])]
        self.releases = frozenset(releases)
        """Those that earlier sessions counted last."""
        self._release = releases.index(max(releases))
        for slot in range(SLOTS - 1, -1, -1):
            self._sort(slot)

    def _sort(self, slot: int) -> None:
        node, backing_id, opens = _SLOT.unpack_from(self._map, _SLOTS_AT + slot * _SLOT.size)
        if node:
            self._found.append((slot, node, backing_id, opens))
        else:
            self._free.append(slot)

    def found(self) -> list[tuple[int, int, int, int]]:
        """(slot, node, backing id, opens) that an earlier session left."""
        return self._found

    def save(self, *, init_flags: int, mode: str) -> None:
        self.init_flags, self.mode = init_flags, mode
        self._write_head()

    def next_incarnation(self) -> int:
        return self.raise_incarnation(self.incarnation + 1)

    def raise_incarnation(self, used: int) -> int:
        """Notes that this one is in use; wraps within 16 bits, after 65535 sessions of one mount."""
        self.incarnation = max(self.incarnation, used) if used < 0x10000 else 1
        self._write_head()
        return self.incarnation if used >= 0x10000 else used

    def _write_head(self) -> None:
        _HEAD.pack_into(self._map, 0, _MAGIC, self.incarnation, self.init_flags, self.mode.encode())

    def add(self, node: int, backing_id: int) -> int:
        """A slot with one open; -1 when all are taken."""
        if not self._free:
            return -1
        slot = self._free.pop()
        _SLOT.pack_into(self._map, _SLOTS_AT + slot * 16, node, backing_id, 1)
        return slot

    def count(self, slot: int, opens: int) -> None:
        _COUNT.pack_into(self._map, _SLOTS_AT + 12 + slot * 16, opens)

    def note_release(self, unique: int) -> None:
        """Before it is counted: where we die in between, the count is too high, not too low."""
        self._release = (self._release + 1) % _RELEASES
        _RELEASE.pack_into(self._map, _RELEASES_AT + self._release * 8, unique)

    def remove(self, slot: int) -> None:
        _SLOT.pack_into(self._map, _SLOTS_AT + slot * 16, 0, 0, 0)
        self._free.append(slot)
