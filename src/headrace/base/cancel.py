"""Cancel a blocked call from another thread."""

from __future__ import annotations

import os
import select
import threading


class Cancel:
    """Cancels one blocked call. `set` wakes the call, which then raises CancelledByUserError.

    The descriptor is created when a call first waits on it, and belongs to this object. Call `close` when the call
    has ended."""

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
        """Return a descriptor that becomes readable when this is set."""
        with self._lock:
            if self._fd < 0:
                self._fd = os.eventfd(1 if self._set else 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._fd

    def wait(self, timeout_s: float) -> bool:
        """Sleep until the timeout or until this is set; return whether it is set."""
        watched = select.poll()  # not select.select: sessions have descriptors above 1023
        watched.register(self, select.POLLIN)
        return bool(watched.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
