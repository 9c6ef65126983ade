"""Reads what was written here and is persisted, for the scrub: files of the upper layer that the origin has, too.

They have no checksums from their writers: each `write` would pay for them. The scrub notes those of a file when it
meets it first, and compares them with what the disk has from then on. A file that was written since, or touched, is
dirty, and is left alone; so is what nobody persists. On the node's loop, but for `read_sums`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.disk_reader import checksums_on_disk
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

BATCH = 1000
UNREADABLE = -1


class WrittenFilesOfScrub:
    """at: where a path of the layer lies. drop: takes a damaged file out of the layer, when the origin has it still and
    nobody has it open; whether it did."""

    def __init__(
        self,
        known: SyncJournal,
        locate: Callable[[bytes], SafePath],
        *,
        drop: Callable[[JournalRecord], Awaitable[bool]],
    ) -> None:
        self._known = known
        self.locate = locate
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


def read_sums(safe_path: SafePath, row: JournalRecord, before_read: Callable[[int], None]) -> list[int] | None:
    """Return the checksums of the blocks as the disk has them; UNREADABLE for a block that can't be read; None: the
    file is not the one that the row describes. Call it in a thread. before_read: called with the number of bytes; an
    exception that it raises ends the reading. OSError."""
    fd = row.open(safe_path)
    if fd is None:
        return None
    try:
        blocks = range(-(-row.size_bytes // BLOCK_SIZE_BYTES))
        sums = [
            UNREADABLE if checksum is None else checksum
            for checksum in checksums_on_disk(fd, row.size_bytes, blocks, before_read=before_read)
        ]
        return sums if row.describes(os.fstat(fd)) else None
    finally:
        os.close(fd)
