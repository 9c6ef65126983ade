"""Report that etcd's database is full: it answers requests that read, and refuses those that write."""

from __future__ import annotations

import logging
import time

log = logging.getLogger(__name__)

FULL = "database space exceeded"
"""The text by which etcd refuses to write, until an operator has freed space and ended its alarm."""
HINT = "compact and defragment etcd, then end its alarm: see docs/failures/etcd.md"


class FullDatabase:
    """Tells from the answers to writes whether etcd's database is full."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def note_refusal(self, why: str) -> None:
        """Note that etcd refused to write."""
        if self._since_s is None:
            self._since_s = time.monotonic()
            log.warning("etcd refuses to write records error=%s", why)

    def note_success(self) -> None:
        """Note that etcd wrote a record."""
        if self._since_s is not None:
            log.warning("etcd writes records again full_s=%.0f", time.monotonic() - self._since_s)
            self._since_s = None

    def trouble(self) -> str:
        """Return what is wrong; "" if nothing is."""
        if self._since_s is None:
            return ""
        full_s = time.monotonic() - self._since_s
        return f"etcd's database has been full for {full_s:.0f} s, no record can be written"
