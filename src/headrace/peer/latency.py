"""How long peers took of late, by the size of what was asked for; which one is slow beside the others. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

SIZES_BYTES = (128 << 10, 1 << 20, 16 << 20)
"""Upper ends of the classes; the last class has none."""
KEPT = 256
AGE_S_MAX = 60.0
SAMPLES_MIN = 16
SLOW_FACTOR = 4.0
SLOW_S_MIN = 0.02
"""Differences below that are noise of scheduling. A guess, as the factor is."""


def size_class(size_bytes: int) -> int:
    return sum(size_bytes > limit for limit in SIZES_BYTES)


class Latencies:
    """Of one node to its peers."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], deque[tuple[float, float]]] = {}

    def add(self, node: str, size_bytes: int, *, seconds: float, now_s: float) -> None:
        key = (node, size_class(size_bytes))
        self._taken.setdefault(key, deque(maxlen=KEPT)).append((now_s, seconds))

    def forget(self, node: str) -> None:
        for key in [key for key in self._taken if key[0] == node]:
            del self._taken[key]

    def quantile(self, node: str, kind: int, *, share: float, now_s: float) -> float | None:
        """Seconds; None where too little is known. share: 0.99 for p99."""
        recent = self._recent((node, kind), now_s)
        return _quantile(recent, share) if len(recent) >= SAMPLES_MIN else None

    def over_all(self, node: str, *, share: float, now_s: float) -> float | None:
        """Seconds, of all sizes together; None where there is nothing."""
        recent = [one for key in self._taken if key[0] == node for one in self._recent(key, now_s)]
        return _quantile(recent, share) if recent else None

    def is_slow(self, node: str, *, now_s: float) -> bool:
        """Its p99 is far above what is usual among the other peers, in any class of sizes."""
        for kind in range(len(SIZES_BYTES) + 1):
            mine = self.quantile(node, kind, share=0.99, now_s=now_s)
            usual = self.usual_s(kind, but=node, now_s=now_s)
            if mine is not None and usual is not None and mine > max(SLOW_S_MIN, SLOW_FACTOR * usual):
                return True
        return False

    def usual_s(self, kind: int, *, but: str = "", now_s: float) -> float | None:
        """The median of the peers' p99 of a class; None where nothing is known."""
        nodes = {node for node, one in self._taken if one == kind and node != but}
        found = [self.quantile(node, kind, share=0.99, now_s=now_s) for node in nodes]
        known = [one for one in found if one is not None]
        return median(known) if known else None

    def _recent(self, key: tuple[str, int], now_s: float) -> list[float]:
        taken = self._taken.get(key, ())
        return [seconds for at_s, seconds in taken if now_s - at_s <= AGE_S_MAX]


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
