"""Carry out at the origins what a round of write-back needs, and postpone what fails.

Directories and files come first and removals after them, so a renamed file is never missing at the origin. On the
node's loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterable

from headrace.base.beneath import SafePath
from headrace.base.clock import monotonic_s
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.keyed_lock import KeyedLock
from headrace.base.namespace_path import split
from headrace.namespace.namespace import Namespace
from headrace.overlay.hiding import pending_removals
from headrace.writeback.action import WriteBackCounts, by_depth
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.planner import ActionPlanner
from headrace.writeback.reconcile import SyncStep
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.upload import Uploader
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

CONCURRENCY_MAX = 64
"""Puts and removals at one time."""
RETRY_S = 1.0


class SyncExecutor:
    """Persist paths, each by one task at a time. gone_due_s: when a round looks at what was put aside, though nothing
    else is dirty."""

    def __init__(
        self,
        namespace: Namespace,
        layer: WritableLayer,
        planner: ActionPlanner,
        changes: ChangeTracker,
        uploads: Uploader,
        removals: RemovalPropagator,
        turns: KeyedLock,
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
        self._gate = asyncio.Semaphore(CONCURRENCY_MAX)
        self._clearing = asyncio.Lock()
        self.removals_due_s = math.inf
        self.counts = WriteBackCounts()

    def start(self) -> None:
        """Have the namespace keep names of which the origin may have a put whose answer was lost."""
        self._names.add_in_flight(self._layer.journal.unsure)

    def stop(self) -> None:
        self._names.remove_in_flight(self._layer.journal.unsure)

    def folders_of(self, paths: Iterable[bytes]) -> set[bytes]:
        """Return the directories whose listings change: those of the paths; and, where the origin has no such directory
        yet (a mode's, which nobody made), the one above it."""
        folders = {split(path)[0] for path in paths}
        for folder in list(folders):
            while folder != b"/" and self._tree.entry_at(folder) is None:
                folder = split(folder)[0]
                folders.add(folder)
        return folders

    async def run(self, actions: dict[bytes, SyncStep]) -> list[HeadraceError]:
        """Do all that can be done; what failed stays dirty. Removals wait until nothing else fails."""
        errors = await self._remove_pending()
        errors += await self._run_all([p for p, do in actions.items() if do is SyncStep.CLEAR], self._clear)
        for level in by_depth(path for path, do in actions.items() if do is SyncStep.MAKE):
            errors += await self._run_all(level, self._make_directory)
        errors += await self._run_all([p for p, do in actions.items() if do is SyncStep.PUT], self._put)
        removed = [path for path, do in actions.items() if do is SyncStep.REMOVE]
        if errors:
            self._defer(removed)
            return errors
        gone: list[bytes] = []
        errors += await self._run_all(removed, lambda path: self._remove(path, gone))
        errors += await self._drop_whiteouts(gone)
        folders = by_depth(path for path, do in actions.items() if do is SyncStep.REMOVE_DIRECTORY)
        for level in reversed(folders):
            errors += await self._run_all(level, self._remove_directory)
        return errors

    def find_pending_removals(self) -> None:
        """Have the next round look at what an earlier one left aside."""
        if self.pending_removals():
            self.removals_due_s = 0.0

    def pending_removals(self) -> list[tuple[SafePath, bytes]]:
        """Return what is to be removed at the origin: nothing of mode `local`, whose settings may be others some
        day."""
        return [pair for pair in pending_removals(self._upper) if self._layer.persists(pair[1])]

    # ------------------------------------------------------------ one path

    async def _run_all(
        self, paths: list[bytes], work: Callable[[bytes], Awaitable[None]]
    ) -> list[HeadraceError]:
        """Run as many at one time as there may be."""
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
        """Run one task for a path at a time, however many rounds want it."""
        async with self._gate, self._turns.at(path):
            try:
                entry = self._dirty.get(path)
                if entry is not None:
                    noted = entry.noted
                    await work(path)
                    if entry.noted != noted and self._planner.needs_work(path):
                        self._changes.note(
                            [path], self._changes.delay_s
                        )  # it became something else meanwhile
                return None
            except HeadraceError as error:
                self._note_failure(path, error)
                return error
            except OSError as error:  # the layer changed under us: looked at again
                log.info("a change was not persisted, retrying path=%s error=%s", os.fsdecode(path), error)
                self._defer([path])
                return DeadlineExceededError(os.fsdecode(path), why=str(error))

    def _note_failure(self, path: bytes, error: HeadraceError) -> None:
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
        await self._make_directory(path)  # nothing for what is no directory

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
            self.counts.removed += 1
            gone.append(path)
        else:
            self._dirty.drop(path, only=before)

    async def _drop_whiteouts(self, gone: list[bytes]) -> list[HeadraceError]:
        """Drop the whiteouts of what was removed. Listings that began before the removal may bring the names back; one
        that begins now does not."""
        errors: list[HeadraceError] = []
        stale: set[bytes] = set()
        for directory in {split(path)[0] for path in gone}:
            try:
                await self._listings.refresh_listed(directory)
            except HeadraceError as error:
                log.info("listing failed path=%s error=%s", os.fsdecode(directory), error)
                stale.add(directory)
                errors.append(error)
        for path in gone:
            if split(path)[0] not in stale and self._removals.drop_whiteout(path):
                self._dirty.drop(path)
                if self._upper.at(path).exists():  # it came back meanwhile, perhaps as it was
                    self._changes.note([path], 0.0)
            else:
                self._defer([path])
        return errors

    async def _remove_directory(self, path: bytes) -> None:
        if await self._removals.remove_directory(path):
            self._dirty.drop(path)
        else:
            self._defer([path])

    async def _remove_pending(self) -> list[HeadraceError]:
        """Remove directories in whose place a file is now: where the origin has real ones, they are in its way."""
        async with self._clearing:
            self.removals_due_s = math.inf
            try:
                await self._removals.remove_pending(self.pending_removals())
            except HeadraceError as error:
                log.info("removed directories are still at the origin error=%s", error)
                self.removals_due_s = monotonic_s() + RETRY_S
                self._changes.wake.set()
                return [error]
        return []
