"""Remember when files were used last: some 20 bytes a file."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable

from headrace.base.id_table import IdTable
from headrace.base.model import FileId

_LATEST_S = (1 << 32) - 1
"""The last second that the table can hold, in 2106. A clock that is set later counts as this."""


class LastUses:
    """The last use of each file that was added, in seconds since 1970. Any thread may call it."""

    def __init__(self) -> None:
        self._ids = IdTable()
        self._used_s = array("I")
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: FileId, now_s: float) -> None:
        """Add a file that is used now. The last use of a known one stays, if it is later."""
        with self._lock:
            number = self._ids.find(id)
            if number is None:
                number = self._ids.add(id)
                if number == len(self._used_s):
                    self._used_s.append(0)
                self._used_s[number] = 0
            self._used_s[number] = max(self._used_s[number], _second_of(now_s))

    def use(self, ids: Iterable[FileId], now_s: float) -> None:
        """Note a use of files. Those that were not added are ignored."""
        with self._lock:
            for id in ids:
                number = self._ids.find(id)
                if number is not None:
                    self._used_s[number] = _second_of(now_s)

    def of(self, id: FileId) -> float:
        """Return the last use of a file; 0 if it was not added."""
        with self._lock:
            number = self._ids.find(id)
            return 0.0 if number is None else float(self._used_s[number])

    def remove(self, id: FileId) -> None:
        """Forget a file. Unknown ids are no error."""
        with self._lock:
            self._ids.remove(id)


def _second_of(time_s: float) -> int:
    return max(0, min(_LATEST_S, int(time_s)))
