"""Note what changed in the upper layer: a path becomes dirty, and all observers learn of it by one call."""

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
    """Mark paths as dirty and pass changes on. delay_s: how long a path is quiet before it is persisted. wake: set when
    there is something to persist."""

    def __init__(
        self, layer: WritableLayer, dirty: DirtySet, observers: WriteObserver, *, delay_s: float
    ) -> None:
        self._layer = layer
        self.dirty = dirty
        self.observers = observers
        self.delay_s = delay_s
        self.wake = asyncio.Event()

    def changed(self, paths: Iterable[bytes], source: int) -> None:
        """Note what a session wrote. source: its number."""
        changed = list(paths)
        self.note(changed, self.delay_s)
        self.observers.on_changed(changed, source)

    def changed_here(self, paths: list[bytes]) -> None:
        """Note what the node itself changed; it is due at once."""
        self.note(paths, 0.0)
        self.observers.on_changed(paths, 0)

    def note(self, paths: Iterable[bytes], delay_s: float) -> None:
        """Mark paths as dirty; observers do not learn of it."""
        now_s = monotonic_s()
        for path in paths:
            if self._layer.persists(path):
                entry = self.dirty.add(path, now_s, delay_s=delay_s)
                self.dirty.resize(entry, size_of(self._layer.upper.at(path)))
                entry.due_s = min(now_s + delay_s, max(entry.due_s, entry.since_s + 10 * delay_s))
                self.wake.set()

    def hide(self, rows: list[JournalRecord]) -> None:
        """Hide names of which nothing is left here: what the origin may have of them is removed."""
        if not rows:
            return
        upper = self._layer.upper
        with upper.lock:
            hidden = [hide_missing(upper, row.path, None, directory=row.is_directory) for row in rows]
        self.changed_here([path for path in hidden if path is not None])
