"""Hold the upper layer of a node together with its sync journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from headrace.base.namespace_path import split
from headrace.base.write_modes import WriteMode, WriteModes
from headrace.overlay.upper import Upper
from headrace.writeback.sync_journal import JournalRecord, SyncJournal
from headrace.writeback.write_ahead import WriteAhead


@dataclass(frozen=True, slots=True)
class WritableLayer:
    """Hold an upper layer that a node persists. journal: records what the origins have of it. write_ahead: flushes the
    journal before an origin changes. threads: run longer work on the disk."""

    upper: Upper
    journal: SyncJournal
    modes: WriteModes
    write_ahead: WriteAhead
    threads: Executor

    def persists(self, path: bytes) -> bool:
        """Return whether the mode of a path persists it."""
        return self.modes.of(path) in (WriteMode.BACK, WriteMode.THROUGH)

    def is_exclusive(self, path: bytes) -> bool:
        """Return whether programs change a path without a session and without the layer's lock. There no marker may
        stand for a name that does not exist, since they would see it, and no file may leave the layer."""
        return self.modes.is_exclusive(path)

    def note_directories_above(self, path: bytes) -> None:
        """Record the directories of an exclusive one that an upload or a new directory below them makes at the origin,
        unless they are recorded. Programs may remove one before its own turn comes: no marker would stand for it, so
        without a row it would stay at the origin."""
        directory, _ = split(path)
        while self.is_exclusive(directory) and directory not in self.modes.exclusive_tops:
            row = self.journal.get(directory)
            if row is not None and not row.is_absent:
                return
            status = self.upper.at(directory).seen()
            inode = 0 if status is None else status.st_ino
            self.journal.note(JournalRecord.made(directory, inode, row, begun=True))
            directory, _ = split(directory)

    async def in_thread(self, work: Callable[..., object], *arguments: object):  # type: ignore[no-untyped-def]
        """Run a call in `threads`."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)

    async def close(self) -> None:
        """Wait for the flushes that were requested, then close the journal and the layer, and end the threads."""
        await self.write_ahead.stop()
        self.journal.close()
        self.upper.close()
        self.threads.shutdown(wait=False)
