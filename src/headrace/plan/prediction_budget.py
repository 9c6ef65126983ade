"""Limit the bytes that wrong predictions cost a node. No I/O and no clock: the caller passes the times."""

from __future__ import annotations

BASE_BYTES = 512 << 20
"""Bytes that predictions may waste before any came true."""
OUTSTANDING_BYTES_MAX = 16 << 30
"""Most bytes that are fetched and not opened yet."""
REGAIN_S = 3600.0
"""Seconds in which a node may waste BASE_BYTES again."""


class PredictionBudget:
    """The bytes that were fetched for predictions, of all data sets together.

    Each byte that is opened later permits one more. So no series of opens makes a node waste more than BASE_BYTES, as
    much again in each hour, and as much as came true.
    """

    def __init__(self, now_s: float, base_bytes: int = BASE_BYTES) -> None:
        self._base_bytes = base_bytes
        self._credit_bytes = float(base_bytes)
        self._noted_s = now_s
        self.outstanding_bytes = self.right_bytes = self.wrong_bytes = 0

    def allowance_bytes(self, now_s: float) -> int:
        """Return the bytes that may be fetched now; below 1: none."""
        passed_s, self._noted_s = max(0.0, now_s - self._noted_s), max(now_s, self._noted_s)
        if self._credit_bytes < self._base_bytes:
            regained_bytes = self._base_bytes * passed_s / REGAIN_S
            self._credit_bytes = min(self._base_bytes, self._credit_bytes + regained_bytes)
        return int(min(OUTSTANDING_BYTES_MAX, self._credit_bytes)) - self.outstanding_bytes

    def begin(self, size_bytes: int) -> None:
        """Count a file that is being fetched."""
        self.outstanding_bytes += size_bytes

    def fail(self, size_bytes: int) -> None:
        """Count a file that could not be fetched."""
        self.outstanding_bytes -= size_bytes

    def end(self, size_bytes: int, *, is_right: bool) -> None:
        """Count a file that was opened, or will not be."""
        self.outstanding_bytes -= size_bytes
        if is_right:
            self.right_bytes += size_bytes
            self._credit_bytes += size_bytes
        else:
            self.wrong_bytes += size_bytes
            self._credit_bytes -= size_bytes
