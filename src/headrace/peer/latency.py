"""How long peers took of late, by the size of what was asked for; which one is slow beside the others. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median

SIZES_BYTES = (128 << 10, 1 << 20, 16 << 20)
"""Upper ends of the classes; the last class has none."""
KEPT = 256
AGE_S_MAX = 60.0
SAMPLES_MIN = 16
SLOW_FACTOR = 4.0
SLOW_S_MIN = 0.02
"""Differences below that are noise of scheduling. A guess, as the factor is."""
JUDGED_S = 0.5
JUDGED_S_EACH = 0.005
"""Who is slow is found out so rarely, and so much more rarely for each peer and class: each takes some 20 us, and it
is asked before every read."""


def size_class(size_bytes: int) -> int:
    return sum(size_bytes > limit for limit in SIZES_BYTES)


class Latencies:
    """Of one node to its peers."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], deque[tuple[float, float]]] = {}
        self._slow: set[str] = set()
        self._judge_at_s = float("-inf")

    def add(self, node: str, size_bytes: int, *, seconds: float, now_s: float) -> None:
        key = (node, size_class(size_bytes))
        self._taken.setdefault(key, deque(maxlen=KEPT)).append((now_s, seconds))

    def forget(self, node: str) -> None:
        for key in [key for key in self._taken if key[0] == node]:
            del self._taken[key]
        self._slow.discard(node)

    def quantile(self, node: str, kind: int, *, share: float, now_s: float) -> float | None:
        """Seconds; None where too little is known. share: 0.99 for p99."""
        recent = self._recent((node, kind), now_s)
        return _quantile(recent, share) if len(recent) >= SAMPLES_MIN else None

    def over_all(self, node: str, *, share: float, now_s: float) -> float | None:
        """Seconds, of all sizes together; None where there is nothing."""
        recent = [one for key in self._taken if key[0] == node for one in self._recent(key, now_s)]
        return _quantile(recent, share) if recent else None

    def is_slow(self, node: str, *, now_s: float) -> bool:
        """Its p99 is far above what is usual among the other peers, in any class of sizes. As of a moment ago."""
        if now_s >= self._judge_at_s:
            self._judge_at_s = now_s + JUDGED_S + JUDGED_S_EACH * len(self._taken)
            kinds = range(len(SIZES_BYTES) + 1)
            self._slow = {node for kind in kinds for node in self._slow_of(kind, now_s)}
        return node in self._slow

    def _slow_of(self, kind: int, now_s: float) -> Iterator[str]:
        known: list[tuple[float, str]] = []
        for node in [node for node, one in self._taken if one == kind]:
            p99 = self.quantile(node, kind, share=0.99, now_s=now_s)
            if p99 is not None:
                known.append((p99, node))
        known.sort()
        for place, (p99, node) in enumerate(known):
            usual = _median_but(known, place)
            if usual is not None and p99 > max(SLOW_S_MIN, SLOW_FACTOR * usual):
                yield node

    def usual_s(self, kind: int, *, now_s: float) -> float | None:
        """The median of the peers' p99 of a class; None where nothing is known."""
        nodes = {node for node, one in self._taken if one == kind}
        found = [self.quantile(node, kind, share=0.99, now_s=now_s) for node in nodes]
        known = [one for one in found if one is not None]
        return median(known) if known else None

    def _recent(self, key: tuple[str, int], now_s: float) -> list[float]:
        taken = self._taken.get(key, ())
        return [seconds for at_s, seconds in taken if now_s - at_s <= AGE_S_MAX]


def _median_but(known: list[tuple[float, str]], place: int) -> float | None:
    """Of sorted values, without the one at that place; None where it is the only one."""
    others = len(known) - 1
    if others == 0:
        return None
    low, high = ((others - 1) // 2, others // 2)
    return sum(known[at if at < place else at + 1][0] for at in (low, high)) / 2


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
