"""Hold the dirty paths of the upper layer: since when each is dirty, when it is due, and how many bytes it has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.base.clock import monotonic_s
from headrace.base.printable import path_text, utf8_text

BACKOFF_S_MAX = 60.0
"""Longest pause before a failed path is tried again, in seconds."""
ERRORS_SHOWN_MAX = 20
"""Most failures in the status."""


@dataclass(slots=True)
class DirtyPath:
    """Hold the state of a dirty path.

    since_s, due_s: when it became dirty, and when it is to be persisted, on the monotonic clock. size_bytes: set by
    `DirtySet.resize`. noted: number of times that the path was added; a task that persists it checks whether the number
    grew. is_unread: the disk could not read the path, or the names of the directory, so nobody knows what is dirty at
    and below it. inode: number of the file that was at the path when it was last looked at; 0 if there was none.
    """

    since_s: float
    due_s: float
    size_bytes: int = 0
    attempts: int = 0
    error: str = ""
    noted: int = 0
    is_unread: bool = False
    inode: int = 0

    def failed(self, why: str) -> None:
        """Record a failure. The path backs off: each further failure doubles the pause, up to BACKOFF_S_MAX."""
        self.attempts += 1
        self.error = why
        self.due_s = monotonic_s() + min(BACKOFF_S_MAX, 2.0 ** min(self.attempts, 10) / 2)

    def was_read(self) -> None:
        """Record that the disk can read the path, and forget an earlier failure to do so."""
        if self.is_unread:
            self.attempts, self.error, self.is_unread = 0, "", False

    def held_back(self, why: str, delay_s: float) -> None:
        """Record why the node may not persist the path now. It is no failure of the path."""
        self.error = why
        self.due_s = monotonic_s() + delay_s


class DirtySet:
    """Hold dirty paths with their state."""

    def __init__(self) -> None:
        self._all: dict[bytes, DirtyPath] = {}
        self._size_bytes = 0
        self._by_inode: dict[int, bytes] = {}
        """The last dirty name of each file."""

    def __contains__(self, path: bytes) -> bool:
        return path in self._all

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._all)

    def __getitem__(self, path: bytes) -> DirtyPath:
        return self._all[path]

    def get(self, path: bytes) -> DirtyPath | None:
        return self._all.get(path)

    def add(self, path: bytes, now_s: float, size_bytes: int = 0, *, delay_s: float = 0.0) -> DirtyPath:
        """Add a path, due after delay_s. A path that is dirty already keeps its state, except for `noted`."""
        entry = self._all.get(path)
        if entry is None:
            entry = self._all[path] = DirtyPath(now_s, now_s + delay_s, size_bytes)
            self._size_bytes += size_bytes
        entry.noted += 1
        return entry

    def resize(self, entry: DirtyPath, size_bytes: int) -> None:
        """Set the bytes that a path has to upload."""
        self._size_bytes += size_bytes - entry.size_bytes
        entry.size_bytes = size_bytes

    def identify(self, path: bytes, inode: int) -> None:
        """Record which file a dirty path has; 0 for none."""
        entry = self._all[path]
        if entry.inode != inode:
            self._forget_inode(path, entry)
            entry.inode = inode
        if inode:
            self._by_inode[inode] = path

    def _forget_inode(self, path: bytes, entry: DirtyPath) -> None:
        if entry.inode and self._by_inode.get(entry.inode) == path:
            del self._by_inode[entry.inode]

    def name_of(self, inode: int) -> bytes | None:
        """Return a dirty path that has a file; None if there is none."""
        return self._by_inode.get(inode)

    def first_unread(self) -> bytes | None:
        """Return the first path that could not be read; None if there is none."""
        return next((path for path, entry in self._all.items() if entry.is_unread), None)

    def drop(self, path: bytes, only: DirtyPath | None = None) -> None:
        """Remove a path. only: remove it only if its state is still this one, so that a later change keeps it dirty."""
        entry = self._all.get(path)
        if entry is not None and only in (None, entry):
            self._size_bytes -= entry.size_bytes
            self._forget_inode(path, entry)
            del self._all[path]

    def restore(self, path: bytes, entry: DirtyPath) -> None:
        """Put back a path that was removed, with its state."""
        self.drop(path)
        self._all[path] = entry
        self._size_bytes += entry.size_bytes
        inode, entry.inode = entry.inode, 0
        self.identify(path, inode)

    def expedite(self, path: bytes) -> None:
        """Make all dirty paths at and below a path due now."""
        for dirty_path in self.below(path):
            self._all[dirty_path].due_s = 0.0

    def defer(self, paths: Iterable[bytes], delay_s: float) -> None:
        """Make paths due after delay_s."""
        for path in paths:
            if path in self._all:
                self._all[path].due_s = monotonic_s() + delay_s

    def due(self, now_s: float, most: int) -> list[bytes]:
        """Return the first `most` paths that are due."""
        return [path for path, entry in self._all.items() if entry.due_s <= now_s][:most]

    def next_due_s(self) -> float | None:
        """Return when the first path is due, on the monotonic clock; None if nothing is dirty."""
        return min((entry.due_s for entry in self._all.values()), default=None)

    def below(self, path: bytes, since_s: float | None = None) -> list[bytes]:
        """Return the dirty paths at and below a path. since_s: only those that were dirty by then."""
        prefix = path.rstrip(b"/") + b"/"
        return [
            name
            for name, entry in self._all.items()
            if (name.startswith(prefix) or name == path) and (since_s is None or entry.since_s <= since_s)
        ]

    def waiting(self, path: bytes) -> tuple[int, int]:
        """Return the number of dirty names at and below a path, and their bytes."""
        if path == b"/":
            return len(self._all), self._size_bytes
        mine = self.below(path)
        return len(mine), sum(self._all[dirty_path].size_bytes for dirty_path in mine)

    def failing(self, path: bytes) -> list[tuple[str, str]]:
        """Return the paths that failed, at and below a path: (path, reason)."""
        errors = [(dirty_path, self._all[dirty_path].error) for dirty_path in self.below(path)]
        return [(path_text(name), utf8_text(error)) for name, error in errors if error]

    def status(self) -> dict[str, object]:
        now_s = monotonic_s()
        return {
            "dirty": len(self._all),
            "dirty_bytes": self._size_bytes,
            "oldest_s": round(max((now_s - entry.since_s for entry in self._all.values()), default=0.0), 1),
            "errors": [list(failure) for failure in self.failing(b"/")[:ERRORS_SHOWN_MAX]],
        }
