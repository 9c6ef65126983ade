"""Free the bytes of large removed files outside the hot thread.

The disk's file system frees a file when its last name and its last descriptor are gone: 0.1 s and more for 512 MiB. A
call that removes or replaces such a file therefore holds it by a descriptor of its own. The name goes at once, under
the layer's lock, and the last close follows in the pool for work of the disk. The call is answered after that, as on a
local disk: its program finds the room when it asks statfs(2), or writes to a full disk. Other calls don't wait.

If the session dies in between, the kernel closes the descriptors, and resends the call to the next session.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from headrace.base.beneath import SafePath
from headrace.base.sizes import disk_bytes
from headrace.fuse.operations import Answer, Deferred, DiskTask
from headrace.overlay.upper import Hidden

FREED_AT_ONCE_BYTES = 8 << 20
"""Largest file that the hot thread frees, which takes 0.3 to 3 ms. A change of threads costs some 50 µs."""


class RemovedFiles:
    """Holds the large files that one call removes or replaces. One thread at a time uses it: that of the call."""

    __slots__ = ("_fds",)

    def __init__(self) -> None:
        self._fds: list[int] = []

    def hold(
        self, path: SafePath, status: os.stat_result | Hidden | None, change: Callable[[], None]
    ) -> None:
        """Call what removes or replaces the name at a path, and hold its file if that is large and may have lost its
        last name. status: of the name. If the call fails, nothing is held."""
        fd = _pinned(path) if _is_large(status) else -1
        try:
            change()
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        if fd >= 0:
            self._fds.append(fd)

    def free_before_answer(self, work: Callable[[], Answer | Deferred]) -> Answer | Deferred | DiskTask:
        """Do the work of the call, which may hold files. Return its answer, or what frees the files before the
        answer."""
        answer = self._done(work)
        if self._fds:
            return DiskTask(lambda: self._free(answer))
        return self._free_later(answer)

    def _done(self, work: Callable[[], Answer | Deferred]) -> Answer | Deferred:
        try:
            return work()
        except BaseException:
            self._close()
            raise

    def _free_later(self, answer: Answer | Deferred) -> Answer | Deferred:
        """Return the answer. Work that is deferred frees what it holds in its own thread, for which no other call
        waits."""
        if not callable(answer):
            return answer
        return lambda cancel: self._free(self._done(lambda: answer(cancel)))

    def _free(self, answer: Answer | Deferred) -> Answer | Deferred:
        self._close()
        return self._free_later(answer)

    def _close(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)


def close_last(fd: int, status: os.stat_result) -> Answer | DiskTask:
    """Close a file that no program has open any more: in the pool if it is large and was removed meanwhile."""
    if status.st_nlink or not loses_many_bytes(status, 0):
        os.close(fd)
        return 0
    return DiskTask(lambda: _closed(fd))


def loses_many_bytes(status: os.stat_result, size_bytes: int) -> bool:
    """Return whether a file that gets this size frees more bytes than the hot thread should."""
    return disk_bytes(status) - size_bytes > FREED_AT_ONCE_BYTES


def _closed(fd: int) -> Answer:
    os.close(fd)
    return 0


def _is_large(status: os.stat_result | Hidden | None) -> bool:
    """Return whether a removal of this name would free many bytes. It frees none while the file has another name."""
    if not isinstance(status, os.stat_result):
        return False
    return status.st_nlink == 1 and stat.S_ISREG(status.st_mode) and loses_many_bytes(status, 0)


def _pinned(path: SafePath) -> int:
    """Return a descriptor that neither reads nor writes the file (O_PATH), so no lease and no mode is in its way; -1
    without one. Then the change itself frees the file."""
    try:
        return path.open(os.O_PATH)
    except OSError:
        return -1
