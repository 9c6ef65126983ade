"""A point in time by which a call must return. Calls pass it down and never create a new one on the way."""

from __future__ import annotations

from headrace.base.clock import monotonic_s
from headrace.base.errors import DeadlineExceededError

TRANSFER_BYTES_S_MIN = 4 << 20
"""Bytes each second; a slower transfer between hosts counts as hanging."""


def transfer_limit_s(limit_s: float, size_bytes: int) -> float:
    """Return the seconds that a transfer may take, if a small one may take `limit_s`."""
    return limit_s + size_bytes / TRANSFER_BYTES_S_MIN


class Deadline:
    """Holds a monotonic time. `Deadline.after(5)`; `Deadline.never()` for background work that has its own limits.
    patience_s: seconds for which a call retries after its first failure, if its caller has a better alternative than to
    wait until the deadline."""

    __slots__ = ("at_s", "patience_s")

    def __init__(self, at_s: float, *, patience_s: float = float("inf")) -> None:
        self.at_s = at_s
        self.patience_s = patience_s

    @classmethod
    def after(cls, seconds: float, *, patience_s: float = float("inf")) -> Deadline:
        return cls(monotonic_s() + seconds, patience_s=patience_s)

    @classmethod
    def never(cls) -> Deadline:
        return cls(float("inf"))

    def left_s(self) -> float:
        """Return the seconds left, at least 0; infinite for never."""
        return max(0.0, self.at_s - monotonic_s())

    def timeout_s(self) -> float | None:
        """Return the seconds left, for calls that take None as no limit; None for never."""
        return None if self.at_s == float("inf") else self.left_s()

    def passed(self) -> bool:
        return monotonic_s() >= self.at_s

    def check(self, subject: str) -> None:
        """Raise DeadlineExceededError if the deadline has passed. subject: what the caller does, for the message."""
        if self.passed():
            raise DeadlineExceededError(subject, why="no answer within the time allowed")
