"""Read the clean files of the upper layer for the scrub.

Writers store no checksums, which would slow each `write`. The scrub records the checksums of a file when it first reads
it, and compares later reads with them. It skips dirty files, and files that are never persisted. Calls are on the
node's loop, except `read_sums`.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.disk_reader import checksums_on_disk
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

ROWS_PER_QUERY = 1000
"""Rows of the journal that one query returns."""
UNREADABLE = -1
"""Checksum of a block that the disk cannot read."""


class WrittenFilesOfScrub:
    """Compare clean files with their checksums. locate: returns where a path of the layer lies. drop: removes a damaged
    file from the layer if the origin still has its version and no process has it open, and returns whether it did."""

    def __init__(
        self,
        journal: SyncJournal,
        locate: Callable[[bytes], SafePath],
        *,
        drop: Callable[[JournalRecord], Awaitable[bool]],
    ) -> None:
        self._journal = journal
        self.locate = locate
        self.drop = drop

    def rows(self) -> Iterator[JournalRecord]:
        """Yield the rows of all clean files. Rows may change between two steps."""
        after = b""
        while rows := self._journal.clean_files(after, ROWS_PER_QUERY):
            yield from rows
            after = rows[-1].path

    def is_damaged(self, row: JournalRecord, sums: list[int] | None) -> bool:
        """Return whether a file's bytes changed since the scrub first read it. sums: the result of `read_sums`. The
        first result is recorded."""
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
        """Delete the checksums of files that have no row, after a pass over all files."""
        self._journal.forget_old_sums()


def read_sums(
    safe_path: SafePath, row: JournalRecord, before_read: Callable[[int], None]
) -> list[int] | None:
    """Return the checksums of a file's blocks as the disk has them, with UNREADABLE for a block that can't be read.
    Return None if the path no longer has the file of the row.

    before_read: called with the number of bytes; an exception that it raises ends the reading. Blocks; raises OSError.
    """
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
