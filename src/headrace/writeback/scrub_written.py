"""Read the clean files of the upper layer for the scrub.

Their writers store no checksums, which would slow each `write`. The scrub notes the checksums of a file when it first
reads it, and compares them with the disk from then on. It skips a dirty file, and one that is never persisted. On the
node's loop, but for `read_sums`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.disk_reader import checksums_on_disk
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

ROWS_PER_QUERY = 1000
UNREADABLE = -1


class WrittenFilesOfScrub:
    """Compare clean files with their checksums. locate: returns where a path of the layer lies. drop: removes a damaged
    file from the layer if the origin still has it and nobody has it open; returns whether it did."""

    def __init__(
        self,
        known: SyncJournal,
        locate: Callable[[bytes], SafePath],
        *,
        drop: Callable[[JournalRecord], Awaitable[bool]],
    ) -> None:
        self._journal = known
        self.locate = locate
        self.drop = drop

    def rows(self) -> Iterator[JournalRecord]:
        """Yield the rows of all clean files. Rows may change between two steps."""
        after = b""
        while rows := self._journal.clean_files(after, ROWS_PER_QUERY):
            yield from rows
            after = rows[-1].path

    def is_damaged(self, row: JournalRecord, sums: list[int] | None) -> bool:
        """Return whether a file's bytes changed since the scrub first met it. sums: of `read_sums`. The first ones are
        noted."""
        if sums is None or self._journal.get(row.path) != row:
            return False
        if UNREADABLE in sums:
            return True
        noted = self._journal.sums(row)
        if noted is None:
            self._journal.note_sums(row, sums)
            return False
        return noted != sums

    def ended(self) -> None:
        """Note that all files were looked at."""
        self._journal.forget_old_sums()


def read_sums(
    safe_path: SafePath, row: JournalRecord, before_read: Callable[[int], None]
) -> list[int] | None:
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
