"""What is built from files, and built again when they change: certificates, keys, tokens, passwords."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
UNSETTLED_S = 0.1
"""A file that changed so short a time ago may change once more within the clock's tick: it is looked at again."""
FILE_BYTES_MAX = 1 << 20
Value = TypeVar("Value")
Stamp = tuple[tuple[int, ...], ...] | None


class Reloaded(Generic[Value]):
    """build: called now, and again within a second after one of the files changed. It raises what it likes now; later
    that is logged once, and tried again each second: the value before stays, as half of a renewal is no reason to
    stop. Any thread."""

    def __init__(self, files: Sequence[str], build: Callable[[], Value], *, name: str) -> None:
        self._files = tuple(files)
        self._build = build
        self._name = name
        self._lock = threading.Lock()
        self._refusal = ""
        self._stamp = _stamp(self._files)  # before they are read: a change meanwhile is met by the next look
        self._digest = _digest(self._files)
        self._value = build()
        self._looked_s = time.monotonic()
        self.changes = 0
        """How often it was built of other bytes."""

    def get(self) -> Value:
        """Look at the files once a second at most."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._value

    def _look(self) -> None:
        self._looked_s = time.monotonic()
        stamp = _stamp(self._files)
        if stamp is not None and stamp == self._stamp:
            return
        digest = _digest(self._files)
        if stamp is None and digest == self._digest and not self._refusal:
            return  # as it was, and not settled yet
        try:
            value = self._build()
        except Exception as error:  # noqa: BLE001 - whatever a file that is half written makes of it
            if str(error) != self._refusal:
                log.warning("%s not taken file=%s error=%s", self._name, self._files[0], error)
            self._refusal = str(error)
            return
        self._stamp, self._refusal = stamp, ""
        if digest != self._digest:
            self._value, self._digest = value, digest
            self.changes += 1
            log.info("%s taken anew file=%s", self._name, self._files[0])


def _stamp(files: tuple[str, ...]) -> Stamp:
    """None: one of them may still be changing, or is not there."""
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
