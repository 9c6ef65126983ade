"""Say at which rates to fetch what is planned: the smoothest ones that meet all deadlines. `smoothest_rates` is the
taut string of Salehi, Zhang, Kurose and Towsley, "Supporting stored video: reducing rate variability and end-to-end
resource requirements through optimal smoothing" (SIGMETRICS 1996): of all schedules that meet each deadline and never
exceed the buffer it has the lowest peak. No I/O and no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Demand = Iterable[tuple[float, int]]
"""Pairs (deadline_s, bytes) by ascending deadline, in seconds from now."""


class _Point(NamedTuple):
    """A time and the bytes that were fetched until then."""

    time_s: float
    fetched: int


class _Chain(deque[_Point]):
    """The corners of a string on one side of the area that a schedule may cross. sign: 1 above it, -1 below."""

    def __init__(self, sign: int) -> None:
        super().__init__()
        self._sign = sign

    def pull(self, apex: _Point, point: _Point) -> None:
        """Append a corner, and remove those that the string does not touch any more."""
        while self and self.turns(self[-2] if len(self) > 1 else apex, self[-1], point):
            self.pop()
        self.append(point)

    def turns(self, start: _Point, middle: _Point, end: _Point) -> bool:
        """Return whether the string from start to end passes middle without touching it."""
        rise_to_middle = (middle.fetched - start.fetched) * (end.time_s - start.time_s)
        rise_to_end = (end.fetched - start.fetched) * (middle.time_s - start.time_s)
        return (rise_to_end - rise_to_middle) * self._sign <= 0


def smoothest_rates(demand: Demand, buffer_bytes: int, start_bytes: int) -> list[tuple[float, float]]:
    """Return segments (until_s, bytes_s) that fetch the demand by its deadlines, in O(n).

    buffer_bytes: how much may be there before its use. start_bytes: how much is there now, of what is needed first.
    Bytes with a deadline of 0 that are not there are late: readers fetch them, and no segment has them. What shares a
    deadline and exceeds the buffer is fetched by its deadline all the same.
    """
    segments: list[tuple[float, float]] = []
    before = _Point(0, 0)
    for corner in _corners(demand, buffer_bytes, start_bytes):
        segments.append((corner.time_s, (corner.fetched - before.fetched) / (corner.time_s - before.time_s)))
        before = corner
    return segments


def rate_now(demand: Demand, buffer_bytes: int, start_bytes: int) -> float:
    """Return the rate of the first segment, in bytes a second; 0 without demand."""
    for corner in _corners(demand, buffer_bytes, start_bytes):
        return corner.fetched / corner.time_s
    return 0.0


def _corners(demand: Demand, buffer_bytes: int, start_bytes: int) -> Iterator[_Point]:
    """Yield the ends of the segments of the taut string."""
    apex = _Point(0, 0)
    above, below = _Chain(1), _Chain(-1)
    bounds = list(_bounds(demand, buffer_bytes, start_bytes))
    if not bounds:
        return
    total = bounds[-1][0].fetched
    bounds[-1] = (bounds[-1][0], bounds[-1][0])
    for lowest, highest in bounds:
        for chain, other, point in (
            (above, below, _Point(highest.time_s, min(highest.fetched, total))),
            (below, above, lowest),
        ):
            chain.pull(apex, point)
            # the string is straight on this side: it may have to bend around the corners of the other side
            while len(chain) == 1 and other and other[0].time_s < point.time_s:
                if not other.turns(apex, other[0], point):
                    apex = other.popleft()
                    yield apex
                else:
                    break
    yield from below


def _bounds(demand: Demand, buffer_bytes: int, start_bytes: int) -> Iterator[tuple[_Point, _Point]]:
    """Yield the least that must be fetched by each deadline, and the most that may be."""
    needed = used = 0
    last_s: float = 0
    for deadline_s, group_bytes in _by_deadline(demand):
        used, needed = needed, needed + group_bytes
        if deadline_s <= 0:
            start_bytes = max(start_bytes, needed)
            continue
        lowest = max(0, needed - start_bytes)
        highest = max(lowest, used + buffer_bytes - start_bytes)
        last_s = deadline_s
        yield _Point(last_s, lowest), _Point(last_s, highest)


def _by_deadline(demand: Demand) -> Iterator[tuple[float, int]]:
    """Yield the demand with one value for each deadline; all that is late has deadline 0."""
    current_s: float | None = None
    group_bytes = 0
    for deadline_s, bytes_needed in demand:
        deadline_s = max(0, deadline_s)
        if current_s is not None and deadline_s != current_s:
            yield current_s, group_bytes
            group_bytes = 0
        current_s = deadline_s
        group_bytes += bytes_needed
    if current_s is not None:
        yield current_s, group_bytes
