"""Follow whether etcd answers, and whether it writes: a full database still answers requests that read."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

FULL = "database space exceeded"
"""The text by which etcd refuses to write, until an operator has freed space and ended its alarm."""
FULL_HINT = "compact and defragment etcd, then end its alarm: see docs/failures/etcd.md"


class EtcdAvailability:
    """Holds since when etcd is unavailable, or its database full. Logs each change once."""

    def __init__(self) -> None:
        self.away_since_s: float | None = None
        self.last_error = "it does not answer"
        self._full_since_s: float | None = None

    @property
    def away_s(self) -> float:
        """Return for how long etcd has been unavailable; 0 if it is available."""
        return 0.0 if self.away_since_s is None else time.monotonic() - self.away_since_s

    def note_failure(self, error: object) -> None:
        """Note that etcd does not answer, or refuses this node."""
        if self.away_since_s is None:
            self.away_since_s = time.monotonic()
            log.warning("etcd is unavailable, the last known records are used error=%s", error)

    def note_answer(self) -> None:
        """Note that etcd answered, and has this node's records."""
        if self.away_since_s is not None:
            log.warning("etcd is available again away_s=%.0f", self.away_s)
            self.away_since_s = None

    def note_full(self, error: str) -> None:
        """Note that etcd refused to write, as its database is full."""
        if self._full_since_s is None:
            self._full_since_s = time.monotonic()
            log.warning("etcd refuses to write records error=%s", error)

    def note_written(self) -> None:
        """Note that etcd wrote a record."""
        if self._full_since_s is not None:
            log.warning("etcd writes records again full_s=%.0f", time.monotonic() - self._full_since_s)
            self._full_since_s = None

    def trouble(self) -> str:
        """Return what is wrong with etcd; "" if nothing is."""
        if self.away_since_s is not None:
            why = f"etcd has been unavailable for {self.away_s:.0f} s ({self.last_error})"
            return f"{why}, its last records are used"
        if self._full_since_s is not None:
            full_s = time.monotonic() - self._full_since_s
            return f"etcd's database has been full for {full_s:.0f} s, no record can be written"
        return ""
