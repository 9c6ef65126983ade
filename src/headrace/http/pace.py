"""How slowly bytes may come or go: not by a limit that each byte begins anew, but by a least number of them a window.

Only time that was spent waiting for the other side counts, so that a slow disk or origin of ours cuts nobody off; and a
transfer of any length goes on, as long as its line is faster than the least rate.
"""

from __future__ import annotations

WINDOW_S = 30.0
BYTES_S_MIN = 4 << 10
"""Slower than any line that carries a body of size: 32 kbit/s. Measured and argued in docs/decisions/0046."""
WINDOW_BYTES = int(WINDOW_S * BYTES_S_MIN)


class TransferPace:
    """Of one transfer. left_s: how long may be waited until more bytes have to have moved; 0: it is too slow."""

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
