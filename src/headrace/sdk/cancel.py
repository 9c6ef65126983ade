"""Breaking off a blocked call from another thread."""

from __future__ import annotations

import os
import select
import threading


class Cancel:
    """One blocked call's way out. `set` wakes it; it then raises CancelledByUserError.

    The descriptor is made only when somebody waits, and belongs to this object: `close` when the call is over.
    """

    __slots__ = ("_fd", "_lock", "_set")

    def __init__(self) -> None:
        self._fd = -1
        self._set = False
        self._lock = threading.Lock()

    def set(self) -> None:
        with self._lock:
            self._set = True
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def is_set(self) -> bool:
        return self._set

    def fileno(self) -> int:
        """Readable once set."""
        with self._lock:
            if self._fd < 0:
                self._fd = os.eventfd(1 if self._set else 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._fd

    def wait(self, timeout_s: float) -> bool:
        """Sleeps so long, or until it is set; whether it is."""
        return bool(select.select([self], [], [], timeout_s)[0])

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
