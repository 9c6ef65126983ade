"""Write a process's log to stderr: one line a record, whatever names it contains, and bounded if stderr is a file."""

from __future__ import annotations

import logging
import os
import shutil
import stat

from headrace.base.printable import printable

LOG_BYTES_MAX = 16 << 20
"""Bytes after which a log is copied to NAME.1, replacing the old copy, and starts empty."""
CHECK_BYTES = 64 << 10
FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class LineFormatter(logging.Formatter):
    """A formatter that escapes characters which end a line or control a terminal. A trace after the message keeps its
    lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = printable(record.message)
        return super().formatMessage(record)


class BoundedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # generic only for type checkers
    """A handler that writes to stderr. Several processes may append to the same file."""

    def __init__(self) -> None:
        super().__init__()
        self._written_bytes = 0

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        self._written_bytes += len(record.getMessage()) + 64
        if self._written_bytes >= CHECK_BYTES:
            self._written_bytes = 0
            keep_bounded(2)


def keep_bounded(fd: int) -> None:
    """Empty the file if it is too long; do nothing if the descriptor is no regular file. fd: open for appending."""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size <= LOG_BYTES_MAX:
            return
        path = os.readlink(f"/proc/self/fd/{fd}")
        shutil.copyfile(path, path + ".1")
        os.chmod(path + ".1", 0o600)
        os.truncate(path, 0)
    except OSError:
        pass  # a log that grows is better than a process that ends


def log_to_stderr(level: str, *, format: str = FORMAT) -> logging.Handler:
    """Set up the log of this process, once. level: as in `logging`, in any case."""
    handler = BoundedHandler()
    handler.setFormatter(LineFormatter(format))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return handler
