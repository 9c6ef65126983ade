"""Reads files that hold secrets: keys, tokens. Refuses a file that other users can read or write, and takes a changed
file anew while the process runs, so that a key is exchanged without a restart.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.base.errors import UsageError

log = logging.getLogger(__name__)

SECRET_BYTES_MAX = 1 << 20
LOOK_EVERY_S = 1.0
UNSETTLED_S = 0.1
"""A file that changed so short a time ago may change once more within the clock's tick: it is read again."""
Value = TypeVar("Value")
Stamp = tuple[int, ...] | None


def read_secret(path: str, subject: str) -> str:
    """Return the file's text. subject: what names the file, for the message. UsageError for a file that can't be read,
    is too large or no UTF-8, or that another user owns, reads or writes."""
    return _read(path, subject)[0]


class SecretFile(Generic[Value]):
    """A parsed file, which is parsed again within a second of its change. A file that became unusable changes nothing:
    the value before stays, and the log says why. Constructing reads: UsageError. parse: raises UsageError."""

    def __init__(self, path: str, subject: str, parse: Callable[[str], Value]) -> None:
        self.path = path
        self._subject = subject
        self._parse = parse
        text, self._stamp = _read(path, subject)
        self._value = parse(text)
        self._refused: Stamp = None
        self._looked_s = time.monotonic()
        self._lock = threading.Lock()

    def get(self) -> Value:
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._value

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        with contextlib.suppress(OSError):
            stamp = _stamp(os.stat(self.path))
            if stamp is not None and stamp in (self._stamp, self._refused):
                return
            try:
                text, self._stamp = _read(self.path, self._subject)
                value = self._parse(text)
            except UsageError as error:
                if stamp is not None:
                    log.warning("secrets not taken error=%s", error)
                self._refused = stamp
                return
            if value != self._value:
                self._value = value
                log.info("secrets taken anew file=%s", self.path)


def create_secret(path: str, make: Callable[[], str]) -> bool:
    """Write what make returns to a new file of mode 0600; False, and nothing is changed, where a file is there. Of two
    processes that create it at one time one does. UsageError where it can't be written."""
    if os.path.lexists(path):
        return False
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "w", encoding="ascii") as out:
                out.write(make())
                out.flush()
                os.fsync(fd)
            os.link(draft, path)
        finally:
            os.unlink(draft)
    except FileExistsError:
        return False
    except OSError as error:
        raise UsageError(f"file of credentials {path}", why=error.strerror or str(error)) from error
    return True


def _read(path: str, subject: str) -> tuple[str, Stamp]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with open(fd, "rb") as source:
            status = os.fstat(fd)
            if why := _exposure(status):
                raise UsageError(f"{subject} = {path}", why=why, hint=f"chmod 600 {path}")
            data = source.read(SECRET_BYTES_MAX + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{subject} = {path}", why=error.strerror or str(error)) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{subject} = {path}", why="it is not UTF-8") from error
    if len(data) > SECRET_BYTES_MAX:
        raise UsageError(f"{subject} = {path}", why=f"it has more than {SECRET_BYTES_MAX} bytes")
    return text, _stamp(status)


def _exposure(status: os.stat_result) -> str:
    """Return who else reads or writes the file; "" for nobody. Members of a group of ours may read a file of root's, as
    service managers and Kubernetes hand secrets to a process."""
    if not stat.S_ISREG(status.st_mode):
        return "it is no regular file"
    if status.st_uid not in (0, os.geteuid()):
        return f"it belongs to user {status.st_uid}"
    allowed = 0o700
    if status.st_uid == 0 and status.st_gid in (os.getegid(), *os.getgroups()):
        allowed |= 0o040
    if stat.S_IMODE(status.st_mode) & 0o777 & ~allowed:
        return f"other users can read or write it (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _stamp(status: os.stat_result) -> Stamp:
    """None: the file may still be changing."""
    if abs(time.time_ns() - status.st_ctime_ns) < UNSETTLED_S * 1e9:
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_mode,
    )
