"""Files of the upper layer that the kernel has open: one descriptor each, one registration for passthrough.

However many opens there are, they share the descriptor, which is for reading and writing: the kernel takes one backing
file an inode. It is let go with the last release, so that the node can see that nobody has the file open.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import nullcontext

from headrace.fuse.io_modes import InodeIoModes

_NOT_OPEN = nullcontext(None)


class OpenUpper:
    __slots__ = ("fd", "opens", "secured", "told", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.opens = 0
        self.users = 0
        self.told = 0
        """The file's ctime in ns when the node was last told of it; of a new one 0."""
        self.secured = 0
        """The same when the file last had what its mode promises."""


class UpperFiles:
    """register: a descriptor to a backing id (OSError when the kernel won't)."""

    def __init__(self, inodes: InodeIoModes, register: Callable[[int], int]) -> None:
        self._inodes = inodes
        self._register = register
        self._open: dict[int, OpenUpper] = {}
        self._lock = threading.Lock()

    def add(self, node: int, fd: int, *, passthrough: bool, new: bool = False) -> int:
        """One more open of the node, by a descriptor that belongs to this from now on; the backing id, or 0."""
        with self._lock:
            file = self._open.get(node)
            if file is None:
                file = self._open[node] = OpenUpper(fd)
                file.told = file.secured = 0 if new else os.fstat(fd).st_ctime_ns
            elif fd != file.fd:
                os.close(fd)
            file.opens += 1
        backing_id = 0
        if passthrough:
            backing_id = self._inodes.open_passthrough(node, lambda: self._register(file.fd))
        return backing_id or self._inodes.open_cached(node)

    def open_again(self, node: int, *, passthrough: bool) -> int | None:
        """As add, of a node that is open; None when it is not."""
        with self._lock:
            file = self._open.get(node)
            fd = -1 if file is None else file.fd
        return None if fd < 0 else self.add(node, fd, passthrough=passthrough)

    def release(self, node: int, unique: int) -> None:
        """One of either kind, whichever this session counts: they are never mixed."""
        if not self._inodes.release_passthrough(node, unique, keep=False):
            self._inodes.release_cached(node)
        with self._lock:
            file = self._open.get(node)
            if file is None:
                return
            file.opens -= 1
            if file.opens > 0 or file.users:
                return
            del self._open[node]
        os.close(file.fd)

    def use(self, node: int) -> _Used | nullcontext[None]:
        """With it: the open file, which stays open within; None when it is not open."""
        if node not in self._open:
            return _NOT_OPEN
        with self._lock:
            file = self._open.get(node)
            if file is None:
                return _NOT_OPEN
            file.users += 1
        return _Used(self, node, file)

    def give(self, node: int, file: OpenUpper) -> None:
        with self._lock:
            file.users -= 1
            if file.users or file.opens > 0:
                return
            if self._open.get(node) is file:
                del self._open[node]
        os.close(file.fd)


class _Used:
    """A generator would cost the small requests more than all else here."""

    __slots__ = ("_file", "_files", "_node")

    def __init__(self, files: UpperFiles, node: int, file: OpenUpper) -> None:
        self._files, self._node, self._file = files, node, file

    def __enter__(self) -> OpenUpper:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._files.give(self._node, self._file)
