"""A point in time by which a call must have answered; passed down, never made anew on the way."""

from __future__ import annotations

import time

from headrace.base.errors import DeadlineExceededError


class Deadline:
    """Monotonic. `Deadline.after(5)`; `Deadline.never()` for background work that has its own limits."""

    __slots__ = ("at_s",)

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    @classmethod
    def never(cls) -> Deadline:
        return cls(float("inf"))

    def left_s(self) -> float:
        """Seconds left, at least 0; infinite for never."""
        return max(0.0, self.at_s - time.monotonic())

    def passed(self) -> bool:
        return time.monotonic() >= self.at_s

    def check(self, what: str) -> None:
        if self.passed():
            raise DeadlineExceededError(what, why="no answer within the time allowed")
