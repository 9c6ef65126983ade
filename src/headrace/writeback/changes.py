"""Track changes of the upper layer: a changed path becomes dirty, and all observers are notified by one call."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.os_errors import unread_error
from headrace.overlay.hiding import hide_missing
from headrace.writeback.action import file_at
from headrace.writeback.dirty_set import DirtySet
from headrace.writeback.observers import WriteObserver
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

UNREAD_WARNED_MAX = 20
"""Most unreadable paths that are reported with a warning. The log has more of them as information."""


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
        self._unread_named: set[bytes] = set()

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
                size_bytes, inode = file_at(self._layer.upper.at(path))
                self.dirty.resize(entry, size_bytes)
                self.dirty.identify(path, inode)
                entry.due_s = min(now_s + delay_s, max(entry.due_s, entry.since_s + 10 * delay_s))
                self.wake.set()

    def note_unread(self, path: bytes, error: OSError) -> HeadraceError:
        """Mark a path as dirty that the disk can't read or change now, and return the error. It is tried again after
        pauses. The log names it once."""
        why = error if isinstance(error, HeadraceError) else unread_error(path, error)
        now_s = monotonic_s()
        entry = self.dirty.get(path) or self.dirty.add(path, now_s)
        if not entry.is_unread:
            entry.is_unread = True
            self._name_unread(path, why)
        if entry.due_s <= now_s or not entry.error:
            entry.failed(str(why))
        return why

    def note_unexpected(self, path: bytes, error: Exception) -> HeadraceError:
        """Back off a path whose step, or the look at it, ended with an exception that is no error of Headrace or of the
        disk, and return it as an error. The log has its trace once."""
        why = HeadraceError(os.fsdecode(path), why=f"an internal error: {error!r}")
        entry = self.dirty.get(path)
        if entry is None or entry.error != str(why):
            log.error("a change can't be persisted path=%s", os.fsdecode(path), exc_info=error)
        if entry is not None and (entry.due_s <= monotonic_s() or entry.error != str(why)):
            entry.failed(str(why))  # a scan that looks before its turn makes the pause no longer
        return why

    def _name_unread(self, path: bytes, why: HeadraceError) -> None:
        named = {path for path in self._unread_named if (entry := self.dirty.get(path)) and entry.is_unread}
        self._unread_named = named
        level = logging.WARNING if len(named) < UNREAD_WARNED_MAX else logging.INFO
        if level == logging.WARNING:
            named.add(path)
        log.log(
            level,
            "a path of the upper layer can't be read, retrying path=%s error=%s",
            os.fsdecode(path),
            why,
        )

    def hide(self, rows: list[JournalRecord]) -> dict[bytes, OSError]:
        """Hide names of which nothing is left here: what the origin may have of them is removed. In an exclusive
        directory they become dirty without a marker. Return the errors of names that the disk can't hide now."""
        vanished = [row.path for row in rows if self._layer.is_exclusive(row.path)]
        self.note([path for path in vanished if path not in self.dirty], 0.0)
        rows = [row for row in rows if not self._layer.is_exclusive(row.path)]
        errors: dict[bytes, OSError] = {}
        if not rows:
            return errors
        upper = self._layer.upper
        hidden: list[bytes] = []
        with upper.lock:
            for row in rows:
                try:
                    top = hide_missing(upper, row.path, None, directory=row.is_directory)
                except OSError as error:
                    errors[row.path] = error
                else:
                    hidden += [] if top is None else [top]
        self.changed_here(hidden)
        return errors
