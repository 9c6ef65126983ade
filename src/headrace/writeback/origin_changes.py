"""Drop clean files of the upper layer that another writer replaced or removed at the origin. The name then shows the
origin's entry.

A listing shows such a change. It may be older than this node's own upload, so the origin is asked for that object
first. A dirty file is never dropped. A file in use stays until it is closed, so it is checked again and again.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import stat
from collections.abc import Callable, Iterable

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PathNotFoundError
from headrace.base.model import Version
from headrace.base.namespace_path import split
from headrace.namespace.namespace import Namespace
from headrace.origin.retry import PATIENCE_S
from headrace.writeback.action import attributes_of
from headrace.writeback.demotion import remove_clean_file
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

QUERIES_IN_FLIGHT_MAX = 32
"""Most requests to the origin at the same time."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0
"""Pauses between checks of a file in use, which double: each check asks the origin."""
INDEX_BATCH_ROWS = 1000
"""Rows that one transaction of the index corrects."""


class OriginChangeReconciler:
    """Find and drop such files. limit_s: time limit of a request to the origin. on_written: called with paths whose
    entry changed. due_s: when `check_waiting` has something to do, by `monotonic_s`."""

    def __init__(
        self,
        namespace: Namespace,
        layer: WritableLayer,
        *,
        limit_s: float,
        on_written: Callable[[list[bytes]], None],
    ) -> None:
        self._tree = namespace.tree
        self._names = namespace.changes
        self._layer = layer
        self._upper = layer.upper
        self._journal = layer.journal
        self._limit_s = limit_s
        self._on_written = on_written
        self._waiting: set[bytes] = set()
        self._emptied: set[bytes] = set()
        """Directories from which such files were dropped. They are removed once the index does not have them. Other
        empty directories stay: an object store has no empty directory, so the index lacks them, too."""
        self._pause_s = PAUSE_S_MIN
        self.due_s = math.inf

    def suspect(self, paths: Iterable[bytes]) -> bool:
        """Note paths whose entry in the index changed. Return whether a check is due now."""
        self._waiting.update(filter(self._may_be_here, paths))
        self._pause_s = PAUSE_S_MIN
        if self._waiting or self._emptied:
            self.due_s = 0.0
        return self.due_s == 0.0

    async def correct_index(self, clean: list[tuple[JournalRecord, os.stat_result]]) -> None:
        """Correct the index at a start, from the clean files and their rows. The index may be older than the journal,
        or lack a change that an earlier run did not check. It then has this node's uploads, so the next listing shows
        other writers' changes."""
        for start in range(0, len(clean), INDEX_BATCH_ROWS):
            batch = clean[start : start + INDEX_BATCH_ROWS]
            self._names.record_puts(
                [
                    (row.path, row.version, attributes_of(status))
                    for row, status in batch
                    if (entry := self._tree.entry_at(row.path)) is None or entry.version != row.version
                ]
            )
            await asyncio.sleep(0)

    def check_soon(self) -> None:
        """Make the check of paths that wait for one due."""
        if self._waiting:
            self.due_s = 0.0

    async def check_waiting(self) -> None:
        """Check all waiting paths. A path stays in the queue if its origin does not answer, if the disk fails, or if it
        is dirty here and another node wrote it, too. Its next check is due after a pause."""
        self.due_s = math.inf
        paths, self._waiting = sorted(self._waiting), set()
        rows = [row for path in paths for row in self._rows_to_check(path)]
        gate = asyncio.Semaphore(QUERIES_IN_FLIGHT_MAX)

        async def check(row: JournalRecord) -> None:
            async with gate:
                try:
                    await self._check(row)
                except (HeadraceError, OSError) as error:  # a full disk takes no marks
                    path = os.fsdecode(row.path)
                    log.warning("a clean file was not checked, retrying path=%s error=%s", path, error)
                    self._waiting.add(row.path)

        await asyncio.gather(*(check(row) for row in rows))
        if not self._drop_emptied() or self._waiting:
            self.due_s = min(self.due_s, monotonic_s() + self._pause_s)
            self._pause_s = min(PAUSE_S_MAX, 2 * self._pause_s)

    def _rows_to_check(self, path: bytes) -> list[JournalRecord]:
        """Return the rows of clean files at and below a path, and note the directories that may be removed with them.
        The path waits again if the disk fails, or if it is dirty here and another node wrote it, too."""
        try:
            demoted, rows = self._demoted_below(path), self._clean_below(path)
            is_clean = any(row.path == path for row in rows)
            is_contested = not is_clean and self._names.is_pending(path) and self._is_here(path)
        except OSError as error:
            log.warning("a path was not checked, retrying path=%s error=%s", os.fsdecode(path), error)
            self._waiting.add(path)
            return []
        self._emptied.update(demoted)
        if is_contested:
            self._waiting.add(path)
        return rows

    def _demoted_below(self, path: bytes) -> list[bytes]:
        """Return the directories at and below a path whose files were demoted to the cache."""
        below = [directory for directory, status in self._upper.walk(path) if stat.S_ISDIR(status.st_mode)]
        return [directory for directory in below if self._upper.has_demoted_files(directory)]

    def _clean_below(self, path: bytes) -> list[JournalRecord]:
        """Return the rows of clean files at and below a path."""
        rows = []
        for clean_path, status in self._upper.walk(path):
            row = self._journal.get(clean_path) if stat.S_ISREG(status.st_mode) else None
            if row is not None and row.describes(status) and not self._layer.is_exclusive(clean_path):
                rows.append(row)
        return rows

    async def _check(self, row: JournalRecord) -> None:
        """Drop a clean file if the origin has another version, or none. Ask the origin unless another node's pending
        file decides."""
        if self._names.is_pending(row.path):  # another node's file is newer than the origin's
            self._drop(row)
            return
        entry = self._tree.entry_at(row.path)
        if entry is not None and entry.version == row.version:
            return  # the listing showed this node's own upload before its answer came
        place = self._tree.mounts.find(row.path)
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
            log.info(
                "a clean file can't be compared with the origin, retrying path=%s error=%s",
                os.fsdecode(row.path),
                error,
            )
            self._waiting.add(row.path)
            return
        if version == row.version:
            with self._upper.lock:
                if self._is_here(row.path):
                    self._names.record_put(row.path, version)
        else:
            self._drop(row)

    def _drop(self, row: JournalRecord) -> None:
        """Drop a clean file from the layer; one that is in use waits."""
        if remove_clean_file(self._upper, row, lambda _: True):
            # a node that replaced it before it was persisted may still ask for its version
            self._journal.drop_demoted(row.path)
            self._names.invalidate(split(row.path)[0])
            self._emptied.add(split(row.path)[0])
            self._on_written([row.path])
        elif self._is_here(row.path):
            self._waiting.add(row.path)  # it is in use, or dirty by now; then its upload decides

    def _may_be_here(self, path: bytes) -> bool:
        try:
            return self._is_here(path)
        except OSError:  # the check tries it again
            return True

    def _is_here(self, path: bytes) -> bool:
        return self._upper.at(path).exists()

    def _drop_emptied(self) -> bool:
        """Remove the emptied directories that the origin no longer has. Return False if the disk failed for one: it is
        tried again."""
        gone: list[bytes] = []
        is_done = True
        for directory in sorted(self._emptied, key=len, reverse=True):
            try:
                self._drop_empty(directory, gone)
            except (HeadraceError, OSError) as error:
                path = os.fsdecode(directory)
                log.warning("an empty directory was not removed, retrying path=%s error=%s", path, error)
                is_done = False
        if gone:
            self._on_written(gone)
        return is_done

    def _drop_empty(self, directory: bytes, gone: list[bytes]) -> None:
        """Remove an emptied directory that the origin no longer has, and then its ancestors. gone: gets the removed
        directories, also before an error."""
        with self._upper.lock:
            if self._upper.names(directory):
                self._emptied.discard(directory)
                return
            while directory != b"/" and self._tree.entry_at(directory) is None:
                try:
                    self._upper.at(directory).rmdir()
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                        raise
                    self._emptied.discard(directory)  # a program was first
                    break
                gone.append(directory)
                self._emptied.discard(directory)
                self._journal.drop(directory)
                directory = split(directory)[0]
                self._emptied.add(directory)
            self._emptied.discard(b"/")
