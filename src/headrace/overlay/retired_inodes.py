"""Keep the inode numbers of files that were removed from the upper layer, while a kernel may still know them.

A session's node id is an inode number. The kernel uses a name for UPPER_TTL_S, and may take a lookup's answer some time
after it was sent. A new file of the same number would then be opened under the old name, and the kernel fails the calls
on it with EIO. The node and the gateways therefore keep what they remove open. So does a session whose answer may wait,
because the kernel has the name until then. docs/decisions/0080-inode-numbers-come-back.md
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.base.beneath import SafePath

KEPT_S = 5.0
"""Seconds for which a number is kept."""
CLOSE_INTERVAL_S = 0.1
"""Seconds between two rounds of closing files, of which thousands may be removed in a second."""
FILES_MAX = 4096
"""Most files that are kept open, if the process may open eight times as many. Of more, the oldest is closed early."""
KEPT_BYTES_MAX = 4096
"""Most bytes on the disk that a removed file keeps. Of a larger one they are freed, unless some process has it open."""


class RetiredInodes:
    """Holds removed files open. Thread-safe. A thread closes them; it runs while there are any."""

    def __init__(self) -> None:
        self._files_max = min(FILES_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._lock = threading.Lock()
        self._files: deque[tuple[float, int]] = deque()
        """The time of the close of each file, and its descriptor, the oldest first."""
        self._has_thread = False
        self._ended = threading.Event()

    @contextmanager
    def removing(self, path: SafePath) -> Iterator[None]:
        """Keep what has the path now, if it loses its last name in the block. The caller holds the layer's lock, so no
        session opens the file meanwhile."""
        try:
            fd = path.open(os.O_PATH)
        except OSError:
            yield  # there is nothing, or the block fails like this
            return
        try:
            yield
            is_kept = _has_no_name(fd)
        except BaseException:
            os.close(fd)
            raise
        if is_kept:
            self.keep(fd)
        else:
            os.close(fd)

    def keep(self, fd: int) -> None:
        """Close a file after KEPT_S."""
        with self._lock:
            self._files.append((time.monotonic() + KEPT_S, fd))
            if len(self._files) > self._files_max:
                self._close_oldest()
            if not self._has_thread:
                self._has_thread = True
                self._ended.clear()
                threading.Thread(target=self._close_each, daemon=True, name="retired-inodes").start()

    def close(self) -> None:
        """Close all files: the process ends, and a killed one would close them, too."""
        with self._lock:
            while self._files:
                self._close_oldest()
        self._ended.set()

    def reset_after_fork(self) -> None:
        """Close the files in a new child: its parent keeps them."""
        self._lock = threading.Lock()
        self._has_thread = False
        self._ended = threading.Event()
        self.close()

    def _close_oldest(self) -> None:
        os.close(self._files.popleft()[1])

    def _close_each(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                while self._files and self._files[0][0] <= now:
                    self._close_oldest()
                if not self._files:
                    self._has_thread = False
                    return
                wait_s = self._files[0][0] - now
            self._ended.wait(max(wait_s, CLOSE_INTERVAL_S))


def _has_no_name(fd: int) -> bool:
    """Return whether a file or directory is to be kept: it has no name any more. Frees the bytes of a large file."""
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode) or status.st_nlink:
        return not status.st_nlink
    if status.st_blocks * 512 <= KEPT_BYTES_MAX or not stat.S_ISREG(status.st_mode):
        return True
    try:
        _free(fd)
    except OSError as error:
        return error.errno == errno.EAGAIN  # some process has it open, and so its bytes
    return True


def _free(fd: int) -> None:
    """Free the bytes of a file that no process has open: fcntl(2) then gives a lease. Raises OSError."""
    file = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # does nothing by default
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        os.ftruncate(file, 0)
    finally:
        os.close(file)
