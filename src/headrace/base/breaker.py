"""Whether another side is worth asking. Pure: times and chance are handed in.

Some failures in a row open it, or one silence; then nobody asks, but for one probe after a pause that grows with each
that failed. Anything that succeeds closes it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """failures_max: in a row, until it opens. pause_s: before the first probe; doubled with each that failed, up to
    pause_s_max. probe_limit_s: a probe of which nobody told the end is forgotten."""

    failures_max: int
    pause_s: float
    pause_s_max: float
    probe_limit_s: float


class Breaker:
    __slots__ = ("_failures", "_limits", "_opened", "_probe_s", "_until_s")

    def __init__(self, limits: BreakerLimits) -> None:
        self._limits = limits
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

    def probe_due_s(self, now_s: float) -> float:
        """When the next probe may be taken, if nothing is heard of the one under way."""
        if self._probe_s is not None and self._probing(now_s):
            return self._probe_s + self._limits.probe_limit_s
        return self._until_s

    def take_probe(self, now_s: float) -> bool:
        """True once: the caller asks the other side, and tells what came of it."""
        if self.closed or now_s < self._until_s or self._probing(now_s):
            return False
        self._probe_s = now_s
        return True

    def succeeded(self) -> None:
        self._failures = self._opened = 0
        self._probe_s = None

    def failed(self, now_s: float, *, chance: float, wait_s: float = 0.0, silent: bool = False) -> None:
        """chance: 0 to 1; nodes that saw the same failure come back at different times. wait_s: what the other side
        asked for: it opens at once, for so long at least. silent: it said nothing for as long as it may: it opens at
        once, as whoever asked next would wait as long again."""
        self._failures += 1
        probed = self._probe_s is not None
        self._probe_s = None
        if self.closed and self._failures < self._limits.failures_max and not (wait_s or silent):
            return
        if not self.closed and not probed:
            return  # requests that were under way when it opened: they say nothing new
        self._opened += 1
        pause_s = min(self._limits.pause_s_max, self._limits.pause_s * 2.0 ** (self._opened - 1))
        self._until_s = now_s + max(pause_s * (0.5 + chance / 2), wait_s)

    def _probing(self, now_s: float) -> bool:
        return self._probe_s is not None and now_s - self._probe_s < self._limits.probe_limit_s
