"""Measure the seconds of a training step from what a loader reports of its position."""

from __future__ import annotations

from collections import deque

WINDOW_S = 2.0
WINDOW_BATCHES = 4
WINDOWS_KEPT = 64


class StepTime:
    """The time of a step when nothing holds the job up: the least mean of the recent windows. A window has 4 batches
    and 2 s at least."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._start: tuple[float, int] | None = None
        self._windows: deque[float] = deque(maxlen=WINDOWS_KEPT)

    def note(self, now_s: float, position: int) -> None:
        """Note how many samples were taken by now. A position that went back begins anew: another epoch."""
        if self._start is None or position < self._start[1]:
            self._start = (now_s, position)
            return
        seconds, batches = now_s - self._start[0], (position - self._start[1]) / self._batch_size
        if seconds >= WINDOW_S and batches >= WINDOW_BATCHES:
            self._windows.append(seconds / batches)
            self._start = (now_s, position)

    @property
    def step_s(self) -> float | None:
        """Return the seconds of a step; None before the first window has passed."""
        return min(self._windows, default=None)
