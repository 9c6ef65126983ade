"""One at a time changes names of the upper layer: a session, another session, or the node.

Held for some system calls only, never while anything is copied or asked. The kernel gives it back when its holder is
killed, but for one case: a session that is killed while a thread of its tells the kernel of a name, which waits for an
answer that only the next session can give. Its files stay open then, and the lock with them: who waits finds that the
holder is dead, and puts another file in the place of the lock's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time

PAUSE_S, PAUSE_S_MAX = 50e-6, 5e-3
LOOK_S = 0.3
"""So long it is waited for before it is asked who has it."""


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
                self._take()
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
        self._close()
        self._depth = 0
        self._threads = threading.RLock()

    def close(self) -> None:
        with self._threads:
            self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def _take(self) -> None:
        """The file that the lock is by now."""
        pause_s, look_at_s = PAUSE_S, time.monotonic() + LOOK_S
        while True:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    return
                self._close()
                continue
            except BlockingIOError:
                time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)
            if time.monotonic() > look_at_s:
                look_at_s = time.monotonic() + LOOK_S
                if not self._is_current():
                    self._close()
                elif _is_dead(_holder(self._fd)):
                    self._replace()

    def _is_current(self) -> bool:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _replace(self) -> None:
        """One of those who wait does so."""
        guard = os.open(f"{self._path}.guard", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if self._is_current() and _is_dead(_holder(self._fd)):
                fresh = f"{self._path}.new"
                os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                os.rename(fresh, self._path)
        finally:
            os.close(guard)


def _holder(fd: int) -> int:
    """The pid that /proc/locks (proc(5)) names for the lock of this file; 0: none."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError), open("/proc/locks") as locks:
        for line in locks:
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return int(words[4])
    return 0


def _is_dead(pid: int) -> bool:
    """It was killed, and not all of its threads could end."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:
            return source.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return False  # not of this namespace, or gone, and its lock with it
