"""What was removed, and folders, of the upper layer to their origin; files are a matter of
`writeback/upload.py`.

Each removal is conditional on the version that was there when the path was removed here, so that nothing which somebody
else put there is lost: it stays then, and shows again. On the node's loop.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Callable
from dataclasses import replace

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
from headrace.base.model import Kind, Version
from headrace.namespace.tree import Namespace
from headrace.origin.retry import PATIENCE_S
from headrace.overlay.upper import (
    BASE,
    Hidden,
    base_version,
    is_removed,
    is_whiteout,
)
from headrace.writeback.conflicts import ConflictCopies
from headrace.writeback.preconditions import Preconditions
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
    """Persist removals and directories. turns: who has a path works on it. limit_s: of a request. on_written: called
    with paths of which the node itself changed what they mean."""

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
        self._namespace = namespace
        self._upper = layer.upper
        self._known = layer.journal
        self._write_ahead = layer.write_ahead
        self._believed = preconditions
        self._aside = conflicts
        self._turns = turns
        self._limit_s = limit_s
        self._on_written = on_written

    # ------------------------------------------------------------ removals

    async def remove(self, path: bytes, marker: SafePath, *, asked: bool = False) -> bool:
        """Remove at the origin what the entry at `marker` hides: a whiteout, a directory in a file's place, or a file
        that was put aside. Return whether the listing that had the name must be taken again, after which the whiteout
        can go. asked: other nodes were asked what they persisted."""
        mount, key = self._believed.place(path)
        writer, state = None, self._state(path, marker, self._known.get(path))
        if reconcile(SyncStep.REMOVE, state) is AskFirst.WRITER:
            is_persisted = await self._believed.settle_base(path, marker)
            writer = WriterAnswer.PERSISTED if is_persisted else WriterAnswer.REPLACED
            state = self._state(path, marker, self._known.get(path), writer=writer)
        deadline = Deadline.after(self._limit_s, patience_s=PATIENCE_S)
        if state.row is not None and reconcile(SyncStep.REMOVE, state) is AskFirst.ORIGIN:
            row = await self._believed.ask_origin(state.row, mount.origin, key, deadline)
            state = self._state(path, marker, row, writer=writer, origin_asked=True)
        match reconcile(SyncStep.REMOVE, state):
            case RemoveFile(version):
                return await self._remove_file(path, marker, state, version, deadline, asked=asked)
            case RecordRemoval(in_journal, in_index):
                if in_journal:
                    self._known.note(JournalRecord.removed(path))
                if in_index:
                    self._namespace.record_removal(path)
                return True
            case GiveWay(conflict):
                if conflict:
                    self._known.add_conflict(Conflict(path, b"", conflict, time.time()))
                self._give_way(path, marker)
        return False

    def _state(
        self,
        path: bytes,
        marker: SafePath,
        row: JournalRecord | None,
        *,
        writer: WriterAnswer | None = None,
        origin_asked: bool = False,
    ) -> PathState:
        base = base_version(marker, path)
        return self._believed.state(path, row, base, writer=writer, origin_asked=origin_asked)

    async def _remove_file(
        self,
        path: bytes,
        marker: SafePath,
        state: PathState,
        version: Version,
        deadline: Deadline,
        *,
        asked: bool,
    ) -> bool:
        mount, key = self._believed.place(path)
        self._known.note(JournalRecord.removal(path, version))
        await self._write_ahead.flush()
        failpoint.hit("persist.removing")
        try:
            await mount.origin.remove(key, condition=version, deadline=deadline)
        except PathNotFoundError:
            pass
        except ConflictError as error:
            if not asked and await self._believed.others_put(path):
                return await self.remove(path, marker, asked=True)
            self._known.add_conflict(Conflict(path, b"", str(error), time.time()))
            log.warning("changed at the origin by somebody else, not removed path=%s", os.fsdecode(path))
            self._give_way(path, marker)
            return False
        failpoint.hit("persist.removed")
        if state.listed_file is not None:
            self._namespace.record_removal(path)
        self._known.note(JournalRecord.removed(path, version))
        return True

    def _give_way(self, path: bytes, safe_path: SafePath) -> None:
        """The name means what the origin, or another node, has there."""
        self.drop_marker(path, safe_path)
        self._known.drop(path)
        self._namespace.invalidate_parent(path)
        self._on_written([path])

    async def remove_gone(self, aside: list[tuple[SafePath, bytes]]) -> None:
        """What `Upper.put_away` put aside is removed at the origin, folders too, and then here; but not what is there
        again by now. aside: of `Upper.put_aside`."""
        for top, prefix in aside:
            for safe_path, status in reversed(list(top.walk())):
                path = prefix + safe_path.path[len(top.path) :]
                async with self._turns.at(path):
                    if stat.S_ISDIR(status.st_mode):
                        await self._remove_gone_folder(path)
                    else:
                        await self.remove(path, safe_path)
                    self._look_at_what_came(path)
            top.throw_away()

    def _look_at_what_came(self, path: bytes) -> None:
        """While it was removed at the origin: it may look as it did when the origin had it."""
        if self._upper.at(path).exists():
            self._on_written([path])

    async def _remove_gone_folder(self, path: bytes) -> None:
        status = self._upper.look(path)
        if isinstance(status, os.stat_result) and stat.S_ISDIR(status.st_mode):
            return  # there is one again
        went = await self._remove_gone_directory(path)
        row, entry = self._known.get(path), self._namespace.entry_at(path)
        if went and row is not None and row.is_directory:
            self._known.note(JournalRecord.removed(path, row.last_removed))
        if entry is None or entry.kind is Kind.DIRECTORY:
            self._namespace.record_removal(path, folder=True)

    async def _remove_gone_directory(self, path: bytes) -> bool:
        """There may be none any more, also because a file is there. False: one is there still."""
        try:
            await self._ask_to_remove(path)
        except DirectoryNotEmptyError:
            log.info("somebody else put something into a removed folder path=%s", os.fsdecode(path))
            return False
        except NotADirectoryPathError:
            log.info("a file is where a folder was removed path=%s", os.fsdecode(path))
        return True

    def drop_whiteout(self, path: bytes) -> bool:
        """After the listing was taken again: when it has no such name, or somebody else's by now, the whiteout has done
        its work. False: it has the one that was removed."""
        with self._upper.lock:
            safe_path = self._upper.at(path)
            if must_hide(self._state(path, safe_path, self._known.get(path))):
                return False
            self.drop_marker(path, safe_path)
            return True

    def went(self, path: bytes) -> list[JournalRecord]:
        """Nothing is at a path any more, and nothing hides it. Rows of what may be at the origin there and below, and
        is to be removed: a put that was not noted; and what was put, and was removed or renamed by who could not know
        of it, as a listing of before the put had taken it out of the index again. What left the layer for the cache is
        in the index."""
        row = self._known.get(path)
        if row is None or row.is_absent:
            return []
        if row.begun:
            return [row]
        if self._namespace.entry_at(path) is not None:
            with self._upper.lock:
                if not self._upper.is_going(path):  # else the row says what is to be removed
                    self._known.drop(path)
            return []
        below = self._known.below(path).values() if row.is_directory else ()
        return [row, *(below_row for below_row in below if not below_row.is_absent)]

    def unheard(self) -> list[JournalRecord]:
        """Rows of puts that had begun when their node died, or when their answer was lost, and of which nothing is
        here any more: they may have landed. A session that removed what was put, or renamed a folder above it, did not
        know of it, and tells of the folder alone. What is put aside is removed with its folder."""
        upper = self._upper
        waiting = [path for path in self._known.unsure if path not in self._turns]
        gone = [path for path in waiting if not upper.at(path).exists() and not upper.is_going(path)]
        return [row for path in gone if (row := self._known.get(path)) is not None]

    def drop_marker(self, path: bytes, safe_path: SafePath) -> None:
        with self._upper.lock:
            status = safe_path.seen()
            if status is None:
                return
            if is_whiteout(status):
                safe_path.unlink()
            elif not stat.S_ISREG(status.st_mode) and base_version(safe_path, path) is not None:
                safe_path.removexattr(BASE)

    # ------------------------------------------------------------ directories

    async def clear(self, path: bytes) -> None:
        """What the origin has at a path in whose place something else is now goes."""
        row, safe_path = self._known.get(path), self._upper.at(path)
        if reconcile(SyncStep.CLEAR, self._state(path, safe_path, row)) == RemoveDirectory():
            await self.unmake(path)
        else:
            await self.remove(path, safe_path)
        self.drop_marker(path, safe_path)

    async def make_directory(self, path: bytes) -> list[bytes]:
        """What must be looked at again."""
        mount, key = self._believed.place(path)
        if reconcile(SyncStep.MAKE, PathState(self._known.get(path))) != MakeDirectory():
            await self.clear(path)  # a file came there while this one waited for its turn
        status = self._upper.look(path)
        if isinstance(status, Hidden):
            return [path]
        if status is None or not stat.S_ISDIR(status.st_mode):
            return []
        row = JournalRecord.made(path, status.st_ino, self._known.get(path), begun=True)
        self._known.note(row)
        await self._write_ahead.flush()
        try:
            if key:
                await mount.origin.make_directory(
                    key, deadline=Deadline.after(self._limit_s, patience_s=PATIENCE_S)
                )
        except PathExistsError as error:
            self._aside.keep(path, status, str(error))
            return []
        except NotSupportedError as error:
            if not self._aside.keep_by_plain_name(path, error):
                raise
            return []
        failpoint.hit("persist.made")
        with self._upper.lock:
            hidden = self._upper.hide_missing(
                path, None, directory=True
            )  # removed, or renamed, while it was made
            self._namespace.record_directory(path)
            self._known.note(replace(row, begun=False))
        return [] if hidden is None else [hidden]

    async def unmake(self, path: bytes) -> None:
        """A folder that this node made at the origin, or was making, goes: something else is in its place now. Nothing
        where it made none."""
        row = self._known.get(path)
        if row is None or not row.is_directory:
            return
        await self._remove_gone_directory(path)
        failpoint.hit("persist.unmade")
        entry = self._namespace.entry_at(path)
        if entry is None or entry.kind is Kind.DIRECTORY:
            self._namespace.record_removal(path, folder=True)
        self._known.note(JournalRecord.removed(path, row.last_removed))

    async def remove_directory(self, path: bytes) -> bool:
        """A directory marked as removed, when nothing is left in it. False: something is, or another one by now."""
        safe_path = self._upper.at(path)
        if not is_removed(safe_path):
            return True
        if safe_path.names():
            return False
        try:
            await self._ask_to_remove(path)
        except (DirectoryNotEmptyError, NotADirectoryPathError):
            pass  # somebody else put something there, or a file in its place: it shows again
        failpoint.hit("persist.emptied")
        with self._upper.lock:
            row = self._known.get(path)
            removed = JournalRecord.removed(path, ABSENT if row is None else row.last_removed)
            if not is_removed(safe_path):  # one came there meanwhile, perhaps the one that was there before
                if row is not None and row.is_directory:
                    self._known.note(removed)
                return False
            self._namespace.record_removal(path, folder=True)
            safe_path.rmdir()
            self._known.note(removed)
        self._namespace.invalidate_parent(path)
        self._on_written([path])
        return True

    async def _ask_to_remove(self, path: bytes) -> None:
        """Its answer may be lost. Then what was noted of the folder must not say that it is made, should it come back:
        its inode is the same."""
        mount, key = self._believed.place(path)
        if not key:  # of a whole origin
            return
        row = self._known.get(path)
        if row is not None and row.is_directory:
            self._known.note(replace(row, begun=True))
        await self._write_ahead.flush()
        try:
            await mount.origin.remove_directory(
                key, deadline=Deadline.after(self._limit_s, patience_s=PATIENCE_S)
            )
        except DirectoryNotEmptyError:
            if row is not None and row.is_directory:
                self._known.note(row)
            raise
