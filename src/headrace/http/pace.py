"""Detect transfers that are too slow: the other side must move a minimum number of bytes in each window. A limit that
each byte restarts would let a client send one byte at a time.

Only time spent waiting for the other side counts, so a slow disk or origin here ends no transfer. A transfer of any
length continues as long as its line is faster than the minimum rate.
"""

from __future__ import annotations

WINDOW_S = 30.0
BYTES_S_MIN = 4 << 10
"""Least rate, in bytes per second: 32 kbit/s, slower than any line that carries large bodies (docs/decisions/0046)."""
WINDOW_BYTES = int(WINDOW_S * BYTES_S_MIN)


class TransferPace:
    """Measures one transfer. left_s: seconds to wait until more bytes must have moved; 0 if it is too slow."""

    __slots__ = ("_bytes", "_waited_s")

    def __init__(self) -> None:
        self._bytes = 0
        self._waited_s = 0.0

    @property
    def left_s(self) -> float:
        return max(0.0, WINDOW_S - self._waited_s)

    def waited(self, duration_s: float) -> None:
        self._waited_s += duration_s

    def moved(self, count: int) -> None:
        self._bytes += count
        if self._bytes >= WINDOW_BYTES:
            self._bytes, self._waited_s = 0, 0.0
