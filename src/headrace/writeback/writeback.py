"""Persist writes, from the upper layer to the origin. Read this module first.

A session writes into the upper layer (`overlay/upper.py`), where the data survives the death of any process. WriteBack
then persists it:

    changed ─── a session reports the paths that it wrote ─────┐
    rescan ──── a scan of the layer finds unreported paths ────┤  (a killed session, or writes through a mapping)
                                                               ▼
                                              the set of dirty paths (`dirty_set.py`)
                                                               │  a path is quiet, or `persist` waits for it
                                                               ▼
    a round ─── plan a step for each path (`planner.py`, by the rules of `reconcile.py`)
      │ ─────── execute the steps: directories and files first, then removals (`executor.py`)
      └──────── notify the observers (`observers.py`): sessions, replicas, other nodes

`secure` waits until a path is as safe as its mode promises: on other nodes (`durability.py`), or at the origin.
`demotion.py` moves clean files to the cache when the layer takes too much of the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from collections.abc import Iterable

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry
from headrace.base.printable import path_text
from headrace.base.tasks import OwnedTasks
from headrace.overlay.moves import clear_work
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.conflicts import ConflictCopies
from headrace.writeback.demotion import Demoter
from headrace.writeback.durability import Durability
from headrace.writeback.executor import RETRY_S, SyncExecutor
from headrace.writeback.origin_changes import OriginChangeReconciler
from headrace.writeback.planner import CleanFiles, LayerScan
from headrace.writeback.program_changes import ProgramChanges
from headrace.writeback.scrub_written import WrittenFilesOfScrub
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

ROUND_PATHS_MAX = 4096
"""Most paths of one round."""
SCAN_INTERVAL_S = 30.0
"""Least pause between two scans of the whole layer, in seconds."""
SCAN_SHARE = 20
"""Least pause between two scans, as a multiple of the duration of a scan. A scan of a million names takes seconds."""
PERSIST_POLL_S = 0.05
"""Pause before `persist` plans its paths again, in seconds."""


class WriteBack:
    """Persist the changes of this node's upper layer. Built by `node/writing.py`; runs on the node's loop."""

    def __init__(
        self,
        layer: WritableLayer,
        changes: ChangeTracker,
        scan: LayerScan,
        executor: SyncExecutor,
        conflicts: ConflictCopies,
        origin_changes: OriginChangeReconciler,
        demoter: Demoter,
        durability: Durability,
    ) -> None:
        self._layer = layer
        self._changes = changes
        self._dirty = changes.dirty
        self._observers = changes.observers
        self._scan = scan
        self._executor = executor
        self._conflicts = conflicts
        self._origin_changes = origin_changes
        self._demoter = demoter
        self._quota = demoter.quota
        self._durability = durability
        self._tasks = OwnedTasks()
        self.counts = executor.counts
        self.programs = ProgramChanges(layer, changes, scan, self._quota)

    # ------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Find the paths that an earlier run left dirty, and begin to persist them."""
        for top in self._layer.modes.tops():
            self._layer.upper.at(top).make_directories(0o755)
        await self._clear_work()
        self._executor.start()
        await self._origin_changes.correct_index(await self.rescan())
        self._tasks.start(self._run())
        self._observers.start(self._dirty)

    async def stop(self) -> None:
        """Stop persisting, and close the layer. The next run repeats unfinished work."""
        while self._tasks:  # a caller of `persist` may end its round meanwhile
            await self._tasks.close()
        await self._executor.pending.stop()
        await self._observers.stop()
        await self._demoter.stop()
        self._quota.close()
        self._executor.stop()
        await self._layer.close()

    async def _clear_work(self) -> None:
        """Finish the renames that a dead session began, and find pending removals of directories."""
        moved = await self._layer.in_thread(clear_work, self._layer.upper)
        if moved:
            self._changes.changed_here(moved)
        self._executor.pending.find()

    # ------------------------------------------------------------ changes

    def changed(self, paths: Iterable[bytes], source: int) -> None:
        """Note paths that a session wrote. source: the session's number."""
        self._changes.changed(paths, source)

    def writing(self, path: bytes) -> None:
        """Note that a session opened the file for writing."""
        self._observers.on_opened(path)

    def names_changed(self, paths: Iterable[bytes]) -> None:
        """Note paths whose entry in the index changed by a listing."""
        if self._origin_changes.suspect(paths):
            self._changes.wake.set()

    async def rescan(self) -> CleanFiles:
        """Find everything dirty, and begin to demote clean files if the layer takes too much of the disk. Return the
        clean files."""
        clean, used_bytes = await self._scan.scan_all()
        self._quota.measured(used_bytes)
        self._demoter.begin(clean)
        return clean

    # ------------------------------------------------------------ rounds

    async def _run(self) -> None:
        """Run rounds of due paths until the task is cancelled. In between, scan the layer and check suspected origin
        changes."""
        scanned_s, pause_s, full_due_s = monotonic_s(), SCAN_INTERVAL_S, 0.0
        while True:
            self._changes.wake.clear()
            now_s = monotonic_s()
            due = self._dirty.due(now_s, ROUND_PATHS_MAX)
            try:
                if now_s >= self._origin_changes.due_s:
                    await self._origin_changes.check_waiting()
                if due or now_s >= self._executor.pending.due_s:
                    await self._reconcile_round(due)
                elif now_s - scanned_s > pause_s or (self._quota.disk_is_full() and now_s >= full_due_s):
                    await self._clear_work()
                    await self.rescan()
                    scanned_s = monotonic_s()
                    pause_s = max(SCAN_INTERVAL_S, SCAN_SHARE * (scanned_s - now_s))
                    full_due_s = scanned_s + max(RETRY_S, SCAN_SHARE * (scanned_s - now_s))
                    await self._origin_changes.check_waiting()
            except Exception:
                log.exception("a round of write-back failed")  # the next round must still run
                await asyncio.sleep(1.0)
            self._quota.slow_writers(self.waiting(b"/")[1])
            self.programs.check_space(self.waiting(b"/")[1])
            if self._layer.journal.wants_checkpoint:
                try:
                    await self._layer.in_thread(self._layer.journal.checkpoint)
                except HeadraceError as error:
                    log.warning("the sync journal was not checkpointed error=%s", error)
            await self._sleep()

    async def _sleep(self) -> None:
        """Sleep until a path, a pending removal or a check is due, a session reports a change, or a scan is due."""
        next_s = min(
            self._executor.pending.due_s, self._origin_changes.due_s, self._dirty.next_due_s() or math.inf
        )
        wait_s = min(RETRY_S if self._quota.disk_is_full() else SCAN_INTERVAL_S, next_s - monotonic_s())
        if wait_s <= 0:  # a round without any wait would starve the loop's other tasks
            await asyncio.sleep(0)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.02, wait_s)):
                await self._changes.wake.wait()

    async def _reconcile_round(
        self, paths: list[bytes], *, below: bytes | None = None
    ) -> list[HeadraceError]:
        """Persist these paths in one round, and notify the observers, even after errors. Return the errors. below: of
        `SyncExecutor.run`."""
        self._scan.hide_unanswered()
        steps, unread = await self._scan.steps_of(paths)
        directories = self._executor.folders_of(steps)

        async def notify() -> None:
            await self._observers.on_persisted(list(steps), directories)
            self._origin_changes.check_soon()
            self._layer.write_ahead.flush_soon()

        try:
            return await self._executor.run(steps, below=below, unread=unread)
        finally:
            if steps:  # peers may be slow, so the notification continues after its caller was cancelled
                await asyncio.shield(self._tasks.start(notify()))

    # ------------------------------------------------------------ durability

    async def secure(self, path: bytes) -> None:
        """Return when everything at and below a path is as safe as its mode promises: at the origin, or on that many
        nodes. If there are too few nodes, persist it instead. Raises HeadraceError if that fails, too."""
        await self._observers.before_acknowledged(path)
        if self._durability.covers(path):
            try:
                await self._durability.secure(path)
                return
            except HeadraceError as error:
                log.warning(
                    "no replica is available, the file is persisted first path=%s error=%s",
                    os.fsdecode(path),
                    error,
                )
        await self.persist(path)

    async def persist(self, path: bytes) -> None:
        """Return when the origin has everything that was written at and below a path. Raises the HeadraceError of the
        first path that failed, which stays dirty."""
        await self._scan.scan_below(path)
        begun_s, renamed = monotonic_s(), self._conflicts.count
        while True:
            dirty = self._dirty.below(path, since_s=begun_s)
            if not dirty and not self._executor.pending.is_any_near(path):
                if self._conflicts.count == renamed:
                    return
                # conflict copies and renamed files must be persisted, too
                begun_s, renamed = monotonic_s(), self._conflicts.count
                continue
            try:
                blocking = self._conflicts.blocking_directories(path)
            except OSError as error:
                raise self._changes.note_unread(path, error) from error
            errors = await self._reconcile_round([*blocking, *dirty], below=path)
            if errors:
                raise errors[0]
            if self._dirty.below(path, since_s=begun_s):
                await asyncio.sleep(PERSIST_POLL_S)

    def hold_back(self, why: str) -> None:
        """Begin no more work for any path. What is in flight ends, and `persist` then raises ClusterUnavailableError
        if paths are left."""
        self._executor.hold_back(why)

    async def flush_journal(self) -> None:
        """Make the journal durable, so that no persisted version is forgotten in a power loss. Raises StoreError."""
        await self._layer.write_ahead.flush()

    def persist_soon(self, path: bytes) -> None:
        """Make the dirty paths at and below a path due, without waiting until they are quiet."""
        self._dirty.expedite(path)
        self._changes.wake.set()

    async def demote(self, path: bytes, entry: Entry) -> bool:
        """Move a file into the cache if it is clean here in that version. Return whether the cache has it now."""
        return await self._demoter.demote(path, entry)

    # ------------------------------------------------------------ status

    def waiting(self, path: bytes) -> tuple[int, int]:
        """Return the number of names, and of bytes, at and below a path that are not persisted yet."""
        return self._dirty.waiting(path)

    def failing(self, path: bytes) -> list[tuple[str, str]]:
        """Return the dirty paths at and below a path that failed: (path, reason)."""
        return self._dirty.failing(path)

    def forget_conflicts(self) -> None:
        """Clear the list of conflicts. The renamed files stay."""
        self._layer.journal.forget_conflicts([conflict.path for conflict in self._layer.journal.conflicts()])

    def for_scrub(self) -> WrittenFilesOfScrub:
        """Return the clean files of the layer, for the scrub."""
        return WrittenFilesOfScrub(self._layer.journal, self._layer.upper.at, drop=self._demoter.drop_damaged)

    @property
    def layer(self) -> WritableLayer:
        return self._layer

    @property
    def has_written(self) -> bool:
        """Return whether the upper layer has any name."""
        return bool(self._layer.upper.at(b"/").names())

    @property
    def upper_bytes(self) -> int:
        """Return the bytes that the upper layer takes of the disk, from the last scan."""
        return self._quota.used_bytes

    def status(self) -> dict[str, object]:
        """Return the write-back fields of `headrace status`."""
        return {
            "mode": self._layer.modes.text(),
            **self._dirty.status(),
            "upper_bytes": self._quota.used_bytes,
            "files_demoted": self._demoter.count,
            "throttle_pause_s": self._quota.pause_s,
            **self.programs.status(),
            **self._observers.status(),
            "files_persisted": self.counts.files_persisted,
            "bytes_persisted": self.counts.bytes_persisted,
            "files_removed": self.counts.removed,
            "failures": self.counts.failures,
            "conflicts": [
                {"path": path_text(conflict.path), "kept": path_text(conflict.kept), "why": conflict.why}
                for conflict in self._layer.journal.conflicts()
            ],
        }
