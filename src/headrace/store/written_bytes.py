"""Count the bytes that are written to a volume a day, because flash wears out. The counts are kept beside the volume.

A day is the last 24 hours, in hours: the current one is the last of them. Wall clock time, which survives a restart.
After kill -9 the last counts before the kill are lost: see SAVE_S.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

import msgspec

from headrace.base.clock import wall_s
from headrace.base.decoding import decode_json
from headrace.base.private_folder import private

log = logging.getLogger(__name__)

HOURS = 24
HOUR_S = 3600
SAVE_S = 10.0
"""Least seconds between two writes of the counts."""
FILE_BYTES_MAX = 8192
_COUNT_MAX = 1 << 62


class WrittenRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Hold the counts as they are stored. hours: bytes by the number of the hour since 1970. total: of all time."""

    total: int = 0
    hours: dict[int, int] = {}


class WrittenBytes:
    """The counts of one volume. path: of their file. Any thread may call it."""

    def __init__(self, path: str, *, clock: Callable[[], float] = wall_s) -> None:
        self._path, self._clock = path, clock
        self._lock = threading.Lock()
        self._record = WrittenRecord()
        self._saved_s = 0.0
        self._is_saved = True

    def load(self) -> None:
        """Read the counts of earlier runs. A damaged file counts as none."""
        try:
            with open(self._path, "rb") as file:
                self._record = decode_record(file.read(FILE_BYTES_MAX))
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the counts of written bytes are lost path=%s error=%s", self._path, error)
        with self._lock:
            self._forget_old()

    def add(self, count: int) -> None:
        """Count bytes that are written now."""
        hour = int(self._clock()) // HOUR_S
        with self._lock:
            hours = self._record.hours
            if hour not in hours:
                self._forget_old()
            hours[hour] = hours.get(hour, 0) + count
            self._record.total += count
            self._is_saved = False

    @property
    def total_bytes(self) -> int:
        return self._record.total

    def day_bytes(self) -> int:
        """Return the bytes that were written within the last day."""
        with self._lock:
            self._forget_old()
            return sum(self._record.hours.values())

    def save(self, *, now: bool = False) -> None:
        """Store the counts, if they changed; not durably, and not more often than SAVE_S allows. Suppresses OSErrors:
        the disk may be full."""
        if self._is_saved or (not now and abs(self._clock() - self._saved_s) < SAVE_S):
            return
        with self._lock:
            body = msgspec.json.encode(self._record)
            self._is_saved, self._saved_s = True, self._clock()
        with contextlib.suppress(OSError):
            with open(f"{self._path}.new", "wb", opener=private) as file:
                file.write(body)
            os.replace(f"{self._path}.new", self._path)

    def _forget_old(self) -> None:
        """Forget hours that are no longer of this day, and those ahead of a clock that was set back."""
        hour, hours = int(self._clock()) // HOUR_S, self._record.hours
        for number in [number for number in hours if not hour - HOURS < number <= hour]:
            del hours[number]


def decode_record(body: bytes) -> WrittenRecord:
    """Decode stored counts. Raises DecodeError for anything else."""
    if len(body) >= FILE_BYTES_MAX:
        raise msgspec.DecodeError("it is too long")
    record = decode_json(body, WrittenRecord)
    if not all(0 <= count < _COUNT_MAX for count in (record.total, *record.hours.values())):
        raise msgspec.DecodeError("a count is out of range")
    return record
