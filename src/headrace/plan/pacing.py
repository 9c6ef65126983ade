"""Say at which rate planned files are fetched: smooth, but always some seconds ahead of their readers."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.plan.schedule import rate_now

SAFETY_S = 10.0
"""Seconds before its deadline when a file is to be there. So long an origin may be slow, and no reader notices."""
CATCH_UP_S = 5.0
"""Seconds in which what is late by that is fetched, beside the rest."""
HORIZON_S = 60.0
"""Seconds that the rate looks ahead. The peak is that of the whole epoch, if this is known (docs/bench, `peak`)."""
POINTS_MAX = 200
"""Most deadlines of one reader. Steps are joined above that."""
URGENT_STEPS = 4
"""Steps that a reader must be ahead, or nothing limits the rate."""


@dataclass(frozen=True, slots=True)
class ReaderDemand:
    """Describe what one reader reads. step_bytes: of one step. ahead_steps: how many of the next steps are there.
    left_steps: how many are known, with those."""

    step_s: float
    step_bytes: float
    ahead_steps: int
    left_steps: int

    @property
    def is_urgent(self) -> bool:
        """Return whether the reader may wait soon."""
        return self.ahead_steps < min(URGENT_STEPS, self.left_steps)

    @property
    def ahead_bytes(self) -> int:
        return int(self.ahead_steps * self.step_bytes)

    def points(self) -> Iterator[tuple[float, int]]:
        """Yield (seconds until steps must be there, their bytes), of what is not there yet; 0 for what is late."""
        end = min(self.left_steps, int((HORIZON_S + SAFETY_S) / self.step_s) + 1)
        joined = max(1, (end - self.ahead_steps) // POINTS_MAX)
        for first in range(self.ahead_steps, end, joined):
            steps = min(joined, end - first)
            is_late = first * self.step_s < SAFETY_S
            deadline_s = 0.0 if is_late else (first + steps) * self.step_s - SAFETY_S
            yield deadline_s, int(steps * self.step_bytes)


def fetch_rate(demands: Sequence[ReaderDemand], room_bytes: int) -> float | None:
    """Return the bytes a second to fetch now, for all readers together. None: as fast as possible, as a reader may wait
    soon. room_bytes: what the cache can take beside the files that are ahead of their readers already."""
    if any(demand.is_urgent for demand in demands):
        return None
    points = list(heapq.merge(*(demand.points() for demand in demands)))
    late_bytes = sum(size for _, size in itertools.takewhile(lambda point: point[0] <= 0, points))
    ahead_bytes = sum(demand.ahead_bytes for demand in demands)
    ahead_of_time = [(deadline_s, size) for deadline_s, size in points if deadline_s > 0]
    return late_bytes / CATCH_UP_S + rate_now(ahead_of_time, max(1, room_bytes + ahead_bytes), 0)
