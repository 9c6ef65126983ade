"""Keep calls below a rate. The caller passes the time."""

from __future__ import annotations

import threading

BURST_S = 0.25
"""Unused allowance is saved for this long."""


class TokenBucket:
    """Is a token bucket that may have debt. A caller reserves at once, and then waits. Callers are therefore served in
    order, and an amount larger than the bucket still passes. May be used from any thread."""

    def __init__(self, rate_per_s: float, now_s: float, *, burst_s: float = BURST_S) -> None:
        self._rate_per_s, self._burst_s = rate_per_s, burst_s
        self._level = rate_per_s * burst_s
        self._at_s = now_s
        self._lock = threading.Lock()

    def reserve(self, amount: float, now_s: float) -> float:
        """Take the amount and return the seconds to wait before using it."""
        with self._lock:
            self._refill(now_s)
            self._level -= amount
            return max(0.0, -self._level / self._rate_per_s)

    def debt(self, now_s: float) -> float:
        """Return how much of what was taken must still be waited for."""
        with self._lock:
            self._refill(now_s)
            return max(0.0, -self._level)

    def refund(self, amount: float) -> None:
        with self._lock:
            self._level += amount

    def set_rate(self, rate_per_s: float, now_s: float) -> None:
        """Change the rate, which is above 0, for calls that reserve from now on."""
        with self._lock:
            self._refill(now_s)
            self._rate_per_s = rate_per_s

    def _refill(self, now_s: float) -> None:
        full = max(self._rate_per_s * self._burst_s, 1.0)
        self._level = min(full, self._level + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
