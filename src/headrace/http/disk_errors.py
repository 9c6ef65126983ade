"""Tell errors of a cache disk from defects: a gateway answers them as what they are, and its log says what to do."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time

from headrace.base.clock import Clock
from headrace.base.errors import HeadraceError, NoSpaceError, StoreError
from headrace.base.os_errors import OsErrorRow, OsErrorTable

LOG_INTERVAL_S = 60.0
"""Least time between two lines about the same error number, in seconds: each request may fail."""

_FULL = OsErrorRow(NoSpaceError, "free some space on the disk of the first cache directory")
_FAILING = OsErrorRow(
    StoreError, "examine the disk of the first cache directory, and replace it if it happens again"
)
_TABLE = OsErrorTable(
    {
        errno.ENOSPC: _FULL,
        errno.EDQUOT: _FULL,
        errno.EIO: _FAILING,
        errno.EROFS: _FAILING,
        errno.EUCLEAN: _FAILING,
        errno.ENXIO: _FAILING,
        errno.ENODEV: _FAILING,
    },
    _FAILING,
)


class DiskErrors:
    """The errors of disks that the requests of one interface met. Thread-safe. log: of the module that the lines
    name."""

    def __init__(self, log: logging.Logger, interface: str, *, clock: Clock = time.monotonic) -> None:
        self._log = log
        self._interface = interface
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[int, float] = {}

    @staticmethod
    def includes(error: Exception) -> bool:
        """Return whether an exception is an error of a disk, and no defect."""
        return isinstance(error, OSError) and error.errno in _TABLE.rows

    def answered(self, error: Exception, path: bytes) -> HeadraceError | None:
        """Log an error of a disk, once a minute for each number, and return the error for the client, which names no
        path of this host. Return None for any other exception. path: of the request."""
        if not isinstance(error, OSError) or not self.includes(error):
            return None
        answer = _TABLE.translate(OSError(error.errno, os.strerror(error.errno or 0)), os.fsdecode(path))
        if self._is_due(error.errno or 0):
            self._log.warning(
                "a cache disk fails, requests are refused interface=%s file=%s error=%s",
                self._interface,
                _name_of(error),
                answer,
            )
        return answer

    def _is_due(self, number: int) -> bool:
        with self._lock:
            now_s = self._clock()
            if now_s - self._logged_s.get(number, float("-inf")) < LOG_INTERVAL_S:
                return False
            self._logged_s[number] = now_s
            return True


def _name_of(error: OSError) -> str:
    """Return the path of the file; "-" for a descriptor, or for a name below one, which says nothing."""
    name: object = error.filename
    path = os.fsdecode(name) if isinstance(name, str | bytes) else ""
    return path if path.startswith("/") else "-"
