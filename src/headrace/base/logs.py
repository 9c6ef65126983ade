"""Write a process's log to stderr: one line a record, whatever names it contains, and bounded if stderr is a file."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from contextlib import suppress

from headrace.base.errors import UsageError
from headrace.base.printable import printable
from headrace.base.private_folder import private
from headrace.base.trusted_owner import check_above

LOG_BYTES_MAX = 16 << 20
"""Bytes after which a log is copied to NAME.1, replacing the old copy, and starts empty. Where another user may
exchange NAME.1, it starts empty without a copy."""
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
        if _is_exchangeable(path, status):
            os.ftruncate(fd, 0)
            return
        _copy(fd, path + ".1")
        os.ftruncate(fd, 0)
    except OSError:
        pass  # a log that grows is better than a process that ends


def _is_exchangeable(path: str, status: os.stat_result) -> bool:
    """Return whether another user may lead the path of a log elsewhere, or another file is there."""
    try:
        check_above(path, owners=(0, os.geteuid()))
        return not os.path.samestat(os.lstat(path), status)
    except (OSError, UsageError):
        return True


def _copy(fd: int, path: str) -> None:
    """Replace a file, or a link, by a copy of an open file."""
    draft = f"{path}.{os.getpid()}"
    with suppress(FileNotFoundError):
        os.unlink(draft)
    try:
        with open(f"/proc/self/fd/{fd}", "rb") as source, open(draft, "xb", opener=private) as target:
            shutil.copyfileobj(source, target)
        os.rename(draft, path)
    except OSError:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def log_to_stderr(level: str, *, format: str = FORMAT) -> logging.Handler:
    """Set up the log of this process, once. level: as in `logging`, in any case."""
    handler = BoundedHandler()
    handler.setFormatter(LineFormatter(format))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    return handler
