"""Which nodes a key belongs to: consistent hashing with virtual nodes. Pure.

Each member stands on a circle of 2^64 places at points that follow from its id alone, as many as its weight is worth;
a key belongs to the members of the points that come next. So a member that joins takes keys only for itself, and one
that leaves gives away only its own (Karger et al., 1997). With some 1,000 to 2,000 points a member the shares are
within 10 % of each other, also the largest of a thousand: the deviation of one is about 1/sqrt(points).
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

POINTS = 2048
"""Of the heaviest member at most, and half of that at least. Building takes some 0.7 ms a member."""
MEMBERS_MAX = 4096
_INDEX_BITS = MEMBERS_MAX - 1
_PLACES = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Member:
    """weight: of its share, in any unit that all members use; zone: "" where zones are not given."""

    id: str
    weight: int
    zone: str = ""


def key_of(path: bytes, segment: int) -> int:
    """The place of one segment of a file on the circle; of a directory, its segment 0."""
    return xxhash.xxh3_64_intdigest(path, seed=segment)


class Ring:
    """members: sorted by id; with one id twice, ValueError. Immutable."""

    def __init__(self, members: Iterable[Member]) -> None:
        self.members = tuple(sorted(members, key=lambda member: member.id))
        if len({member.id for member in self.members}) != len(self.members):
            raise ValueError("two members of one id")
        if len(self.members) > MEMBERS_MAX:
            raise ValueError(f"{len(self.members)} members, {MEMBERS_MAX} at most")
        self._zones = len({member.zone for member in self.members})
        self._points = _points_of(self.members)
        self._points_by_zone = self._split() if self._zones > 1 else {}

    def _split(self) -> dict[str, array[int]]:
        found: dict[str, array[int]] = {member.zone: array("Q") for member in self.members}
        for point in self._points:
            found[self.members[point & _INDEX_BITS].zone].append(point)
        return found

    def owners(self, key: int, count: int = 1) -> tuple[Member, ...]:
        """The first is the primary, then its replicas: distinct members, of distinct zones as long as there are any.
        Fewer than count where there are fewer members."""
        count = min(count, len(self.members))
        if count == 0:
            return ()
        points = self._points
        at = bisect_right(points, key | _INDEX_BITS) % len(points)
        first = self.members[points[at] & _INDEX_BITS]
        if count == 1:
            return (first,)
        return self._walk(key, at, count)

    def _walk(self, key: int, at: int, count: int) -> tuple[Member, ...]:
        chosen: dict[int, Member] = {}
        if self._zones > 1:
            for index in self._nearest_of_zones(key):
                chosen[index] = self.members[index]
                if len(chosen) == count:
                    return tuple(chosen.values())
        return self._fill_up(at, count, chosen)

    def _nearest_of_zones(self, key: int) -> list[int]:
        """Of each zone the member whose point comes next, the nearest first: what a walk from the key would meet, but a
        walk may be long where a zone has few points."""
        found: list[tuple[int, int]] = []
        for points in self._points_by_zone.values():
            at = bisect_right(points, key | _INDEX_BITS) % len(points)
            found.append(((points[at] - key) & _PLACES, points[at] & _INDEX_BITS))
        return [index for _, index in sorted(found)]

    def _fill_up(self, at: int, count: int, chosen: dict[int, Member]) -> tuple[Member, ...]:
        """Each zone has one: the rest is the next distinct members."""
        points, members = self._points, self.members
        for step in range(len(points)):
            if len(chosen) == count:
                break
            index = points[(at + step) % len(points)] & _INDEX_BITS
            chosen.setdefault(index, members[index])
        return tuple(chosen.values())


def _points_of(members: tuple[Member, ...]) -> array[int]:
    """Sorted; the low bits of each say whose it is."""
    heaviest = max((member.weight for member in members), default=1)
    unit = (
        1 << max(0, heaviest - 1).bit_length()
    )  # a power of two, so that few joins change everybody's count
    found: list[int] = []
    for index, member in enumerate(members):
        count = max(1, POINTS * member.weight // unit)
        raw = array("Q", hashlib.shake_128(member.id.encode()).digest(8 * count))
        found += [point & ~_INDEX_BITS & _PLACES | index for point in raw]
    found.sort()
    return array("Q", found)
