"""Clean files of the upper layer that somebody else replaced or removed at the origin: they leave the layer, and the
name means what the origin has.

A listing tells of them. It may be older than our own put, so the origin is asked for that one object before anything
goes; a file that is dirty is never touched, and one that is in use goes when it is let go of.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Iterable

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import Version
from headrace.namespace.tree import Namespace
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.upper import Upper, split
from headrace.writeback.action import attributes_of
from headrace.writeback.demotion import let_go
from headrace.writeback.sync_journal import JournalRecord, SyncJournal

log = logging.getLogger(__name__)

ASKED_TOGETHER = 32
EXPECTED_TOGETHER = 1000


class OriginChangeReconciler:
    """limit_s: of a question to the origin. on_written: told paths that mean something else now."""

    def __init__(
        self,
        namespace: Namespace,
        upper: Upper,
        known: SyncJournal,
        *,
        limit_s: float,
        on_written: Callable[[list[bytes]], None],
    ) -> None:
        self._namespace = namespace
        self._upper = upper
        self._known = known
        self._limit_s = limit_s
        self._on_written = on_written
        self._waiting: set[bytes] = set()
        self._emptied: set[bytes] = set()
        """Folders out of which such files went: they go when the index knows them no more. Not any empty folder: an
        object store has none, and then the index has none either."""

    def suspect(self, paths: Iterable[bytes]) -> bool:
        """The index changed its mind about these; whether there is something to look at."""
        self._waiting.update(path for path in paths if self._upper.at(path).exists())
        return bool(self._waiting or self._emptied)

    async def expect(self, clean: list[tuple[JournalRecord, os.stat_result]]) -> None:
        """At a start. The index may be older than the table (after a power loss, or made anew), or have a change
        that an earlier node did not live to look at: it says what this node put, so that the next listing differs
        where somebody else changed that."""
        for start in range(0, len(clean), EXPECTED_TOGETHER):
            with self._namespace.batch():
                for row, status in clean[start : start + EXPECTED_TOGETHER]:
                    entry = self._namespace.entry_at(row.path)
                    if entry is None or entry.version != row.version:
                        self._namespace.record_put(row.path, row.version, attributes_of(status))
            await asyncio.sleep(0)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    async def look(self) -> None:
        """At all that wait. What can't be told now waits on; so does what is dirty here, and was written by another
        node, too."""
        paths, self._waiting = sorted(self._waiting), set()
        self._emptied.update(directory for path in paths for directory in self._left_below(path))
        rows = [row for path in paths for row in self._clean_below(path)]
        clean = {row.path for row in rows}
        self._waiting |= {
            p for p in paths if p not in clean and self._namespace.is_pending(p) and self._is_here(p)
        }
        gate = asyncio.Semaphore(ASKED_TOGETHER)

        async def look_at(row: JournalRecord) -> None:
            async with gate:
                await self._look_at(row)

        await asyncio.gather(*(look_at(row) for row in rows))
        gone = [
            removed
            for directory in sorted(self._emptied, key=len, reverse=True)
            for removed in self._drop_empty(directory)
        ]
        if gone:
            self._on_written(gone)

    def _left_below(self, path: bytes) -> list[bytes]:
        """Folders of which files are in the cache, and not here."""
        below = [directory for directory, status in self._upper.walk(path) if stat.S_ISDIR(status.st_mode)]
        return [directory for directory in below if self._upper.has_demoted_files(directory)]

    def _clean_below(self, path: bytes) -> list[JournalRecord]:
        rows = []
        for clean_path, status in self._upper.walk(path):
            row = self._known.get(clean_path) if stat.S_ISREG(status.st_mode) else None
            if row is not None and row.describes(status):
                rows.append(row)
        return rows

    async def _look_at(self, row: JournalRecord) -> None:
        if self._namespace.is_pending(row.path):  # by another node, later than what the origin has
            self._leave(row)
            return
        entry = self._namespace.entry_at(row.path)
        if entry is not None and entry.version == row.version:
            return  # the listing brought what we put, before its answer did
        place = self._namespace.find_mount(row.path)
        if place is None:
            return
        mount, key = place
        version: Version | None = None
        try:
            version = (
                await mount.origin.head(key, deadline=Deadline.after(self._limit_s, patience_s=PATIENCE_S))
            ).version
        except PathNotFoundError:
            pass
        except HeadraceError as error:
            log.info("not asked for, again later path=%s error=%s", os.fsdecode(row.path), error)
            self._waiting.add(row.path)
            return
        if version == row.version:
            with self._upper.lock:
                if self._is_here(row.path):
                    self._namespace.record_put(row.path, version)
        else:
            self._leave(row)

    def _leave(self, row: JournalRecord) -> None:
        if let_go(self._upper, row, lambda _: True, empty_too=True):
            self._known.drop(row.path)
            self._namespace.invalidate_parent(row.path)
            self._emptied.add(split(row.path)[0])
            self._on_written([row.path])
        elif self._is_here(row.path):
            self._waiting.add(row.path)  # in use; or dirty by now, and then it is a matter of its put

    def _is_here(self, path: bytes) -> bool:
        return self._upper.at(path).exists()

    def _drop_empty(self, directory: bytes) -> list[bytes]:
        """Folders that went at the origin with what was in them."""
        gone: list[bytes] = []
        with self._upper.lock:
            if self._upper.names(directory):
                self._emptied.discard(directory)
                return gone
            while directory != b"/" and self._namespace.entry_at(directory) is None:
                try:
                    self._upper.at(directory).rmdir()
                except OSError:
                    break
                self._known.drop(directory)
                self._emptied.discard(directory)
                gone.append(directory)
                directory = split(directory)[0]
                self._emptied.add(directory)
            self._emptied.discard(b"/")
        return gone
