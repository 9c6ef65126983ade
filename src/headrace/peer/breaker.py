"""Whether a peer is worth asking. Pure: times and chance are handed in.

Some failures in a row open it; then nobody asks, but for one probe after a pause that grows with each that failed.
Anything that succeeds closes it.
"""

from __future__ import annotations

FAILURES_MAX = 3
"""In a row. One may be a connection that died with a restart."""
PAUSE_S = 0.5
PAUSE_S_MAX = 15.0
PROBE_LIMIT_S = 30.0
"""A probe of which nobody told the end is forgotten."""


class Breaker:
    __slots__ = ("_failures", "_opened", "_probe_s", "_until_s")

    def __init__(self) -> None:
        self._failures = 0
        self._opened = 0
        self._until_s = 0.0
        self._probe_s: float | None = None

    @property
    def closed(self) -> bool:
        return self._opened == 0

    def state(self, now_s: float) -> str:
        """closed, open, or probing."""
        if self.closed:
            return "closed"
        return "probing" if self._probing(now_s) else "open"

    def take_probe(self, now_s: float) -> bool:
        """True once: the caller asks the peer, and tells what came of it."""
        if self.closed or now_s < self._until_s or self._probing(now_s):
            return False
        self._probe_s = now_s
        return True

    def succeeded(self) -> None:
        self._failures = self._opened = 0
        self._probe_s = None

    def failed(self, now_s: float, *, chance: float) -> None:
        """chance: 0 to 1; nodes that saw the same failure come back at different times."""
        self._failures += 1
        probed = self._probe_s is not None
        self._probe_s = None
        if self.closed and self._failures < FAILURES_MAX:
            return
        if not self.closed and not probed:
            return  # requests that were under way when it opened: they say nothing new
        self._opened += 1
        pause_s = min(PAUSE_S_MAX, PAUSE_S * 2.0 ** (self._opened - 1))
        self._until_s = now_s + pause_s * (0.5 + chance / 2)

    def _probing(self, now_s: float) -> bool:
        return self._probe_s is not None and now_s - self._probe_s < PROBE_LIMIT_S
