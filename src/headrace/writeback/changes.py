"""Track changes of the upper layer: a changed path becomes dirty, and all observers are notified by one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headrace.base.clock import monotonic_s
from headrace.overlay.hiding import hide_missing
from headrace.writeback.action import size_of
from headrace.writeback.dirty_set import DirtySet
from headrace.writeback.observers import WriteObserver
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.writable_layer import WritableLayer


class ChangeTracker:
    """Mark paths as dirty and notify observers. delay_s: seconds for which a path must be quiet before it is persisted.
    wake: set when a path becomes dirty."""

    def __init__(
        self, layer: WritableLayer, dirty: DirtySet, observers: WriteObserver, *, delay_s: float
    ) -> None:
        self._layer = layer
        self.dirty = dirty
        self.observers = observers
        self.delay_s = delay_s
        self.wake = asyncio.Event()

    def changed(self, paths: Iterable[bytes], source: int) -> None:
        """Note paths that a session wrote. source: the session's number."""
        changed = list(paths)
        self.note(changed, self.delay_s)
        self.observers.on_changed(changed, source)

    def changed_here(self, paths: list[bytes]) -> None:
        """Note paths that the node itself changed. They are due at once."""
        self.note(paths, 0.0)
        self.observers.on_changed(paths, 0)

    def note(self, paths: Iterable[bytes], delay_s: float) -> None:
        """Mark paths as dirty without notifying observers. A path that changes again and again is due after ten times
        its delay."""
        now_s = monotonic_s()
        for path in paths:
            if self._layer.persists(path):
                entry = self.dirty.add(path, now_s, delay_s=delay_s)
                self.dirty.resize(entry, size_of(self._layer.upper.at(path)))
                entry.due_s = min(now_s + delay_s, max(entry.due_s, entry.since_s + 10 * delay_s))
                self.wake.set()

    def hide(self, rows: list[JournalRecord]) -> None:
        """Hide names of which nothing is left here: what the origin may have of them is removed. In an exclusive
        directory they become dirty without a marker."""
        vanished = [row.path for row in rows if self._layer.is_exclusive(row.path)]
        self.note([path for path in vanished if path not in self.dirty], 0.0)
        rows = [row for row in rows if not self._layer.is_exclusive(row.path)]
        if not rows:
            return
        upper = self._layer.upper
        with upper.lock:
            hidden = [hide_missing(upper, row.path, None, directory=row.is_directory) for row in rows]
        self.changed_here([path for path in hidden if path is not None])
