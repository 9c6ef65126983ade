"""Remember when each cached file was used last: some 20 bytes a file. No clock."""

from __future__ import annotations

import math
from array import array

from headrace.base.id_table import IdTable
from headrace.base.model import FileId

SAME_USE_S = 1.0
"""Uses within so many seconds are one: a program that opens a file twice in a row needs it once."""


class ReuseTimes:
    """The uses of the files that were added. The caller passes the time, in seconds, which never decreases."""

    def __init__(self, *, same_use_s: float = SAME_USE_S) -> None:
        self._same_use_s = same_use_s
        self._ids = IdTable()
        self._used_s = array("d")

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: FileId, now_s: float) -> None:
        """Add a file that is used now for the first time. A known one stays as it is."""
        if self._ids.find(id) is not None:
            return
        number = self._ids.add(id)
        if number == len(self._used_s):
            self._used_s.append(0.0)
        self._used_s[number] = now_s

    def use(self, id: FileId, now_s: float) -> float:
        """Record a use, and return the seconds since the one before. Infinite for a file that was not added, and for
        a use that continues the last one."""
        number = self._ids.find(id)
        if number is None:
            return math.inf
        interval_s = now_s - self._used_s[number]
        if interval_s < self._same_use_s:
            return math.inf  # the time stays, so that a file in steady use has an interval, too
        self._used_s[number] = now_s
        return interval_s

    def idle_s(self, id: FileId, now_s: float) -> float:
        """Return the seconds since the last use of a file; infinite for an unknown one."""
        number = self._ids.find(id)
        return math.inf if number is None else now_s - self._used_s[number]

    def remove(self, id: FileId) -> None:
        """Forget a file. Unknown ids are no error."""
        self._ids.remove(id)
