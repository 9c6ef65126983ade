"""Keep the paths of the upper layer that their origins may not have yet: since when, when each is due, how many
bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.base.clock import monotonic_s

BACKOFF_S_MAX = 60.0
ERRORS_SHOWN_MAX = 20


@dataclass(slots=True)
class DirtyPath:
    """State of a dirty path. since_s: monotonic. due_s: when it is to be persisted. size_bytes: set by
    `DirtySet.resize`. noted: how often it was added; a task that works on it looks again if that happened meanwhile."""

    since_s: float
    due_s: float
    size_bytes: int = 0
    attempts: int = 0
    error: str = ""
    noted: int = 0

    def failed(self, why: str) -> None:
        """Note a failure: the path is tried again later, and later still after each further failure."""
        self.attempts += 1
        self.error = why
        self.due_s = monotonic_s() + min(BACKOFF_S_MAX, 2.0 ** min(self.attempts, 10) / 2)


class DirtySet:
    def __init__(self) -> None:
        self._all: dict[bytes, DirtyPath] = {}
        self._size_bytes = 0

    def __contains__(self, path: bytes) -> bool:
        return path in self._all

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all)

    def __getitem__(self, path: bytes) -> DirtyPath:
        return self._all[path]

    def get(self, path: bytes) -> DirtyPath | None:
        return self._all.get(path)

    def add(self, path: bytes, now_s: float, size_bytes: int = 0, *, delay_s: float = 0.0) -> DirtyPath:
        """Add a path. One that is known stays as it is, except for `noted`."""
        entry = self._all.get(path)
        if entry is None:
            entry = self._all[path] = DirtyPath(now_s, now_s + delay_s, size_bytes)
            self._size_bytes += size_bytes
        entry.noted += 1
        return entry

    def resize(self, entry: DirtyPath, size_bytes: int) -> None:
        self._size_bytes += size_bytes - entry.size_bytes
        entry.size_bytes = size_bytes

    def drop(self, path: bytes, only: DirtyPath | None = None) -> None:
        """Drop a path. only: unless it was made dirty anew since that entry."""
        entry = self._all.get(path)
        if entry is not None and only in (None, entry):
            self._size_bytes -= entry.size_bytes
            del self._all[path]

    def expedite(self, path: bytes) -> None:
        """Make everything at and below a path due."""
        for dirty_path in self.below(path):
            self._all[dirty_path].due_s = 0.0

    def defer(self, paths: Iterable[bytes], delay_s: float) -> None:
        for path in paths:
            if path in self._all:
                self._all[path].due_s = monotonic_s() + delay_s

    def due(self, now_s: float, most: int) -> list[bytes]:
        return [path for path, entry in self._all.items() if entry.due_s <= now_s][:most]

    def next_due_s(self) -> float | None:
        return min((entry.due_s for entry in self._all.values()), default=None)

    def below(self, path: bytes, since_s: float | None = None) -> list[bytes]:
        """Return the dirty paths at and below a path. since_s: only those that are at least that old."""
        prefix = path.rstrip(b"/") + b"/"
        return [
            name
            for name, entry in self._all.items()
            if (name.startswith(prefix) or name == path) and (since_s is None or entry.since_s <= since_s)
        ]

    def waiting(self, path: bytes) -> tuple[int, int]:
        """Return how many names and bytes are dirty at and below a path."""
        if path == b"/":
            return len(self._all), self._size_bytes
        mine = self.below(path)
        return len(mine), sum(self._all[dirty_path].size_bytes for dirty_path in mine)

    def failing(self, path: bytes) -> list[tuple[str, str]]:
        """Return the paths that failed, at and below a path: (path, reason)."""
        errors = [(os.fsdecode(dirty_path), self._all[dirty_path].error) for dirty_path in self.below(path)]
        return [(name, error) for name, error in errors if error]

    def status(self) -> dict[str, object]:
        now_s = monotonic_s()
        return {
            "dirty": len(self._all),
            "dirty_bytes": self._size_bytes,
            "oldest_s": round(max((now_s - entry.since_s for entry in self._all.values()), default=0.0), 1),
            "errors": [list(failure) for failure in self.failing(b"/")[:ERRORS_SHOWN_MAX]],
        }
