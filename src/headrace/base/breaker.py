"""Decide whether to send requests to another side. Pure: the caller passes times and random numbers.

Some failures in a row, or one timeout, open the breaker. Then nothing is sent except one probe after a pause, which
grows with each failed probe. Any success closes the breaker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """The limits of a breaker. failures_max: failures in a row that open it. pause_s: before the first probe; doubled
    with each failed probe, up to pause_s_max. probe_limit_s: after this time without a result a probe is forgotten."""

    failures_max: int
    pause_s: float
    pause_s_max: float
    probe_limit_s: float


class Breaker:
    """The breaker of one other side: closed, open, or probing."""

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
        """Return "closed", "open" or "probing"."""
        if self.closed:
            return "closed"
        return "probing" if self._probing(now_s) else "open"

    def probe_due_s(self, now_s: float) -> float:
        """Return when the next probe may be sent, if the current one gets no result."""
        if self._probe_s is not None and self._probing(now_s):
            return self._probe_s + self._limits.probe_limit_s
        return self._until_s

    def take_probe(self, now_s: float) -> bool:
        """Return True once for each probe: the caller then sends a request and reports its result."""
        if self.closed or now_s < self._until_s or self._probing(now_s):
            return False
        self._probe_s = now_s
        return True

    def succeeded(self) -> None:
        self._failures = self._opened = 0
        self._probe_s = None

    def failed(self, now_s: float, *, chance: float, wait_s: float = 0.0, silent: bool = False) -> None:
        """Record a failure. chance: 0 to 1, so that nodes that saw the same failure come back at different times.
        wait_s: the other side asked for this pause: the breaker opens at once, for at least as long. silent: the other
        side timed out: the breaker opens at once, as the next request would wait just as long."""
        self._failures += 1
        probed = self._probe_s is not None
        self._probe_s = None
        if self.closed and self._failures < self._limits.failures_max and not (wait_s or silent):
            return
        if not self.closed and not probed:
            return  # a request that was sent before the breaker opened carries no new information
        self._opened += 1
        pause_s = min(self._limits.pause_s_max, self._limits.pause_s * 2.0 ** (self._opened - 1))
        self._until_s = now_s + max(pause_s * (0.5 + chance / 2), wait_s)

    def _probing(self, now_s: float) -> bool:
        return self._probe_s is not None and now_s - self._probe_s < self._limits.probe_limit_s
