"""Persist removals and directories of the upper layer; `writeback/upload.py` persists files.

Each removal is conditional on the version that the origin had when the path was removed here. Another writer's later
entry stays, and shows again. Calls are on the node's loop.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from msgspec import structs

from headrace.base import failpoint
from headrace.base.beneath import SafePath
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    NotADirectoryPathError,
    NotSupportedError,
    PathExistsError,
    PathNotFoundError,
)
from headrace.base.keyed_lock import KeyedLock
from headrace.base.model import Kind
from headrace.base.namespace_path import split
from headrace.namespace.namespace import Namespace
from headrace.origin.origin import Origin
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.hiding import hide_missing, is_removal_pending
from headrace.overlay.kept_times import keeping_times
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import base_version, is_removed, is_whiteout
from headrace.overlay.upper import Hidden
from headrace.writeback.conflicts import ConflictCopies
from headrace.writeback.preconditions import QUERIES_MAX, Preconditions
from headrace.writeback.reconcile import (
    AskFirst,
    GiveWay,
    MakeDirectory,
    PathState,
    RecordRemoval,
    RemoveDirectory,
    RemoveFile,
    SyncStep,
    WriterAnswer,
    must_hide,
    reconcile,
)
from headrace.writeback.sync_journal import ABSENT, Conflict, JournalRecord
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)


class RemovalPropagator:
    """Persist removals and directories. turns: one task at a time works on a path. limit_s: time limit of a request.
    on_written: called with paths whose meaning the node itself changed."""

    def __init__(
        self,
        namespace: Namespace,
        layer: WritableLayer,
        preconditions: Preconditions,
        conflicts: ConflictCopies,
        turns: KeyedLock,
        *,
        limit_s: float,
        on_written: Callable[[list[bytes]], None],
    ) -> None:
        self._tree = namespace.tree
        self._names = namespace.changes
        self._layer = layer
        self._upper = layer.upper
        self._journal = layer.journal
        self._write_ahead = layer.write_ahead
        self._preconditions = preconditions
        self._conflicts = conflicts
        self._turns = turns
        self._limit_s = limit_s
        self._on_written = on_written

    # ------------------------------------------------------------ removals

    async def remove(self, path: bytes, marker: SafePath, *, queries_left: int = QUERIES_MAX) -> bool:
        """Remove at the origin what the entry at `marker` hides. The entry is a whiteout, a directory in a file's
        place, or a file of a pending removal.

        Return True if the directory must be listed again, after which the whiteout can be dropped. queries_left: how
        often the replicas may be queried about a conflict.
        """
        mount, key = self._preconditions.locate(path)
        state, deadline = await self._ask_first(path, marker, mount.origin, key)
        match reconcile(SyncStep.REMOVE, state):
            case RecordRemoval(in_journal, in_index):
                if in_journal:
                    self._journal.note(JournalRecord.removed(path))
                if in_index:
                    self._names.record_removal(path)
                return True
            case GiveWay(conflict):
                self._give_way(path, marker, conflict)
                return False
            case RemoveFile(version):
                pass
            case _:
                return False
        self._journal.note(JournalRecord.removal(path, version))
        await self._write_ahead.flush()
        failpoint.hit("persist.removing")
        try:
            await mount.origin.remove(key, condition=version, deadline=deadline)
        except PathNotFoundError:
            pass
        except ConflictError as error:
            if queries_left and await self._preconditions.query_failover(path):
                return await self.remove(path, marker, queries_left=queries_left - 1)
            log.warning(
                "another writer changed a file at the origin, it is not removed path=%s", os.fsdecode(path)
            )
            self._give_way(path, marker, str(error))
            return False
        failpoint.hit("persist.removed")
        if state.listed_file is not None:
            self._names.record_removal(path)
        self._journal.note(JournalRecord.removed(path, version))
        return True

    async def _ask_first(
        self, path: bytes, marker: SafePath, origin: Origin, key: str
    ) -> tuple[PathState, Deadline]:
        """Return the state of a removal once its questions are answered, and the deadline of its requests."""
        state = self._state(path, marker)
        if reconcile(SyncStep.REMOVE, state) is AskFirst.WRITER:
            is_persisted = await self._preconditions.resolve_base(path, marker)
            writer = WriterAnswer.PERSISTED if is_persisted else WriterAnswer.REPLACED
            state = structs.replace(self._state(path, marker), writer=writer)
        deadline = Deadline.after(self._limit_s, patience_s=PATIENCE_S)
        if state.row is not None and reconcile(SyncStep.REMOVE, state) is AskFirst.ORIGIN:
            row = await self._preconditions.ask_origin(state.row, origin, key, deadline)
            state = structs.replace(
                self._state(path, marker), row=row, writer=state.writer, origin_asked=True
            )
        return state, deadline

    def _state(self, path: bytes, marker: SafePath) -> PathState:
        return self._preconditions.state(path, base_version(marker, path))

    def _give_way(self, path: bytes, marker: SafePath, conflict: str) -> None:
        """Drop this node's change: the name shows the entry of the origin, or of another node."""
        if conflict:
            self._journal.add_conflict(Conflict(path, b"", conflict, time.time()))
        self.drop_marker(path, marker)
        self._journal.drop(path)
        self._names.invalidate(split(path)[0])
        self._on_written([path])

    async def remove_pending(self, aside: list[tuple[SafePath, bytes]]) -> None:
        """Remove pending removals with everything below them, first at the origin and then here. A path that has an
        entry again is kept. aside: from `pending_removals`."""
        for top, prefix in aside:
            for safe_path, status in reversed(list(top.walk())):
                path = prefix + safe_path.path[len(top.path) :]
                async with self._turns.at(path):
                    if stat.S_ISDIR(status.st_mode):
                        await self._remove_pending_directory(path)
                    else:
                        await self.remove(path, safe_path)
                    self._report_new_entry(path)
            top.remove_tree()

    def _report_new_entry(self, path: bytes) -> None:
        """Report an entry that was created at a path while it was removed at the origin. It may look like the entry
        that the journal records."""
        if self._upper.at(path).exists():
            self._on_written([path])

    async def _remove_pending_directory(self, path: bytes) -> None:
        """Remove the directory of a pending removal at the origin, and record it."""
        status = self._upper.lookup(path)
        if isinstance(status, os.stat_result) and stat.S_ISDIR(status.st_mode):
            return  # a directory was created there again
        was_removed = await self._remove_directory_at_origin(path)
        row, entry = self._journal.get(path), self._tree.entry_at(path)
        if was_removed and row is not None and row.is_directory:
            self._journal.note(JournalRecord.removed(path, row.last_removed))
        if entry is None or entry.kind is Kind.DIRECTORY:
            self._names.record_removal(path, is_directory=True)

    async def _remove_directory_at_origin(self, path: bytes) -> bool:
        """Remove a directory at the origin. Return False if it stays because another writer created a name in it."""
        try:
            await self._request_directory_removal(path)
        except DirectoryNotEmptyError:
            log.info("another writer created a name in a removed directory path=%s", os.fsdecode(path))
            return False
        except NotADirectoryPathError:
            log.info("a file is in the place of a removed directory path=%s", os.fsdecode(path))
        return True

    def drop_whiteout(self, path: bytes) -> bool:
        """Drop the whiteout of a removed name after a new listing. Return False if the index still has the removed
        file."""
        with self._upper.lock:
            safe_path = self._upper.at(path)
            if must_hide(self._state(path, safe_path)):
                return False
            self.drop_marker(path, safe_path)
            return True

    def rows_without_entry(self, path: bytes) -> list[JournalRecord]:
        """Return the rows of files that the origin may have at and below a path without an entry here, and that must be
        removed.

        One case is an upload whose answer was lost. In the other, a session removed or renamed files while an older
        listing had taken them out of the index. A file that the index has was demoted to the cache: it is not returned,
        and its row is dropped.
        """
        row = self._journal.get(path)
        if row is None or row.is_absent:
            return []
        # a pending removal covers it; if the row is still begun then, `unanswered_rows` returns it
        if row.begun:
            return [] if is_removal_pending(self._upper, path) else [row]
        if self._tree.entry_at(path) is not None:
            self._drop_demoted(path)
            return []
        below = self._journal.below(path).values() if row.is_directory else ()
        return [row, *(below_row for below_row in below if not below_row.is_absent)]

    def drop_demoted_rows(self, paths: Iterable[bytes]) -> None:
        """Drop the rows of demoted files among paths without an entry. A node died between the demotion and the
        deletion of the row. By such a row, a file that is copied up again would replace a version that others have
        replaced."""
        for path in paths:
            entry = self._tree.entry_at(path)
            if entry is not None and entry.kind is Kind.FILE and path not in self._turns:
                with contextlib.suppress(OSError):  # the next scan tries it again
                    self._drop_demoted(path)

    def _drop_demoted(self, path: bytes) -> None:
        """Drop the row of a file that the index has, unless the row names what must be removed."""
        with self._upper.lock:
            if not self._upper.at(path).exists() and not is_removal_pending(self._upper, path):
                self._journal.drop_demoted(path)

    def unanswered_rows(self) -> list[JournalRecord]:
        """Return the rows of uploads whose answer was lost and whose file no longer exists here. The origin may have
        them.

        A session that removed such a file, or renamed a directory above it, did not know of it, and reported only the
        directory. Files of pending removals are not returned, because they are removed with their directory.
        """
        waiting = [path for path in self._journal.unsure if path not in self._turns]
        gone = filter(self._is_gone, waiting)
        return [row for path in gone if (row := self._journal.get(path)) is not None]

    def _is_gone(self, path: bytes) -> bool:
        """Return whether a path has no entry here, and is in no pending removal. A path that can't be read now counts
        as present: it is looked at again in the next round."""
        try:
            return not self._upper.at(path).exists() and not is_removal_pending(self._upper, path)
        except OSError:
            return False

    def drop_marker(self, path: bytes, safe_path: SafePath) -> None:
        """Drop a whiteout, or the BASE mark of a directory or special file. A directory keeps its times: for programs
        the name was removed before."""
        with self._upper.lock:
            status = safe_path.seen()
            if status is None:
                return
            if is_whiteout(status):
                if not self._layer.is_exclusive(path):  # there it is a device that a program made
                    with keeping_times(safe_path.parent):
                        safe_path.unlink()
            elif not stat.S_ISREG(status.st_mode) and base_version(safe_path, path) is not None:
                safe_path.removexattr(MARKS.base)

    # ------------------------------------------------------------ directories

    async def clear(self, path: bytes) -> None:
        """Remove the origin's entry at a path in whose place the layer has another kind of entry."""
        safe_path = self._upper.at(path)
        if reconcile(SyncStep.CLEAR, self._state(path, safe_path)) == RemoveDirectory():
            await self.unmake(path)
        else:
            await self.remove(path, safe_path)
        self.drop_marker(path, safe_path)

    async def make_directory(self, path: bytes) -> list[bytes]:
        """Create a directory at the origin. Return the paths that need another look."""
        mount, key = self._preconditions.locate(path)
        if reconcile(SyncStep.MAKE, PathState(self._journal.get(path))) != MakeDirectory():
            await self.clear(path)  # a file was uploaded there while this path waited
        status = self._upper.lookup(path)
        if isinstance(status, Hidden):
            return [path]
        if status is None or not stat.S_ISDIR(status.st_mode):
            return []
        row = JournalRecord.made(path, status.st_ino, self._journal.get(path), begun=True)
        self._journal.note(row)
        self._layer.note_directories_above(path)
        await self._write_ahead.flush()
        try:
            if key:
                await mount.origin.make_directory(
                    key, deadline=Deadline.after(self._limit_s, patience_s=PATIENCE_S)
                )
        except PathExistsError as error:
            self._conflicts.keep(path, status, str(error))
            return []
        except NotSupportedError as error:
            if not self._conflicts.keep_by_plain_name(path, error):
                raise
            return []
        failpoint.hit("persist.made")
        with self._upper.lock:  # it may have been removed, or renamed, while it was made
            hidden = self._hide_missing_directory(path)
            self._names.record_directory(path)
            self._journal.note(replace(row, begun=False))
        return [] if hidden is None else [hidden]

    def _hide_missing_directory(self, path: bytes) -> bytes | None:
        """Hide a directory of which nothing is here. Return what must be looked at again."""
        if self._layer.is_exclusive(path):
            return None if self._upper.at(path).exists() else path
        return hide_missing(self._upper, path, None, directory=True)

    async def unmake(self, path: bytes) -> None:
        """Remove a directory that this node created at the origin, or began to create, because something else has its
        place now. Do nothing if it created none."""
        row = self._journal.get(path)
        if row is None or not row.is_directory:
            return
        if self._layer.is_exclusive(path):
            await self._remove_below(path)
        if not await self._remove_directory_at_origin(path) and self._has_rows_below(path):
            why = "an upload into it ended while it was removed"
            raise DirectoryNotEmptyError(os.fsdecode(path), why=why)  # the next try removes that, too
        failpoint.hit("persist.unmade")
        entry = self._tree.entry_at(path)
        if entry is None or entry.kind is Kind.DIRECTORY:
            self._names.record_removal(path, is_directory=True)
        self._journal.note(JournalRecord.removed(path, row.last_removed))

    async def _remove_below(self, path: bytes) -> None:
        """Remove at the origin what programs removed from a directory in whose place something else is now."""
        for below_path, row in sorted(self._journal.below(path).items(), reverse=True):
            async with self._turns.at(below_path):
                if row.is_directory:
                    await self.unmake(below_path)
                elif not row.is_absent:
                    await self.remove(below_path, self._upper.at(below_path))

    def _has_rows_below(self, path: bytes) -> bool:
        """Return whether an exclusive directory has entries of this node at the origin."""
        return self._layer.is_exclusive(path) and not all(
            row.is_absent for row in self._journal.below(path).values()
        )

    async def remove_directory(self, path: bytes) -> bool:
        """Remove a directory that is marked as removed, once it is empty. Return False if it is not empty, or if
        another directory is there by now."""
        if self._layer.is_exclusive(path):
            return await self._remove_vanished_directory(path)
        safe_path = self._upper.at(path)
        if not is_removed(safe_path):
            return True
        if safe_path.names():
            return False
        try:
            await self._request_directory_removal(path)
        except (DirectoryNotEmptyError, NotADirectoryPathError):
            pass  # another writer created a name in it, or a file in its place: it shows again
        failpoint.hit("persist.emptied")
        with self._upper.lock:
            row = self._journal.get(path)
            removed = JournalRecord.removed(path, ABSENT if row is None else row.last_removed)
            # a directory was created there meanwhile, perhaps the same one again
            if not is_removed(safe_path):
                if row is not None and row.is_directory:
                    self._journal.note(removed)
                return False
            self._names.record_removal(path, is_directory=True)
            with keeping_times(safe_path.parent):
                safe_path.rmdir()
            self._journal.note(removed)
        self._names.invalidate(split(path)[0])
        self._on_written([path])
        return True

    async def _remove_vanished_directory(self, path: bytes) -> bool:
        """Remove a directory that programs removed from an exclusive one. Return False while the origin has files of
        this node in it."""
        if self._upper.at(path).seen() is None:
            if self._has_rows_below(path):
                return False
            await self.unmake(path)
            self._names.invalidate(split(path)[0])
        return True

    async def _request_directory_removal(self, path: bytes) -> None:
        """Remove a directory at the origin. The row is marked as begun first: if the answer is lost, it must not say
        that the directory exists, because a new one could have the same inode."""
        mount, key = self._preconditions.locate(path)
        if not key:  # the root of an origin stays
            return
        row = self._journal.get(path)
        if row is not None and row.is_directory:
            self._journal.note(replace(row, begun=True))
        await self._write_ahead.flush()
        try:
            await mount.origin.remove_directory(
                key, deadline=Deadline.after(self._limit_s, patience_s=PATIENCE_S)
            )
        except DirectoryNotEmptyError:
            if row is not None and row.is_directory:
                self._journal.note(row)
            raise
