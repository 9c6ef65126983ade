"""Find what is dirty in the upper layer, and plan a round. `writeback/reconcile.py` decides on each path."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import TypeVar

from headrace.base.clock import monotonic_s
from headrace.base.keyed_lock import KeyedLock
from headrace.base.namespace_path import is_at_or_below
from headrace.writeback.action import upper_entry
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.reconcile import SyncStep, UpperEntry, UpperKind, step_of
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.writable_layer import WritableLayer

_T = TypeVar("_T")
CleanFiles = list[tuple[JournalRecord, os.stat_result]]
"""Clean files: the row and the status of each."""
STEPS_WITH_CHILDREN = (SyncStep.CLEAR, SyncStep.MAKE, SyncStep.REMOVE_DIRECTORY)
"""Steps of a directory that may require steps for everything below it."""
TURN_S = 0.05
"""Seconds after which a dirty path without an entry is planned again, if its upload still runs."""
PATHS_PER_TURN = 100
"""Paths that are compared before other tasks of the loop run. Each costs some 20 µs."""


async def in_turns(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield items, and let other tasks of the loop run in between."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % PATHS_PER_TURN:
            await asyncio.sleep(0)


class StepPlanner:
    """Decide which step a path needs, from the upper layer and the journal."""

    def __init__(self, layer: WritableLayer) -> None:
        self._layer = layer
        self._upper = layer.upper
        self._journal = layer.journal
        self._tops = {b"/", *layer.modes.tops()}

    def step(self, path: bytes, status: os.stat_result) -> SyncStep | None:
        """Return the step that a path needs; None if its origin has the same. status: the path's, from the upper
        layer."""
        return self.step_by_row(path, status, self._journal.get(path))

    def step_by_row(self, path: bytes, status: os.stat_result, row: JournalRecord | None) -> SyncStep | None:
        """Return the same for a given row of the journal."""
        entry = upper_entry(path, self._upper.at(path), status, is_mode_root=path in self._tops)
        if entry.kind is UpperKind.WHITEOUT and self._layer.is_exclusive(path):
            entry = UpperEntry(
                UpperKind.OTHER, status
            )  # a program made it, as overlayfs does in its own layers
        return step_of(entry, row)

    def needs_work(self, path: bytes) -> bool:
        """Return whether a path needs a step now. A path without an entry does."""
        status = self._upper.at(path).seen()
        return status is None or self.step(path, status) is not None

    def is_persisted(self, path: bytes, status: os.stat_result) -> bool:
        """Return whether the origin has the file at a path."""
        return stat.S_ISREG(status.st_mode) and self.step(path, status) is None

    def is_vanished(self, row: JournalRecord) -> bool:
        """Return whether programs removed a path that the origin has. If its exclusive directory does not exist, an
        administrator removed or moved the layer, which removes nothing at the origin."""
        return (
            not row.is_absent
            and self._layer.is_exclusive(row.path)
            and self._layer.persists(row.path)
            and self._upper.at(row.path).seen() is None
            and any(
                is_at_or_below(row.path, top) and self._upper.at(top).is_directory()
                for top in self._layer.modes.exclusive_tops
            )
        )


class LayerScan:
    """Find dirty paths in the layer, and plan a round for them. Calls are on the node's loop; walks over the layer run
    in a thread."""

    def __init__(
        self,
        layer: WritableLayer,
        planner: StepPlanner,
        changes: ChangeTracker,
        removals: RemovalPropagator,
        turns: KeyedLock,
    ) -> None:
        self._layer = layer
        self._upper = layer.upper
        self._journal = layer.journal
        self._planner = planner
        self._changes = changes
        self._dirty = changes.dirty
        self._removals = removals
        self._turns = turns

    async def scan_all(self) -> tuple[CleanFiles, int]:
        """Mark everything dirty, and return the clean files and the bytes of all files. Reads all names of the layer,
        in a thread."""
        self._journal.forget_old_removals()
        self.hide_unanswered()
        rows = {row.path: row for row in self._journal.rows()}
        dirty: list[tuple[bytes, int]]
        dirty, clean, size_bytes = await self._layer.in_thread(self._walk_all, rows)
        now_s = monotonic_s()
        for path, size in dirty:
            self._dirty.add(path, now_s, size, delay_s=self._changes.delay_s)
        if dirty:
            self._changes.wake.set()
        return clean, size_bytes

    def _walk_all(self, rows: dict[bytes, JournalRecord]) -> tuple[list[tuple[bytes, int]], CleanFiles, int]:
        """Return the dirty paths with their sizes, the clean files, and the bytes that all files take of the disk."""
        dirty: list[tuple[bytes, int]] = []
        clean: CleanFiles = []
        size_bytes = 0
        for path, status in self._upper.walk():
            size_bytes += status.st_blocks * 512
            if not self._layer.persists(path):
                continue
            row = rows.get(path)
            if self._planner.step_by_row(path, status, row) is not None:
                dirty.append((path, status.st_size))
            elif row is not None and stat.S_ISREG(status.st_mode):
                clean.append((row, status))
        dirty += [(row.path, 0) for row in rows.values() if self._planner.is_vanished(row)]
        return dirty, clean, size_bytes

    async def scan_below(self, top: bytes, *, delay_s: float = 0.0) -> None:
        """Mark everything dirty at and below a path, due after a delay."""
        self.hide_unanswered()
        rows = {top: self._journal.get(top), **await self._rows_below(top)}

        def walk() -> list[tuple[bytes, int]]:
            dirty = [
                (path, status.st_size)
                for path, status in self._upper.walk(top)
                if self._layer.persists(path)
                and self._planner.step_by_row(path, status, rows.get(path)) is not None
            ]
            return dirty + [(row.path, 0) for row in rows.values() if row and self._planner.is_vanished(row)]

        now_s = monotonic_s()
        is_tree = len(rows) > 1 or self._upper.at(top).is_directory()
        for path, size in await self._layer.in_thread(walk) if is_tree else walk():
            self._dirty.add(path, now_s, size, delay_s=delay_s)

    async def _rows_below(self, path: bytes) -> dict[bytes, JournalRecord]:
        """Return the rows below a path, and let other tasks run meanwhile. A row may be older than the return."""
        return {row.path: row async for row in in_turns(self._journal.rows(path))}

    def is_dirty(self, path: bytes) -> bool:
        """Return whether a path needs a step, or programs removed it from an exclusive directory."""
        status = self._upper.at(path).seen()
        if status is not None:
            return self._planner.step(path, status) is not None
        row = self._journal.get(path)
        return row is not None and self._planner.is_vanished(row)

    async def is_any_dirty(self, top: bytes) -> bool:
        """Look at everything at and below a path, and return whether any of it is dirty."""
        await self.scan_below(top)
        async for path in in_turns(self._dirty.below(top)):
            if self.is_dirty(path):
                return True
        return False

    def hide_unanswered(self) -> None:
        """Hide the names of uploads whose answer was lost and whose file no longer exists here."""
        self._hide(self._removals.unanswered_rows)

    def _hide(self, find: Callable[[], list[JournalRecord]]) -> None:
        """Hide the names that `find` returns. `find` runs again under the lock, because a session may have deferred the
        removal of a directory above such a name, which hides it."""
        if find():
            with self._upper.lock:
                self._changes.hide(find())

    async def steps_of(self, paths: Iterable[bytes]) -> dict[bytes, SyncStep]:
        """Return the step that each path needs now. Paths that need none become clean. A new, moved or removed
        directory adds the paths below it. Between two paths other tasks run, never between the look at a path and the
        decision that it is clean."""
        steps: dict[bytes, SyncStep] = {}
        async for path in in_turns(paths):
            entry = self._dirty.get(path)
            if entry is None or path in steps:  # or a directory before it added the path
                continue
            status = self._upper.at(path).seen()
            if status is None:
                if path in self._turns:  # its upload still runs, and handles it
                    self._dirty.defer([path], TURN_S)
                elif self._layer.is_exclusive(path):
                    await self._plan_vanished(path, steps)
                else:
                    self._drop_missing(path)
                continue
            step = self._planner.step(path, status)
            if step is None:
                self._dirty.drop(path)
            else:
                steps[path] = step
                self._dirty.resize(entry, status.st_size if step is SyncStep.PUT else 0)
            if step in STEPS_WITH_CHILDREN:
                await self._add_children(path, steps)
        return steps

    async def _plan_vanished(self, path: bytes, steps: dict[bytes, SyncStep]) -> None:
        """Plan what removes at the origin what programs removed from an exclusive directory: no marker hides it."""
        row = self._journal.get(path)
        if row is None or not self._planner.is_vanished(row):
            self._dirty.drop(path)
        rows = [] if row is None else [row]
        if row is None or not row.is_file:
            rows += (await self._rows_below(path)).values()
        now_s = monotonic_s()
        async for row in in_turns(rows):
            if not self._planner.is_vanished(row):
                continue
            self._dirty.resize(self._dirty.add(row.path, now_s), 0)
            if row.path in self._turns:
                self._dirty.defer([row.path], TURN_S)
            else:
                steps[row.path] = SyncStep.REMOVE_DIRECTORY if row.is_directory else SyncStep.REMOVE

    def _drop_missing(self, path: bytes) -> None:
        """Drop a dirty path without an entry, and hide what the origin may have there."""
        self._dirty.drop(path)
        self._hide(partial(self._removals.rows_without_entry, path))

    async def _add_children(self, top: bytes, steps: dict[bytes, SyncStep]) -> None:
        """Add the steps of everything below a directory."""
        now_s, rows = monotonic_s(), await self._rows_below(top)
        async for path, status in in_turns(self._upper.walk(top)):
            if path == top or path in steps:
                continue
            step = self._planner.step_by_row(path, status, rows.get(path))
            if step is not None:  # another round may have persisted it since the rows were read
                step = self._planner.step(path, status)
            if step is not None:
                entry = self._dirty.add(path, now_s)
                self._dirty.resize(entry, status.st_size if step is SyncStep.PUT else 0)
                steps[path] = step
