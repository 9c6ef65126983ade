"""Apply a round's steps to the origins, and defer those that fail.

Directories and files come first and removals after them, so a renamed file is never missing at the origin. Calls are on
the node's loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence

from headrace.base.errors import (
    ClusterUnavailableError,
    DeadlineExceededError,
    FileInUseError,
    HeadraceError,
    OriginError,
    StoreError,
)
from headrace.base.keyed_lock import KeyedLock
from headrace.base.namespace_path import split
from headrace.base.os_errors import unread_error
from headrace.namespace.namespace import Namespace
from headrace.writeback.action import WriteBackCounts, by_depth, is_file_of
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.dirty_set import DirtyPath
from headrace.writeback.pending_removals import PendingRemovals, near
from headrace.writeback.planner import StepPlanner
from headrace.writeback.preconditions import head_deadline
from headrace.writeback.reconcile import SyncStep
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.upload import Uploader
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

CONCURRENCY_MAX = 64
"""Most uploads and removals at the same time."""
CHANGED_ERRORS = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
        *(errno.ELOOP, errno.ENODATA, errno.ENXIO, errno.ESTALE),
    }
)
"""Errors of the layer that mean that a name was created, moved or removed meanwhile. Others are the disk's."""
RETRY_S = 1.0
"""Pause before a deferred path is tried again, in seconds."""


class SyncExecutor:
    """Persist paths. One task at a time works on a path.

    trouble_at: returns why the node may not persist a path now; "" if it may. pending: the removed directories whose
    place a file has taken.
    """

    def __init__(
        self,
        namespace: Namespace,
        layer: WritableLayer,
        planner: StepPlanner,
        changes: ChangeTracker,
        uploads: Uploader,
        removals: RemovalPropagator,
        turns: KeyedLock,
        *,
        trouble_at: Callable[[bytes], str],
    ) -> None:
        self._tree = namespace.tree
        self._listings = namespace.listings
        self._names = namespace.changes
        self._layer = layer
        self._upper = layer.upper
        self._planner = planner
        self._changes = changes
        self._dirty = changes.dirty
        self._uploads = uploads
        self._removals = removals
        self._turns = turns
        self._trouble_at = trouble_at
        self._held_back = ""
        self._gate = asyncio.Semaphore(CONCURRENCY_MAX)
        self.pending = PendingRemovals(
            layer, removals, wake=changes.wake.set, held_back=lambda: self._held_back
        )
        self.counts = WriteBackCounts()

    def start(self) -> None:
        """Have the namespace keep the names of uploads whose answer was lost, as the origin may have them."""
        self._names.add_in_flight(self._layer.journal.unsure)

    def stop(self) -> None:
        """Have the namespace no longer keep those names."""
        self._names.remove_in_flight(self._layer.journal.unsure)

    def hold_back(self, why: str) -> None:
        """Begin no more work. why: the reason that waiting paths get."""
        self._held_back = why

    def folders_of(self, paths: Iterable[bytes]) -> set[bytes]:
        """Return the directories whose listings at the origin change: those of the paths and, where the index lacks
        such a directory, its ancestors up to the first that it has."""
        directories = {split(path)[0] for path in paths}
        for directory in list(directories):
            while directory != b"/" and self._tree.entry_at(directory) is None:
                directory = split(directory)[0]
                directories.add(directory)
        return directories

    async def run(
        self,
        steps: dict[bytes, SyncStep],
        *,
        below: bytes | None = None,
        unread: Sequence[HeadraceError] = (),
    ) -> list[HeadraceError]:
        """Take all steps, and return the errors. A path that failed stays dirty. Removals are deferred if anything else
        failed. unread: the errors of paths whose steps nobody knows.

        Removed directories whose place a file has taken would block steps, and go first. below: such directories that
        touch this path go first, too, because the caller waits for them. None: all others go in the background.
        """
        folders = [path for path, step in steps.items() if step is SyncStep.MAKE]
        others = [path for path, step in steps.items() if step is not SyncStep.MAKE]
        if below is None:
            self.pending.remove_others_soon(others, folders=folders)
        failed = await self.pending.remove_near(
            others if below is None else [*others, below], folders=folders
        )
        errors = [*unread]
        errors += await self._run_all([p for p, step in steps.items() if step is SyncStep.CLEAR], self._clear)
        for level in by_depth(folders):
            errors += await self._run_all(level, self._make_directory)
        errors += await self._run_all([p for p, step in steps.items() if step is SyncStep.PUT], self._put)
        removed = [p for p, step in steps.items() if step in (SyncStep.REMOVE, SyncStep.REMOVE_DIRECTORY)]
        deferred = set(removed if errors else near(removed, failed))
        self._defer(deferred)
        errors = [*failed.values(), *errors]
        files = [path for path in removed if steps[path] is SyncStep.REMOVE and path not in deferred]
        deferred |= self._hold_renamed(files, errors, is_awaited=below is not None)
        return errors + await self._run_removals(steps, [path for path in removed if path not in deferred])

    def _hold_renamed(
        self, paths: list[bytes], errors: list[HeadraceError], *, is_awaited: bool
    ) -> set[bytes]:
        """Hold back the removal of files that have a new name which the origin lacks. While a path can't be read, any
        file may have that one. Return these paths, and add an error for each that waits for a path that failed.
        is_awaited: a caller waits for the removals, so the new names are due now."""
        unread = self._dirty.first_unread() if paths else None
        held: set[bytes] = set()
        for path in paths:
            new = self._new_name_of(path) if unread is None else unread
            if new is None:
                continue
            held.add(path)
            other = self._dirty[new]
            if other.error:
                why = f"its file may be {os.fsdecode(new)} now, which the origin lacks: {other.error}"
                entry = self._dirty.get(path)
                if entry is not None:
                    entry.held_back(why, RETRY_S)
                errors.append(StoreError(os.fsdecode(path), why=why))
            else:
                self._defer([path])
                self._expedite(other if is_awaited else None)
        return held

    def _expedite(self, other: DirtyPath | None) -> None:
        if other is not None:
            other.due_s = 0.0
            self._changes.wake.set()

    def _new_name_of(self, path: bytes) -> bytes | None:
        """Return the dirty path that a removed file was renamed to, unless the origin has it under that name."""
        row = self._layer.journal.get(path)
        if row is None or not row.inode or not row.is_file:
            return None
        new = self._dirty.name_of(row.inode)
        if new is None or new == path or not is_file_of(self._upper.at(new), row):
            return None
        put = self._layer.journal.get(new)
        is_put = put is not None and put.inode == row.inode and put.is_there and not put.begun
        return None if is_put else new

    async def _run_removals(self, steps: dict[bytes, SyncStep], paths: list[bytes]) -> list[HeadraceError]:
        """Take the steps that remove these paths, and return the errors."""
        gone: list[bytes] = []
        files = [path for path in paths if steps[path] is SyncStep.REMOVE]
        errors = await self._run_all(files, lambda path: self._remove(path, gone))
        errors += await self._drop_whiteouts(gone)
        directories = by_depth(path for path in paths if steps[path] is SyncStep.REMOVE_DIRECTORY)
        for level in reversed(directories):
            errors += await self._run_all(level, self._remove_directory)
        return errors

    # ------------------------------------------------------------ one path

    async def _run_all(
        self, paths: list[bytes], work: Callable[[bytes], Awaitable[None]]
    ) -> list[HeadraceError]:
        """Run a task for each path, CONCURRENCY_MAX at the same time. Return the errors."""
        errors: list[HeadraceError] = []
        left = iter(paths)

        async def worker() -> None:
            for path in left:
                error = await self._run_one(path, work)
                if error is not None:
                    errors.append(error)

        await asyncio.gather(*(worker() for _ in paths[:CONCURRENCY_MAX]))
        return errors

    async def _run_one(self, path: bytes, work: Callable[[bytes], Awaitable[None]]) -> HeadraceError | None:
        """Run one task for a path, after those that other rounds run for it. Return its error."""
        async with self._gate, self._turns.at(path):
            try:
                entry = self._dirty.get(path)
                if entry is not None and (trouble := self._held_back or self._trouble_at(path)):
                    entry.held_back(trouble, RETRY_S)
                    return ClusterUnavailableError(os.fsdecode(path), why=trouble)
                if entry is not None:
                    noted = entry.noted
                    await work(path)
                    if entry.noted != noted and self._planner.needs_work(path):
                        self._changes.note([path], self._quiet_s(path))  # it changed while the task ran
                return None
            except FileInUseError:
                self._defer([path])
                return None
            except HeadraceError as error:
                self._note_failure(path, error)
                return error
            except OSError as error:
                if error.errno not in CHANGED_ERRORS:
                    failure = unread_error(path, error)
                    self._note_failure(path, failure)
                    return failure
                # a session or a program changed the layer meanwhile
                log.info("a change was not persisted, retrying path=%s error=%s", os.fsdecode(path), error)
                self._defer([path])
                return DeadlineExceededError(os.fsdecode(path), why=str(error))
            except Exception as error:  # noqa: BLE001 - it is logged; one bad path must hold up no other
                self.counts.failures += 1
                return self._changes.note_unexpected(path, error)

    def _quiet_s(self, path: bytes) -> float:
        """Return the delay of a path that changed during its task. A path without an entry has no writer to wait for,
        and this node notes a directory itself when it removes it."""
        return self._changes.delay_s if self._upper.at(path).exists() else 0.0

    def _note_failure(self, path: bytes, error: HeadraceError) -> None:
        """Count a failure, back off its path, and log the first and the fifth as a warning."""
        entry = self._dirty.get(path)
        self.counts.failures += 1
        if entry is None:
            return
        entry.failed(str(error))
        level = logging.WARNING if entry.attempts in (1, 5) else logging.INFO
        log.log(
            level, "a change was not persisted, retrying later path=%s error=%s", os.fsdecode(path), error
        )

    def _defer(self, paths: Iterable[bytes]) -> None:
        self._dirty.defer(paths, RETRY_S)

    async def _clear(self, path: bytes) -> None:
        await self._removals.clear(path)
        await self._make_directory(path)  # does nothing unless a directory is there

    async def _make_directory(self, path: bytes) -> None:
        changed = await self._removals.make_directory(path)
        self._dirty.drop(path)
        self._changes.note(changed, 0.0)

    async def _put(self, path: bytes) -> None:
        before = self._dirty[path]
        await self._removals.unmake(path)
        result = await self._uploads.put(path)
        if result is not None:
            self.counts.files_persisted += 1
            self.counts.bytes_persisted += result.size_bytes
        self._dirty.drop(path, only=before)
        if result is not None:
            self._changes.note(result.changed, self._changes.delay_s)

    async def _remove(self, path: bytes, gone: list[bytes]) -> None:
        before = self._dirty[path]
        if await self._removals.remove(path, self._upper.at(path)):
            gone.append(path)
        else:
            self._dirty.drop(path, only=before)

    async def _drop_whiteouts(self, gone: list[bytes]) -> list[HeadraceError]:
        """Drop the whiteouts of removed names, after a new listing of their directories. A listing that began before
        the removal could bring a name back; one that begins now does not."""
        errors: list[HeadraceError] = []
        stale: set[bytes] = set()
        for directory in {split(path)[0] for path in gone}:
            try:
                await self._listings.refresh_after_removal(directory)
            except HeadraceError as error:
                log.info("listing failed path=%s error=%s", os.fsdecode(directory), error)
                stale.add(directory)
                errors.append(error)
        for path in gone:
            if split(path)[0] not in stale and self._removals.drop_whiteout(path):
                self.counts.removed += 1
                self._dirty.drop(path)
                if self._upper.at(path).exists():  # a session created it again, perhaps unchanged
                    self._changes.note([path], 0.0)
            elif split(path)[0] not in stale and await self._is_left(path):
                errors.append(OriginError(os.fsdecode(path), why="the origin still has it after its removal"))
                self._note_failure(path, errors[-1])
            else:
                self._defer([path])
        return errors

    async def _is_left(self, path: bytes) -> bool:
        """Return whether the origin still has the file that this node removed there. An older listing, such as that of
        another node, may show it for a moment, too."""
        row = self._layer.journal.get(path)
        mount_and_key = self._tree.mounts.find(path)
        if row is None or not row.is_absent or mount_and_key is None:
            return False
        mount, key = mount_and_key
        try:
            info = await mount.origin.head(key, deadline=head_deadline())
        except HeadraceError:
            return False
        return row.was_removed(info.version)

    async def _remove_directory(self, path: bytes) -> None:
        if await self._removals.remove_directory(path):
            self._dirty.drop(path)
            if self._layer.is_exclusive(path) and self._upper.at(path).exists():
                self._changes.note([path], 0.0)  # it came back meanwhile
        else:
            self._defer([path])
