"""Map keys to nodes by consistent hashing with virtual nodes. All functions are pure.

Each member has points on a circle of 2^64 positions. The points follow from the member's id alone, and their number
from its weight. A key belongs to the members whose points come next on the circle. A member that joins therefore takes
keys only for itself, and one that leaves gives away only its own (Karger et al., 1997).

With some 1,000 to 2,000 points per member the shares are within 10 % of each other, even the largest of a thousand. The
deviation of one is about 1/sqrt(points).

If few members changed, a ring is derived from the previous one: only the points of those members are cut out and
inserted. Nodes build a ring while they serve reads, so no step holds the interpreter's lock for long: points are sorted
in portions.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

POINTS_MAX = 2048
"""Points of the heaviest possible member. The heaviest actual one has at least half of that. Building takes some ms per
member."""
MEMBERS_MAX = 4096
"""Most members of a ring."""
SORT_PORTION_POINTS = 1 << 15
"""Points that one call sorts, in some 10 ms."""
MEMBERS_PER_CHANGE_MIN = 8
"""A ring is derived from the previous one if it has at least that many members per changed one."""
_INDEX_BITS = MEMBERS_MAX - 1
"""Mask of a point's low bits, which are the index of its member."""
_POSITIONS = (1 << 64) - 1
_EVERY_POINT = int.from_bytes(array("Q", [1]) * POINTS_MAX, "little")


@dataclass(frozen=True, slots=True)
class RingMember:
    """Describe a node on the ring. weight: of its share, in any unit that all members use. zone: "" if zones are not
    configured."""

    id: str
    weight: int
    zone: str = ""


def key_of(path: bytes, segment: int) -> int:
    """Return the position of one segment of a file on the circle. A directory uses its segment 0."""
    return xxhash.xxh3_64_intdigest(path, seed=segment)


class Ring:
    """Assign keys to members; immutable. members: sorted by id; ValueError if two have one id. previous: a ring of
    mostly the same members, which makes this one faster to build and changes nothing else."""

    def __init__(self, members: Iterable[RingMember], *, previous: Ring | None = None) -> None:
        self.members = tuple(sorted(members, key=lambda member: member.id))
        if len({member.id for member in self.members}) != len(self.members):
            raise ValueError("two members of one id")
        if len(self.members) > MEMBERS_MAX:
            raise ValueError(f"{len(self.members)} members, {MEMBERS_MAX} at most")
        self._unit = _unit_of(self.members)
        # the low bits of a point are its member's index in this list, which a member keeps from ring to ring
        self._slots: list[RingMember | None] = []
        self._points = array("Q")
        self._points_by_zone: dict[str, array[int]] = {}
        if not (previous is not None and self._change(previous)):
            self._build()
        self._zones = len(self._points_by_zone)

    def owners(self, key: int, count: int = 1) -> tuple[RingMember, ...]:
        """Return the owners of a key: the primary first, then its replicas. They are distinct members, and of distinct
        zones as far as there are enough zones. The result is shorter than count if there are fewer members."""
        count = min(count, len(self.members))
        if count == 0:
            return ()
        points = self._points
        index = bisect_right(points, key | _INDEX_BITS) % len(points)
        if count == 1:
            return (self._member_at(points[index]),)
        return self._walk(key, index, count)

    def _member_at(self, point: int) -> RingMember:
        member = self._slots[point & _INDEX_BITS]
        assert member is not None
        return member

    def _walk(self, key: int, index: int, count: int) -> tuple[RingMember, ...]:
        chosen: dict[str, RingMember] = {}
        if self._zones > 1:
            for member in self._nearest_of_zones(key):
                chosen[member.id] = member
                if len(chosen) == count:
                    return tuple(chosen.values())
        return self._fill_up(index, count, chosen)

    def _nearest_of_zones(self, key: int) -> list[RingMember]:
        """Return the member of each zone whose point comes next, the nearest first. A walk from the key would find them
        in this order, but may be long if a zone has few points."""
        nearest: list[tuple[int, int]] = []
        for points in self._points_by_zone.values():
            point = points[bisect_right(points, key | _INDEX_BITS) % len(points)]
            nearest.append(((point - key) & _POSITIONS, point))
        return [self._member_at(point) for _, point in sorted(nearest)]

    def _fill_up(self, index: int, count: int, chosen: dict[str, RingMember]) -> tuple[RingMember, ...]:
        """Add the next distinct members up to count; each zone has one already."""
        points = self._points
        for step in range(len(points)):
            if len(chosen) == count:
                break
            member = self._member_at(points[(index + step) % len(points)])
            chosen.setdefault(member.id, member)
        return tuple(chosen.values())

    # ------------------------------------------------------------ building

    def _build(self) -> None:
        self._slots = list(self.members)
        by_zone: dict[str, list[array[int]]] = {}
        for slot, member in enumerate(self.members):
            by_zone.setdefault(member.zone, []).append(_points_of(member, slot, unit=self._unit))
        self._points = _merged([points for zone in by_zone.values() for points in zone])
        if len(by_zone) == 1:
            self._points_by_zone = dict.fromkeys(by_zone, self._points)
        else:
            self._points_by_zone = {zone: _merged(points) for zone, points in by_zone.items()}

    def _change(self, previous: Ring) -> bool:
        """Derive this ring from the previous one. Return False, with nothing changed, if too many members differ."""
        leaving = set(previous.members) - set(self.members)
        joining = set(self.members) - set(previous.members)
        if self._unit != previous._unit or (len(leaving) + len(joining)) * MEMBERS_PER_CHANGE_MIN > len(
            self.members
        ):
            return False
        self._slots = list(previous._slots)
        points_leaving = {
            member: _points_of(member, slot, unit=self._unit)
            for slot, member in enumerate(self._slots)
            if member in leaving
        }
        self._slots = [None if member in leaving else member for member in self._slots]
        points_joining = {
            member: _points_of(member, self._take_slot(member), unit=self._unit)
            for member in self.members
            if member in joining
        }
        self._points = _spliced(
            previous._points, _sorted(points_leaving.values()), _sorted(points_joining.values())
        )
        for zone in {member.zone for member in self.members}:
            if all(member.zone == zone for member in self.members):
                self._points_by_zone[zone] = self._points
                continue
            self._points_by_zone[zone] = _spliced(
                previous._points_by_zone.get(zone, array("Q")),
                _sorted(points for member, points in points_leaving.items() if member.zone == zone),
                _sorted(points for member, points in points_joining.items() if member.zone == zone),
            )
        return True

    def _take_slot(self, member: RingMember) -> int:
        if None not in self._slots:
            self._slots.append(None)
        slot = self._slots.index(None)
        self._slots[slot] = member
        return slot


def _unit_of(members: Sequence[RingMember]) -> int:
    """Return the weight of POINTS_MAX points. It is a power of two, so that few joins change the points of all
    members."""
    heaviest = max((member.weight for member in members), default=1)
    return 1 << max(0, heaviest - 1).bit_length()


def _points_of(member: RingMember, slot: int, *, unit: int) -> array[int]:
    """Return the sorted points of a member, computed at once as one large number: point by point takes ten times as
    long."""
    count = max(1, POINTS_MAX * member.weight // unit)
    raw = int.from_bytes(hashlib.shake_128(member.id.encode()).digest(8 * count), "little")
    ones = _EVERY_POINT & ((1 << 64 * count) - 1)
    points = raw & ones * (_POSITIONS - _INDEX_BITS) | ones * slot
    return array("Q", sorted(array("Q", points.to_bytes(8 * count, "little"))))


def _merged(runs: list[array[int]]) -> array[int]:
    """Merge sorted runs into one, portion by portion of the circle."""
    merged, cuts = array("Q"), [0] * len(runs)
    portions = max(1, sum(map(len, runs)) // SORT_PORTION_POINTS)
    for portion in range(1, portions + 1):
        end, part = portion * (1 << 64) // portions, array("Q")
        for number, run in enumerate(runs):
            stop = bisect_left(run, end, cuts[number])
            part += run[cuts[number] : stop]
            cuts[number] = stop
        merged.extend(sorted(part))
    return merged


def _sorted(runs: Iterable[array[int]]) -> list[int]:
    return sorted(point for run in runs for point in run)


def _spliced(points: array[int], leaving: list[int], joining: list[int]) -> array[int]:
    """Return the sorted points without those that leave, which must be among them, and with those that join."""
    spliced, index = array("Q"), 0
    changes = sorted([*((point, False) for point in leaving), *((point, True) for point in joining)])
    for point, is_joining in changes:
        next_index = bisect_left(points, point, index)
        spliced += points[index:next_index]
        index = next_index
        if is_joining:
            spliced.append(point)
        else:
            index += 1
    spliced += points[index:]
    return spliced
