"""Open cache files for READ requests, and positions in directories.

READ is stateless: a handle is found by file id and made when it is not there, so a new session answers for
files that an earlier one opened. Handles of nobody stay open in an LRU.
"""

from __future__ import annotations

import bisect
import os
import threading
from collections import OrderedDict

from headrace.base.model import FileId
from headrace.fuse.client_protocol import CacheFile, ReadingClient
from headrace.sdk.cancel import Cancel

IDLE_FILES_MAX = 2048


class Handle:
    """file: None when the cache file is complete, and then fd is ours. users: reads going on now."""

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
        """How many of these bytes the file has."""
        return max(0, min(size_bytes, self.size_bytes - offset))

    def present(self, offset: int, size_bytes: int) -> bool:
        count = self.within(offset, size_bytes)
        return self.file is None or count == 0 or self.file.present(offset, offset + count)

    def fd_with(self, offset: int, count: int, cancel: Cancel | None = None) -> int:
        """The descriptor to read these bytes of: not any other, it may have a hole there. Blocks until they are
        present."""
        if self.file is None or count == 0:
            return self.fd
        return self.file.wait(offset, offset + count, cancel)

    def close(self) -> None:
        if self.file is None:
            os.close(self.complete_fd)
        else:
            self.file.close()


class HandleCache:
    def __init__(self, client: ReadingClient, *, idle_max: int = IDLE_FILES_MAX) -> None:
        self._client = client
        self._idle_max = idle_max
        self._lock = threading.Lock()
        self._handles: OrderedDict[int, Handle] = OrderedDict()

    def take(self, id: FileId) -> Handle | None:
        """Never blocks on the node; None: `take_blocking`. Give it back with `give`."""
        with self._lock:
            handle = self._handles.get(id)
            if handle is not None:
                handle.users += 1
                self._handles.move_to_end(id)
                return handle
        path = self._client.complete_path(id)
        if path is None:
            return None
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # evicted just now
            return None
        return self.put(id, Handle(fd, None, os.fstat(fd).st_size))

    def take_blocking(self, id: FileId, cancel: Cancel) -> Handle:
        handle = self.take(id)
        if handle is not None:
            return handle
        return self.put(id, self.wrap(id, self._client.open(id, cancel)))

    def wrap(self, id: FileId, file: CacheFile) -> Handle:
        found = self._client.entry(id)
        return Handle(-1, file, os.fstat(file.fd).st_size if found is None else found.version.size_bytes)

    def put(self, id: FileId, made: Handle) -> Handle:
        """The handle to use: made, or the one that another thread put first."""
        surplus = []
        with self._lock:
            handle = self._handles.setdefault(id, made)
            handle.users += 1
            if handle is not made:
                surplus.append(made)
            while len(self._handles) > self._idle_max:
                oldest = next((key for key, one in self._handles.items() if one.users == 0), None)
                if oldest is None:
                    break
                surplus.append(self._handles.pop(oldest))
        for one in surplus:
            one.close()
        return handle

    def give(self, handle: Handle) -> None:
        with self._lock:
            handle.users -= 1
            close = handle.stale and handle.users == 0
        if close:
            handle.close()

    def kept_if_present(self, handle: Handle, offset: int, size_bytes: int) -> bool:
        """Whether the bytes are here; where they are not, or it can't be told, the handle is given back."""
        here = False
        try:
            here = handle.present(offset, size_bytes)
        finally:
            if not here:
                self.give(handle)
        return here

    def ids(self) -> list[int]:
        with self._lock:
            return list(self._handles)

    def drop(self, id: FileId) -> None:
        """The cache file was evicted or became complete: the next READ opens what is there then."""
        with self._lock:
            handle = self._handles.pop(id, None)
            if handle is None:
                return
            handle.stale = True
            close = handle.users == 0
        if close:
            handle.close()


class Directory:
    """Where a reader of a directory is. Offsets are 0: start, 1: after `.`, 2: after `..`, 2+n: after n
    names. Only the starts of pages are kept, so a directory of a million names needs some thousand entries
    here."""

    def __init__(self) -> None:
        self._offsets = [2]
        self._names = [b""]
        self.above: list[tuple[bytes, bool]] | None = None
        """What the upper layer said of its names when the reading began; None: it begins now."""
        self._page: tuple[int, list[bytes]] = (2, [])

    def note(self, offset: int, name: bytes) -> None:
        """A page ended: the next begins at offset, after name."""
        if offset > self._offsets[-1]:
            self._offsets.append(offset)
            self._names.append(name)

    def note_page(self, offset: int, names: list[bytes]) -> None:
        """The names of a page that began at offset: a reader may go on from any of them, and while names go away
        under it, counting from the start would pass by some."""
        self._page = (offset, names)
        if names:
            self.note(offset + len(names), names[-1])

    def seek(self, offset: int) -> tuple[bytes, int]:
        """The name to begin after, and how many names to skip then."""
        begin, names = self._page
        if begin < offset <= begin + len(names):
            return names[offset - begin - 1], 0
        at = bisect.bisect_right(self._offsets, offset) - 1
        return self._names[at], offset - self._offsets[at]


class Directories:
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
        """One that an earlier session opened begins with no page starts: slower, still right."""
        with self._lock:
            return self._open.setdefault(fh, Directory())

    def close(self, fh: int) -> None:
        with self._lock:
            self._open.pop(fh, None)

    def start_at(self, first: int) -> None:
        """Handles of this session must not meet those of an earlier one."""
        self._next = first
