"""Share one descriptor, and one registration for passthrough, among all opens of a file of the upper layer.

The descriptor is open for reading and writing, because the kernel accepts one backing file for an inode. It is closed
with the last release, so that the node can see that nobody has the file open.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext

from headrace.fuse.io_modes import InodeIoModes

log = logging.getLogger(__name__)

_NOT_OPEN = nullcontext(None)


class OpenUpper:
    """Holds the descriptor of one open file of the upper layer. `users` counts the calls that use it now."""

    __slots__ = ("durable_ctime_ns", "fd", "opens", "reported_ctime_ns", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.opens = 0
        self.users = 0
        self.reported_ctime_ns = 0
        """The file's ctime when it was last reported to the node; 0 for a new file."""
        self.durable_ctime_ns = 0
        """The file's ctime when the file last had the durability that its mode promises; 0: not known. An earlier close
        may have failed to make it durable, in this session or in one before."""


class UpperFiles:
    """Counts the opens of files of the upper layer. Thread-safe. `register` registers a descriptor and returns a
    backing id; it raises OSError if the kernel refuses."""

    def __init__(self, inodes: InodeIoModes, register: Callable[[int], int]) -> None:
        self._inodes = inodes
        self._register = register
        self._open: dict[int, OpenUpper] = {}
        self._lock = threading.Lock()

    def add(self, node: int, fd: int, *, passthrough: bool, new: bool = False) -> int:
        """Count one more open of the node. Return its backing id; 0 if the session serves the file. This object owns
        `fd` from now on."""
        with self._lock:
            file = self._open.get(node)
            if file is None:
                file = self._open[node] = OpenUpper(fd)
                file.reported_ctime_ns = 0 if new else os.fstat(fd).st_ctime_ns
            elif fd != file.fd:
                os.close(fd)
            file.opens += 1
        backing_id = self._open_passthrough(node, file) if passthrough else 0
        return backing_id or self._inodes.open_cached(node)

    def _open_passthrough(self, node: int, file: OpenUpper) -> int:
        try:
            return self._inodes.open_passthrough(node, lambda: self._register(file.fd))
        except OSError as error:
            log.warning("passthrough refused, the session serves the file instead reason=%s", error)
            return 0

    def release(self, node: int, unique: int) -> int:
        """Count one open less, passthrough or cached: all opens of a node are of one kind. Return the descriptor after
        the last one, for the caller to close, or -1."""
        if not self._inodes.release_passthrough(node, unique, keep=False):
            self._inodes.release_cached(node)
        with self._lock:
            file = self._open.get(node)
            if file is None:
                return -1
            file.opens -= 1
            if file.opens > 0 or file.users:
                return -1
            del self._open[node]
        return file.fd

    def use(self, node: int) -> _Used | nullcontext[None]:
        """Return a context with the open file, which stays open within it, or with None when the node is not open."""
        if node not in self._open:
            return _NOT_OPEN
        with self._lock:
            file = self._open.get(node)
            if file is None:
                return _NOT_OPEN
            file.users += 1
        return _Used(self, node, file)

    def end_use(self, node: int, file: OpenUpper) -> None:
        with self._lock:
            file.users -= 1
            if file.users or file.opens > 0:
                return
            if self._open.get(node) is file:
                del self._open[node]
        os.close(file.fd)


class _Used:
    """Keeps a file open within a `with` statement. A generator would cost small requests more than the rest of this
    module."""

    __slots__ = ("_file", "_files", "_node")

    def __init__(self, files: UpperFiles, node: int, file: OpenUpper) -> None:
        self._files, self._node, self._file = files, node, file

    def __enter__(self) -> OpenUpper:
        return self._file

    def __exit__(self, *_: object) -> None:
        self._files.end_use(self._node, self._file)
