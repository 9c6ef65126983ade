"""Keep cache files open for READ requests, and positions in directories.

READ is stateless: a handle is found by file id, and opened when it is missing. A new session therefore answers READ
for files that an earlier one opened. Unused handles stay open in an LRU.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections import OrderedDict

from headrace.base.cancel import Cancel
from headrace.base.model import FileId
from headrace.fuse.client_protocol import CacheFile, ReadingClient

IDLE_FILES_MAX = 2048
"""Most handles that stay open without a read."""
DROPPED_MAX = 1024
"""Most dropped ids that are remembered, for threads that open one of them at that moment."""


class Handle:
    """Holds an open cache file. `file` is None for a complete one, whose `fd` the handle owns. `users` counts the reads
    in progress."""

    __slots__ = ("complete_fd", "file", "size_bytes", "stale", "users")

    def __init__(self, fd: int, file: CacheFile | None, size_bytes: int) -> None:
        self.complete_fd = fd
        self.file = file
        self.size_bytes = size_bytes
        self.users = 0
        self.stale = False

    @property
    def fd(self) -> int:
        return self.complete_fd if self.file is None else self.file.fd

    def within(self, offset: int, size_bytes: int) -> int:
        """Return the number of these bytes that lie within the file."""
        return max(0, min(size_bytes, self.size_bytes - offset))

    def present(self, offset: int, size_bytes: int) -> bool:
        count = self.within(offset, size_bytes)
        return self.file is None or count == 0 or self.file.present(offset, offset + count)

    def fd_with(self, offset: int, count: int, cancel: Cancel | None = None) -> int:
        """Wait until these bytes are present. Return the descriptor to read them from. Other descriptors of the file
        may have a hole there."""
        if self.file is None or count == 0:
            return self.fd
        return self.file.wait(offset, offset + count, cancel)

    def close(self) -> None:
        if self.file is None:
            os.close(self.complete_fd)
        else:
            self.file.close()


class HandleCache:
    """Finds and opens the handles of files by id, and keeps up to IDLE_FILES_MAX of them open. Thread-safe.
    reports_use: whether a handle that is opened is reported as a use of its file, as the kernel reports no OPEN."""

    def __init__(self, client: ReadingClient, *, reports_use: bool = False) -> None:
        self._client = client
        self._reports_use = reports_use
        self._lock = threading.Lock()
        self._handles: OrderedDict[int, Handle] = OrderedDict()
        self.drops = 0
        """Number of calls of `drop` so far."""
        self._dropped: OrderedDict[int, int] = OrderedDict()
        """The number of the last drop of each id, for the last DROPPED_MAX ids."""

    def acquire(self, id: FileId, pid: int = 0) -> Handle | None:
        """Acquire the handle of a complete cache file, without blocking on the node. Return None if only
        `acquire_blocking` can open it. The caller releases it by `release`. pid: of the reader; 0: not known."""
        with self._lock:
            handle = self._handles.get(id)
            if handle is not None:
                handle.users += 1
                self._handles.move_to_end(id)
                return handle
            drops = self.drops
        path = self._client.complete_path(id)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # evicted just now
            return None
        return self.put(id, Handle(fd, None, os.fstat(fd).st_size), pid, drops=drops)

    def acquire_blocking(self, id: FileId, cancel: Cancel, pid: int = 0) -> Handle:
        handle = self.acquire(id, pid)
        if handle is not None:
            return handle
        drops = self.drops
        return self.put(id, self.wrap(id, self._client.open(id, cancel)), pid, drops=drops)

    def wrap(self, id: FileId, file: CacheFile) -> Handle:
        entry = self._client.entry(id)
        return Handle(-1, file, os.fstat(file.fd).st_size if entry is None else entry.version.size_bytes)

    def put(self, id: FileId, new: Handle, pid: int = 0, *, drops: int) -> Handle:
        """Return the handle to use: the new one, or the one that another thread put first. drops: `drops` before the
        file was opened. A file that was dropped since then is closed after this use."""
        surplus = []
        if self._reports_use:
            self._client.touch(id, pid)
        with self._lock:
            if self._dropped.get(id, 0) > drops or self.drops - drops > DROPPED_MAX:
                new.users, new.stale = 1, True
                return new
            handle = self._handles.setdefault(id, new)
            handle.users += 1
            if handle is not new:
                surplus.append(new)
            while len(self._handles) > IDLE_FILES_MAX:
                oldest = next((key for key, kept in self._handles.items() if kept.users == 0), None)
                if oldest is None:
                    break
                surplus.append(self._handles.pop(oldest))
        for unused in surplus:
            unused.close()
        return handle

    def release(self, handle: Handle) -> None:
        with self._lock:
            handle.users -= 1
            close = handle.stale and handle.users == 0
        if close:
            handle.close()

    def check_present(self, handle: Handle, offset: int, size_bytes: int) -> bool:
        """Return whether the bytes are present. If they are not, or the check fails, release the handle."""
        is_present = False
        try:
            is_present = handle.present(offset, size_bytes)
        finally:
            if not is_present:
                self.release(handle)
        return is_present

    def ids(self) -> list[int]:
        with self._lock:
            return list(self._handles)

    def drop(self, id: FileId) -> None:
        """Close the handle after its last read: the cache file was evicted or completed. The next READ opens it
        again."""
        with self._lock:
            self.drops += 1
            self._dropped[id] = self.drops
            self._dropped.move_to_end(id)
            if len(self._dropped) > DROPPED_MAX:
                self._dropped.popitem(last=False)
            handle = self._handles.pop(id, None)
            if handle is None:
                return
            handle.stale = True
            close = handle.users == 0
        if close:
            handle.close()


class Directory:
    """Holds the position of one reader of a directory. Offset 0 is the start, 1 is after `.`, 2 is after `..`, and 2+n
    is after n names. It keeps only the starts of pages, some thousand for a directory of a million names."""

    def __init__(self) -> None:
        self.rewind()

    def rewind(self) -> None:
        """Begin again, as rewinddir(3) does. Positions of the reading before belong to names as they were then."""
        self._offsets = [2]
        self._names = [b""]
        self.upper_rows: list[tuple[bytes, bool]] | None = None
        """The names of the upper layer when the reading began; None when it begins now."""
        self._page: tuple[int, list[bytes]] = (2, [])

    def record_page(self, offset: int, names: list[bytes]) -> None:
        """Record the names of the page that began at `offset`. A reader may continue from any of them. Counting from
        the start would skip some names, if names are removed while it reads."""
        self._page = (offset, names)
        end = offset + len(names)
        if end > self._offsets[-1] and names:
            self._offsets.append(end)
            self._names.append(names[-1])

    def seek(self, offset: int) -> tuple[bytes, int]:
        """Return the name to continue after, and the number of names to skip from there."""
        begin, names = self._page
        if begin < offset <= begin + len(names):
            return names[offset - begin - 1], 0
        index = bisect.bisect_right(self._offsets, offset) - 1
        return self._names[index], offset - self._offsets[index]


class Directories:
    """Assigns file handles to the open directories of the session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Directory] = {}
        self._next = 1

    def open(self) -> int:
        with self._lock:
            fh = self._next
            self._next += 1
            self._open[fh] = Directory()
            return fh

    def get(self, fh: int) -> Directory:
        """Return the position of a handle. The position of an earlier session's handle has no starts of pages, so it is
        slower, and still correct."""
        with self._lock:
            return self._open.setdefault(fh, Directory())

    def close(self, fh: int) -> None:
        with self._lock:
            self._open.pop(fh, None)

    def start_at(self, first: int) -> None:
        """Set the first handle to assign, so that this session's handles differ from those of earlier ones."""
        self._next = first
