"""Track how fast peers answered in the last minute, by the size of the request, and find those slower than the
others. The module is pure: callers pass the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median

SIZES_BYTES = (128 << 10, 1 << 20, 16 << 20)
"""Upper limits of the size classes; the last class has none."""
SAMPLES_MAX = 256
AGE_S_MAX = 60.0
SAMPLES_MIN = 16
SLOW_FACTOR = 4.0
SLOW_S_MIN = 0.02
"""Seconds; smaller differences are noise of the scheduler. This value and the factor are guesses."""
JUDGEMENT_S = 0.5
JUDGEMENT_S_EACH = 0.005
"""Seconds between two computations of the set of slow peers, for each pair of a peer and a class: each pair costs
about 20 µs, and every read uses the set."""


def size_class(size_bytes: int) -> int:
    return sum(size_bytes > limit for limit in SIZES_BYTES)


class Latencies:
    """Holds the latencies of one node's requests to its peers."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, int], deque[tuple[float, float]]] = {}
        self._slow: set[str] = set()
        self._next_judgement_s = float("-inf")

    def add(self, node: str, size_bytes: int, *, seconds: float, now_s: float) -> None:
        key = (node, size_class(size_bytes))
        self._samples.setdefault(key, deque(maxlen=SAMPLES_MAX)).append((now_s, seconds))

    def forget(self, node: str) -> None:
        for key in [key for key in self._samples if key[0] == node]:
            del self._samples[key]
        self._slow.discard(node)

    def quantile(self, node: str, kind: int, *, share: float, now_s: float) -> float | None:
        """Return seconds, or None when there are too few samples. share: 0.99 for p99."""
        recent = self._recent((node, kind), now_s)
        return _quantile(recent, share) if len(recent) >= SAMPLES_MIN else None

    def over_all(self, node: str, *, share: float, now_s: float) -> float | None:
        """Return seconds over all size classes, or None when there is no sample."""
        recent = [
            sample_s for key in self._samples if key[0] == node for sample_s in self._recent(key, now_s)
        ]
        return _quantile(recent, share) if recent else None

    def is_slow(self, node: str, *, now_s: float) -> bool:
        """Return whether the peer's p99 in any size class is far above the usual p99 of the other peers. The result
        may be half a second old, or older with many peers."""
        if now_s >= self._next_judgement_s:
            self._next_judgement_s = now_s + JUDGEMENT_S + JUDGEMENT_S_EACH * len(self._samples)
            kinds = range(len(SIZES_BYTES) + 1)
            self._slow = {node for kind in kinds for node in self._slow_of(kind, now_s)}
        return node in self._slow

    def _slow_of(self, kind: int, now_s: float) -> Iterator[str]:
        p99s: list[tuple[float, str]] = []
        for node in [node for node, node_kind in self._samples if node_kind == kind]:
            p99 = self.quantile(node, kind, share=0.99, now_s=now_s)
            if p99 is not None:
                p99s.append((p99, node))
        p99s.sort()
        for index, (p99, node) in enumerate(p99s):
            usual = _median_without(p99s, index)
            if usual is not None and p99 > max(SLOW_S_MIN, SLOW_FACTOR * usual):
                yield node

    def usual_s(self, kind: int, *, now_s: float) -> float | None:
        """Return the median of the peers' p99 in a class, or None when it is not known."""
        nodes = {node for node, node_kind in self._samples if node_kind == kind}
        quantiles = [self.quantile(node, kind, share=0.99, now_s=now_s) for node in nodes]
        p99s = [p99 for p99 in quantiles if p99 is not None]
        return median(p99s) if p99s else None

    def _recent(self, key: tuple[str, int], now_s: float) -> list[float]:
        samples = self._samples.get(key, ())
        return [seconds for at_s, seconds in samples if now_s - at_s <= AGE_S_MAX]


def _median_without(p99s: list[tuple[float, str]], index: int) -> float | None:
    """Return the median of sorted values without the one at that index, or None when there is no other."""
    others = len(p99s) - 1
    if others == 0:
        return None
    low, high = ((others - 1) // 2, others // 2)
    return sum(p99s[position if position < index else position + 1][0] for position in (low, high)) / 2


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
