"""One at a time changes names of the upper layer: a session, another session, or the node.

Held for some system calls only, never while anything is copied or asked. The kernel gives it back when its holder is
killed.
"""

from __future__ import annotations

import fcntl
import os
import threading


class LayerLock:
    """May be taken again by the thread that has it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._threads = threading.RLock()
        self._depth = 0
        self._fd = -1

    def __enter__(self) -> None:
        self._threads.acquire()
        if self._depth == 0:
            try:
                if self._fd < 0:
                    self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self._fd, fcntl.LOCK_EX)
            except BaseException:
                self._threads.release()
                raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        self._threads.release()

    def reset_after_fork(self) -> None:
        """In a child. The descriptor is the parent's, too, and a lock by it would be held for both; and a thread that
        is not here may have been within."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._depth = -1, 0
        self._threads = threading.RLock()

    def close(self) -> None:
        with self._threads:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
