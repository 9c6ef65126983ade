"""Lock the names of the upper layer: one thread of a session or of the node changes them at a time.

The lock is held for a few system calls only, never during a copy or a request. The kernel releases it when its holder
is killed, with one exception. A thread may be notifying the kernel of a name when its session is killed. That call
returns only after the next session answers. Until then the session's files stay open, and the lock stays held. A
waiting thread detects that the holder is dead, and replaces the lock file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time

from headrace.base.proc_stat import ENDED, state_of

PAUSE_S, PAUSE_S_MAX = 50e-6, 5e-3
"""First and longest pause between two attempts to lock, in seconds."""
HOLDER_CHECK_S = 0.3
"""Seconds of waiting after which a thread checks whether the lock's holder lives."""


class LayerLock:
    """Lock the names of a layer. The thread that holds the lock may acquire it again. path: the lock file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._threads = threading.RLock()
        self._depth = 0
        self._fd = -1
        self._file = (0, 0)
        """The device and the inode number of the open lock file."""

    def __enter__(self) -> None:
        self._threads.acquire()
        if self._depth == 0:
            try:
                self._acquire()
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
        """Reset the lock in a child. The child shares the descriptor with its parent, so a lock by it would be held for
        both. A thread of the parent, which this process lacks, may have held the lock."""
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

    def _acquire(self) -> None:
        """Lock the file that is at the path now. Blocks."""
        pause_s, check_at_s = PAUSE_S, time.monotonic() + HOLDER_CHECK_S
        while True:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                own = os.fstat(self._fd)
                self._file = own.st_dev, own.st_ino
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_current():
                    return
                self._close()
                continue
            except BlockingIOError:
                time.sleep(pause_s)
            pause_s = min(PAUSE_S_MAX, 2 * pause_s)
            if time.monotonic() > check_at_s:
                check_at_s = time.monotonic() + HOLDER_CHECK_S
                if not self._is_current():
                    self._close()
                elif _is_dead(_holder(self._fd)):
                    self._replace()

    def _is_current(self) -> bool:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def _replace(self) -> None:
        """Replace the lock file of a dead holder. The guard file makes sure that only one waiting thread does so."""
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
    """Return the pid that /proc/locks (proc(5)) names for the lock of this file; 0 for none."""
    inode = str(os.fstat(fd).st_ino)
    with contextlib.suppress(OSError), open("/proc/locks") as locks:
        for line in locks:
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return int(fields[4])
    return 0


def _is_dead(pid: int) -> bool:
    """Return whether a process was killed but some of its threads still run. A process that is not seen has ended,
    which released its lock, or is in another pid namespace."""
    return state_of(pid) in ENDED
