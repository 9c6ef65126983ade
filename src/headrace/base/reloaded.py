"""Keep values that are built from files, and build them again when the files change: certificates, keys, tokens,
passwords."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
UNSETTLED_S = 0.1
"""Seconds after a change in which a file may change again within the clock's tick, so it is read again."""
FILE_BYTES_MAX = 1 << 20
Value = TypeVar("Value")
Stamp = tuple[tuple[int, ...], ...] | None


class Reloaded(Generic[Value]):
    """A value of files. build: called at once, and again within a second after one of the files changed. Its first
    exception goes to the caller. A later one is logged once, and build is tried again each second. The previous value
    stays, as half of a renewal is no reason to stop. For any thread."""

    def __init__(self, files: Sequence[str], build: Callable[[], Value], *, name: str) -> None:
        self._files = tuple(files)
        self._build = build
        self._name = name
        self._lock = threading.Lock()
        self._refusal = ""
        # before the files are read, so that the next check detects a change meanwhile
        self._stamp = _stamp(self._files)
        self._digest = _digest(self._files)
        self._value = build()
        self._checked_s = time.monotonic()
        self.changes = 0
        """Times that the value was built of other bytes."""

    def get(self) -> Value:
        """Return the value. It checks the files once a second at most."""
        if time.monotonic() - self._checked_s >= CHECK_INTERVAL_S and self._lock.acquire(blocking=False):
            try:
                self._check()
            finally:
                self._lock.release()
        return self._value

    def _check(self) -> None:
        self._checked_s = time.monotonic()
        stamp = _stamp(self._files)
        if stamp is not None and stamp == self._stamp:
            return
        digest = _digest(self._files)
        if stamp is None and digest == self._digest and not self._refusal:
            return  # unchanged, and not settled yet
        try:
            value = self._build()
        except Exception as error:  # noqa: BLE001 - a half written file may cause any error
            if str(error) != self._refusal:
                log.warning(
                    "a changed file is invalid, the old content stays in use name=%s file=%s error=%s",
                    self._name,
                    self._files[0],
                    error,
                )
            self._refusal = str(error)
            return
        self._stamp, self._refusal = stamp, ""
        if digest != self._digest:
            self._value, self._digest = value, digest
            self.changes += 1
            log.info("a changed file was read again name=%s file=%s", self._name, self._files[0])


def _stamp(files: tuple[str, ...]) -> Stamp:
    """Return the state of the files; None if one may still be changing, or is missing."""
    stamp = []
    for name in files:
        try:
            status = os.stat(name)
        except OSError:
            return None
        if abs(time.time_ns() - status.st_ctime_ns) < UNSETTLED_S * 1e9:
            return None
        place = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        stamp.append((*place, status.st_mode, status.st_uid, status.st_gid))
    return tuple(stamp)


def _digest(files: tuple[str, ...]) -> bytes:
    digest = hashlib.blake2b()
    for name in files:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
            try:
                digest.update(hashlib.blake2b(os.read(fd, FILE_BYTES_MAX)).digest())
            finally:
                os.close(fd)
        except OSError as error:
            digest.update(str(error.errno).encode())
    return digest.digest()
