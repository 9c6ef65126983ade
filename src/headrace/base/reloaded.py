"""What is built from files, and built again when they change: certificates, keys, tokens, passwords."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
Value = TypeVar("Value")


class Reloaded(Generic[Value]):
    """build: called now, and again after one of the files changed. It raises what it likes now; later that is logged,
    and the value before stays, as half of a renewal is no reason to stop. Any thread."""

    def __init__(self, files: Sequence[str], build: Callable[[], Value], *, name: str) -> None:
        self._files = tuple(files)
        self._build = build
        self._name = name
        self._stamp = _stamp(
            self._files
        )  # before the files are read: a change meanwhile is met by the next look
        self._value = build()
        self._looked_s = time.monotonic()
        self.changes = 0
        """How often it was built again."""

    def get(self) -> Value:
        """Look at the files once a second at most."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return self._value
        self._looked_s = now_s
        stamp = _stamp(self._files)
        if stamp == self._stamp:
            return self._value
        try:
            self._value = self._build()
        except Exception as error:  # noqa: BLE001 - whatever a file that is half written makes of it
            log.warning("%s not taken file=%s error=%s", self._name, self._files[0], error)
        else:
            self._stamp = stamp
            self.changes += 1
            log.info("%s taken anew file=%s", self._name, self._files[0])
        return self._value


def _stamp(files: Sequence[str]) -> list[tuple[int, int, int]]:
    stamp = []
    for name in files:
        try:
            status = os.stat(name)
        except OSError:
            continue
        stamp.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return stamp
