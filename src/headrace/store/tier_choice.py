"""Decide which cached files move between tiers. No I/O, no clock, and no index.

A file sinks when the policy of its volume would evict it. It rises at its second use in a slower tier, but only if it
will probably be needed before those that must sink for it. As in LIRS (Jiang and Zhang, SIGMETRICS 2002), the time
between the last two uses of the one is compared with the time since the last use of the others. So a data set that is
read in epochs, and is larger than the fast tier, does not move in circles.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from headrace.base.model import FileId
from headrace.store.reuse_times import ReuseTimes

RISING_MAX = 4096
"""Files that wait for their rise. Of more, those that have waited longest stay where they are."""
RISE_MARGIN = 4.0
"""The others must have been idle this many times longer than the riser's interval: below it, a rise gains too little
for its I/O."""


class TierChoice:
    """The choice for one store. The caller passes the time, in seconds, and holds the store's lock."""

    def __init__(self, reuse: ReuseTimes | None = None) -> None:
        self._reuse = reuse or ReuseTimes()
        self._rising: OrderedDict[FileId, float] = OrderedDict()  # id → seconds until its next use, probably

    def add(self, id: FileId, now_s: float) -> None:
        """Add a file that enters the cache. One that only moves stays known."""
        self._reuse.add(id, now_s)

    def remove(self, id: FileId) -> None:
        self._reuse.remove(id)
        self._rising.pop(id, None)

    def use(self, id: FileId, now_s: float, is_low: Callable[[], bool]) -> None:
        """Record a use. is_low: returns whether the file is in a slower tier than it might be."""
        interval_s = self._reuse.use(id, now_s)
        if interval_s < math.inf and is_low():
            self._want(id, interval_s)

    def plan(self, id: FileId, needed_in_s: float) -> None:
        """Let a file rise that will be read in so many seconds."""
        self._want(id, needed_in_s)

    def _want(self, id: FileId, next_use_s: float) -> None:
        self._rising[id] = min(next_use_s, self._rising.pop(id, math.inf))
        if len(self._rising) > RISING_MAX:
            self._rising.popitem(last=False)

    @property
    def waiting(self) -> int:
        """Return how many files wait for their rise."""
        return len(self._rising)

    def take_risers(self, count: int) -> list[tuple[FileId, float]]:
        """Return files that wait for their rise, and when they are needed next; they no longer wait. Those that were
        used last come first: they are the most likely to be used again."""
        return [self._rising.popitem() for _ in range(min(count, len(self._rising)))]

    def may_displace(self, next_use_s: float, displaced: Iterable[FileId], now_s: float) -> bool:
        """Return whether files may leave a tier for one that is needed next in so many seconds."""
        return all(self._reuse.idle_s(id, now_s) > RISE_MARGIN * next_use_s for id in displaced)

    def keeps(self, id: FileId, displaced: Sequence[FileId], now_s: float) -> bool:
        """Return whether a file that cooled in a faster tier is worth more than those that must go for it."""
        idle_s = self._reuse.idle_s(id, now_s)
        return all(self._reuse.idle_s(other, now_s) >= idle_s for other in displaced)


def tiers_below(tier: str, order: Sequence[str]) -> Sequence[str]:
    """Return the tiers to which a file may sink, the nearest first. order: where it may lie, by preference."""
    return order[order.index(tier) + 1 :] if tier in order else order


def tiers_above(tier: str, order: Sequence[str]) -> Sequence[str]:
    """Return the tiers to which a file may rise, the best first."""
    return order[: order.index(tier)] if tier in order else order
