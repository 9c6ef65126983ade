"""Measure a rate over the last seconds."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0
"""Seconds over which the rate is measured."""


class RateMeter:
    """Measures bytes per second over the last WINDOW_S seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, bytes_done: int, now_s: float) -> float:
        """Add a sample, and return the rate over the window. It is 0 if the count has decreased."""
        self._samples.append((now_s, bytes_done))
        while len(self._samples) > 2 and now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        first_s, first_bytes = self._samples[0]
        return max(0.0, (bytes_done - first_bytes) / (now_s - first_s)) if now_s > first_s else 0.0
