"""Find what is dirty in the upper layer, and plan a round. `writeback/reconcile.py` decides on each path."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.keyed_lock import KeyedLock
from headrace.base.namespace_path import is_at_or_below
from headrace.base.sizes import disk_bytes
from headrace.writeback.action import upper_entry
from headrace.writeback.changes import ChangeTracker
from headrace.writeback.dirty_set import DirtyPath
from headrace.writeback.reconcile import SyncStep, UpperEntry, UpperKind, step_of
from headrace.writeback.removal import RemovalPropagator
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.writable_layer import WritableLayer

_T = TypeVar("_T")
CleanFiles = list[tuple[JournalRecord, os.stat_result]]
"""Clean files: the row and the status of each."""
_Rows = dict[bytes, JournalRecord | None]
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
        """Return whether a path needs a step now. A path without an entry does, and one that can't be read now."""
        try:
            status = self._upper.at(path).seen()
            return status is None or self.step(path, status) is not None
        except OSError:
            return True

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


@dataclass(slots=True)
class _Findings:
    """Hold what a walk of the layer found.

    dirty: dirty paths with their status. size_bytes: what all files take of the disk. unread: the errors of what could
    not be read. unexpected: the defects that a look at dirty paths met. missing: the paths of files that have a row and
    no entry.
    """

    dirty: list[tuple[bytes, os.stat_result | None]] = field(default_factory=list)
    clean: CleanFiles = field(default_factory=list)
    size_bytes: int = 0
    unread: dict[bytes, OSError] = field(default_factory=dict)
    unexpected: dict[bytes, Exception] = field(default_factory=dict)
    missing: set[bytes] = field(default_factory=set)

    def add_unexpected(self, path: bytes, status: os.stat_result | None, error: Exception) -> None:
        """Add a path whose look met a defect. It counts as dirty: its turn tries it again."""
        self.dirty.append((path, status))
        self.unexpected[path] = error


class LayerScan:
    """Find dirty paths in the layer, and plan a round for them. A path that the disk can't read is dirty, and delays no
    other. Calls are on the node's loop; walks over the layer run in a thread."""

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
        rows: _Rows = {row.path: row for row in self._journal.rows()}
        findings = await self._layer.in_thread(self._walk, b"/", rows)
        self._mark(findings, monotonic_s(), delay_s=self._changes.delay_s)
        if not findings.unread:
            self._removals.drop_demoted_rows(path for path in findings.missing if path not in self._dirty)
        if findings.dirty:
            self._changes.wake.set()
        return findings.clean, findings.size_bytes

    def _walk(self, top: bytes, rows: _Rows) -> _Findings:
        """Compare everything at and below a path with its rows."""
        findings = _Findings(missing={path for path, row in rows.items() if self._has_persisted_file(row)})
        for path, status in self._upper.walk(top, findings.unread):
            findings.missing.discard(path)
            findings.size_bytes += disk_bytes(status)
            if not self._layer.persists(path):
                continue
            row = rows.get(path)
            try:
                step = self._planner.step_by_row(path, status, row)
            except OSError as error:
                findings.unread[path] = error
                continue
            except Exception as error:  # noqa: BLE001 - `_mark` logs it; one bad path must hold up no other
                findings.add_unexpected(path, status, error)
                continue
            if step is not None:
                findings.dirty.append((path, status))
            elif row is not None and stat.S_ISREG(status.st_mode):
                findings.clean.append((row, status))
        for row in filter(None, rows.values()):
            try:
                if self._planner.is_vanished(row):
                    findings.dirty.append((row.path, None))
            except OSError as error:
                findings.unread[row.path] = error
            except Exception as error:  # noqa: BLE001 - the same
                findings.add_unexpected(row.path, None, error)
        return findings

    def _has_persisted_file(self, row: JournalRecord | None) -> bool:
        """Return whether the origin has a file, and the layer keeps a marker of its removal."""
        return row is not None and row.is_file and not row.begun and not self._layer.is_exclusive(row.path)

    def _mark(self, findings: _Findings, since_s: float, *, delay_s: float) -> list[HeadraceError]:
        """Mark what a walk found as dirty. Return the errors of what could not be read or decided."""
        for path, status in findings.dirty:
            size_bytes = 0 if status is None else status.st_size
            self._dirty.add(path, since_s, size_bytes, delay_s=delay_s)
            self._dirty.identify(path, _inode_of_file(status))
        return [
            *(self._changes.note_unread(path, error) for path, error in findings.unread.items()),
            *(self._changes.note_unexpected(path, error) for path, error in findings.unexpected.items()),
        ]

    async def scan_below(self, top: bytes, *, delay_s: float = 0.0) -> None:
        """Mark everything dirty at and below a path, due after a delay."""
        self.hide_unanswered()
        self._mark(await self._find_below(top), monotonic_s(), delay_s=delay_s)

    async def _find_below(self, top: bytes) -> _Findings:
        rows: _Rows = {top: self._journal.get(top), **await self._rows_below(top)}
        try:
            is_tree = len(rows) > 1 or self._upper.at(top).is_directory()
        except OSError as error:
            return _Findings(unread={top: error})
        findings: _Findings = (
            await self._layer.in_thread(self._walk, top, rows) if is_tree else self._walk(top, rows)
        )
        return findings

    async def _rows_below(self, path: bytes) -> dict[bytes, JournalRecord]:
        """Return the rows below a path, and let other tasks run meanwhile. A row may be older than the return."""
        return {row.path: row async for row in in_turns(self._journal.rows(path))}

    def is_dirty(self, path: bytes) -> bool:
        """Return whether a path needs a step, or programs removed it from an exclusive directory. A path is dirty if it
        can't be read now, or if the look at it meets a defect."""
        entry = self._dirty.get(path)
        if entry is not None and entry.is_unread:
            return True
        try:
            status = self._upper.at(path).seen()
            if status is not None:
                return self._planner.step(path, status) is not None
            row = self._journal.get(path)
            return row is not None and self._planner.is_vanished(row)
        except Exception:  # noqa: BLE001 - the next scan or round logs it
            return True

    async def is_any_dirty(self, top: bytes) -> bool:
        """Look at everything at and below a path, and return whether any of it is dirty."""
        await self.scan_below(top)
        async for path in in_turns(self._dirty.below(top)):
            if self.is_dirty(path):
                return True
        return False

    def hide_unanswered(self) -> None:
        """Hide the names of uploads whose answer was lost and whose file no longer exists here."""
        for path, error in self._hide(self._removals.unanswered_rows).items():
            self._changes.note_unread(path, error)

    def _hide(self, find: Callable[[], list[JournalRecord]]) -> dict[bytes, OSError]:
        """Hide the names that `find` returns, and return the errors of those that could not be hidden. `find` runs
        again under the lock, because a session may have deferred the removal of a directory above such a name, which
        hides it."""
        if not find():
            return {}
        with self._upper.lock:
            return self._changes.hide(find())

    async def steps_of(self, paths: Iterable[bytes]) -> tuple[dict[bytes, SyncStep], list[HeadraceError]]:
        """Return the step that each path needs now, and the errors of paths that can't be read. Paths that need none
        become clean. A new, moved or removed directory adds the paths below it. Between two paths other tasks run,
        never between the look at a path and the decision that it is clean."""
        steps: dict[bytes, SyncStep] = {}
        errors: list[HeadraceError] = []
        async for path in in_turns(paths):
            entry = self._dirty.get(path)
            if entry is None or path in steps:  # or a directory before it added the path
                continue
            try:
                if not entry.is_unread or await self._read_again(path, entry, errors):
                    entry = self._dirty[path]
                    await self._plan(path, entry, steps, errors)
                    entry.was_read()
            except OSError as error:
                errors.append(self._changes.note_unread(path, error))
            except Exception as error:  # noqa: BLE001 - it is logged; one bad path must hold up no other
                steps.pop(path, None)
                errors.append(self._changes.note_unexpected(path, error))
        return steps, errors

    async def _read_again(self, path: bytes, entry: DirtyPath, errors: list[HeadraceError]) -> bool:
        """Look at everything at and below a path that could not be read. Return whether the path can be read now, and
        is to be persisted. What is found below it counts as dirty since the path was."""
        findings = await self._find_below(path)
        is_read = path not in findings.unread
        errors += self._mark(findings, entry.since_s, delay_s=0.0)
        if is_read and not self._layer.persists(path):  # a directory above others that are
            self._dirty.drop(path)
        return is_read and path in self._dirty

    async def _plan(
        self, path: bytes, entry: DirtyPath, steps: dict[bytes, SyncStep], errors: list[HeadraceError]
    ) -> None:
        """Add the step of one path. Raises OSError if it can't be read."""
        status = self._upper.at(path).seen()
        if status is None:
            if path in self._turns:  # its upload still runs, and handles it
                self._dirty.defer([path], TURN_S)
            elif self._layer.is_exclusive(path):
                await self._plan_vanished(path, steps)
            else:
                self._drop_missing(path)
            return
        step = self._planner.step(path, status)
        if step is None:
            self._dirty.drop(path)
        else:
            steps[path] = step
            self._describe(path, entry, step, status)
        if step in STEPS_WITH_CHILDREN:
            await self._add_children(path, steps, errors)

    def _describe(self, path: bytes, entry: DirtyPath, step: SyncStep, status: os.stat_result) -> None:
        """Record the bytes and the file that a step uploads."""
        is_put = step is SyncStep.PUT
        self._dirty.resize(entry, status.st_size if is_put else 0)
        self._dirty.identify(path, status.st_ino if is_put else 0)

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
        """Drop a dirty path without an entry, and hide what the origin may have there. Raises OSError, and keeps the
        path, if the disk can't hide it now."""
        entry = self._dirty[path]
        self._dirty.drop(path)
        try:
            errors = self._hide(partial(self._removals.rows_without_entry, path))
            for error in errors.values():
                raise error
        except Exception:
            self._dirty.restore(path, entry)
            raise

    async def _add_children(
        self, top: bytes, steps: dict[bytes, SyncStep], errors: list[HeadraceError]
    ) -> None:
        """Add the steps of everything below a directory. If its names can't be read, raise that, without a step of the
        directory itself."""
        now_s, rows = monotonic_s(), await self._rows_below(top)
        unread: dict[bytes, OSError] = {}
        async for path, status in in_turns(self._upper.walk(top, unread)):
            if path == top or path in steps:
                continue
            try:
                step = self._planner.step_by_row(path, status, rows.get(path))
                if step is not None:  # another round may have persisted it since the rows were read
                    step = self._planner.step(path, status)
            except OSError as error:
                unread[path] = error
                continue
            except Exception as error:  # noqa: BLE001 - it is logged; one bad path must hold up no other
                self._dirty.add(path, now_s)
                self._dirty.identify(path, _inode_of_file(status))
                errors.append(self._changes.note_unexpected(path, error))
                continue
            if step is not None:
                self._describe(path, self._dirty.add(path, now_s), step, status)
                steps[path] = step
        failure = unread.pop(top, None)
        errors += [self._changes.note_unread(path, error) for path, error in unread.items()]
        if failure is not None:
            del steps[top]
            raise failure


def _inode_of_file(status: os.stat_result | None) -> int:
    return status.st_ino if status is not None and stat.S_ISREG(status.st_mode) else 0
