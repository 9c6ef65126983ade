"""Reads what was written here and is persisted, for the scrub: files of the upper layer that the origin has, too.

They have no checksums from their writers: each `write` would pay for them. The scrub notes those of a file when it
meets it first, and compares them with what the disk has from then on. A file that was written since, or touched, is
dirty, and is left alone; so is what nobody persists. On the node's loop, but for `read_sums`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.checksum import block_checksum
from headrace.store.disk_reader import DiskReader
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

BATCH = 1000
UNREADABLE = -1


class WrittenFilesOfScrub:
    """at: where a path of the layer lies. drop: takes a damaged file out of the layer, when the origin has it still and
    nobody has it open; whether it did."""

    def __init__(
        self,
        known: SyncJournal,
        at: Callable[[bytes], SafePath],
        *,
        drop: Callable[[JournalRecord], Awaitable[bool]],
    ) -> None:
        self._known = known
        self.at = at
        self.drop = drop

    def rows(self) -> Iterator[JournalRecord]:
        """Of all that is clean. Rows may change between two steps."""
        after = b""
        while rows := self._known.clean_files(after, BATCH):
            yield from rows
            after = rows[-1].path

    def is_damaged(self, row: JournalRecord, sums: list[int] | None) -> bool:
        """sums: as `read_sums` returned them. Those that are met first are noted."""
        if sums is None or self._known.get(row.path) != row:
            return False
        if UNREADABLE in sums:
            return True
        noted = self._known.sums(row)
        if noted is None:
            self._known.note_sums(row, sums)
            return False
        return noted != sums

    def ended(self) -> None:
        """All of them were looked at."""
        self._known.forget_old_sums()


def read_sums(at: SafePath, row: JournalRecord, before_read: Callable[[int], None]) -> list[int] | None:
    """Of the blocks, as the disk has them; UNREADABLE for one that it does not give. None: the file is not the one that
    the row describes. In a thread. before_read: told how many bytes; what it raises ends the reading. OSError."""
    try:
        fd = at.open(os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not row.describes(os.fstat(fd)):
            return None
        reader = DiskReader(fd, row.size_bytes)
        try:
            sums = [
                _sum_of(reader, start, min(BLOCK_SIZE_BYTES, row.size_bytes - start), before_read)
                for start in range(0, row.size_bytes, BLOCK_SIZE_BYTES)
            ]
        finally:
            reader.close()
        return sums if row.describes(os.fstat(fd)) else None
    finally:
        os.close(fd)


def _sum_of(reader: DiskReader, start: int, length: int, before_read: Callable[[int], None]) -> int:
    before_read(length)
    try:
        body = reader.read(start, length)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return UNREADABLE
    return block_checksum(body) if len(body) == length else UNREADABLE
