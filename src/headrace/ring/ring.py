"""Which nodes a key belongs to: consistent hashing with virtual nodes. Pure.

Each member stands on a circle of 2^64 places at points that follow from its id alone, as many as its weight is worth;
a key belongs to the members of the points that come next. So a member that joins takes keys only for itself, and one
that leaves gives away only its own (Karger et al., 1997). With some 1,000 to 2,000 points a member the shares are
within 10 % of each other, also the largest of a thousand: the deviation of one is about 1/sqrt(points).

A ring is made from the one before it where few members changed: only their points are cut out and put in. What holds
the interpreter's lock for long is avoided, as a ring is built while reads go on: points are sorted in portions.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import xxhash

POINTS = 2048
"""Of the heaviest member at most, and half of that at least. Building takes some ms a member."""
MEMBERS_MAX = 4096
PORTION = 1 << 15
"""Points sorted by one call: some 10 ms."""
FEW = 8
"""A ring is made from the one before where at most one in so many members changed."""
_INDEX_BITS = MEMBERS_MAX - 1
_PLACES = (1 << 64) - 1
_EVERY_POINT = int.from_bytes(array("Q", [1]) * POINTS, "little")


@dataclass(frozen=True, slots=True)
class RingMember:
    """weight: of its share, in any unit that all members use; zone: "" where zones are not given."""

    id: str
    weight: int
    zone: str = ""


def key_of(path: bytes, segment: int) -> int:
    """The place of one segment of a file on the circle; of a directory, its segment 0."""
    return xxhash.xxh3_64_intdigest(path, seed=segment)


class Ring:
    """members: sorted by id; with one id twice, ValueError. before: a ring of mostly the same members, which makes
    this one quicker to build and changes nothing else. Immutable."""

    def __init__(self, members: Iterable[RingMember], *, before: Ring | None = None) -> None:
        self.members = tuple(sorted(members, key=lambda member: member.id))
        if len({member.id for member in self.members}) != len(self.members):
            raise ValueError("two members of one id")
        if len(self.members) > MEMBERS_MAX:
            raise ValueError(f"{len(self.members)} members, {MEMBERS_MAX} at most")
        self._unit = _unit_of(self.members)
        # the low bits of a point say whose it is: a place here, which a member keeps from ring to ring
        self._slots: list[RingMember | None] = []
        self._points = array("Q")
        self._points_by_zone: dict[str, array[int]] = {}
        if not (before is not None and self._change(before)):
            self._build()
        self._zones = len(self._points_by_zone)

    def owners(self, key: int, count: int = 1) -> tuple[RingMember, ...]:
        """The first is the primary, then its replicas: distinct members, of distinct zones as long as there are any.
        Fewer than count where there are fewer members."""
        count = min(count, len(self.members))
        if count == 0:
            return ()
        points = self._points
        at = bisect_right(points, key | _INDEX_BITS) % len(points)
        if count == 1:
            return (self._member_at(points[at]),)
        return self._walk(key, at, count)

    def _member_at(self, point: int) -> RingMember:
        member = self._slots[point & _INDEX_BITS]
        assert member is not None
        return member

    def _walk(self, key: int, at: int, count: int) -> tuple[RingMember, ...]:
        chosen: dict[str, RingMember] = {}
        if self._zones > 1:
            for member in self._nearest_of_zones(key):
                chosen[member.id] = member
                if len(chosen) == count:
                    return tuple(chosen.values())
        return self._fill_up(at, count, chosen)

    def _nearest_of_zones(self, key: int) -> list[RingMember]:
        """Of each zone the member whose point comes next, the nearest first: what a walk from the key would meet, but a
        walk may be long where a zone has few points."""
        found: list[tuple[int, int]] = []
        for points in self._points_by_zone.values():
            at = bisect_right(points, key | _INDEX_BITS) % len(points)
            found.append(((points[at] - key) & _PLACES, points[at]))
        return [self._member_at(point) for _, point in sorted(found)]

    def _fill_up(self, at: int, count: int, chosen: dict[str, RingMember]) -> tuple[RingMember, ...]:
        """Each zone has one: the rest is the next distinct members."""
        points = self._points
        for step in range(len(points)):
            if len(chosen) == count:
                break
            member = self._member_at(points[(at + step) % len(points)])
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

    def _change(self, before: Ring) -> bool:
        """False, and nothing happened, where too much changed."""
        leave, come = set(before.members) - set(self.members), set(self.members) - set(before.members)
        if self._unit != before._unit or (len(leave) + len(come)) * FEW > len(self.members):
            return False
        self._slots = list(before._slots)
        gone = {
            member: _points_of(member, slot, unit=self._unit)
            for slot, member in enumerate(self._slots)
            if member in leave
        }
        self._slots = [None if member in leave else member for member in self._slots]
        made = {
            member: _points_of(member, self._take_slot(member), unit=self._unit)
            for member in self.members
            if member in come
        }
        self._points = _spliced(before._points, _sorted(gone.values()), _sorted(made.values()))
        for zone in {member.zone for member in self.members}:
            if all(member.zone == zone for member in self.members):
                self._points_by_zone[zone] = self._points
                continue
            self._points_by_zone[zone] = _spliced(
                before._points_by_zone.get(zone, array("Q")),
                _sorted(points for member, points in gone.items() if member.zone == zone),
                _sorted(points for member, points in made.items() if member.zone == zone),
            )
        return True

    def _take_slot(self, member: RingMember) -> int:
        if None not in self._slots:
            self._slots.append(None)
        slot = self._slots.index(None)
        self._slots[slot] = member
        return slot


def _unit_of(members: Sequence[RingMember]) -> int:
    """A power of two, so that few joins change everybody's count."""
    heaviest = max((member.weight for member in members), default=1)
    return 1 << max(0, heaviest - 1).bit_length()


def _points_of(member: RingMember, slot: int, *, unit: int) -> array[int]:
    """Sorted. All at once as one large number: point by point takes ten times as long."""
    count = max(1, POINTS * member.weight // unit)
    raw = int.from_bytes(hashlib.shake_128(member.id.encode()).digest(8 * count), "little")
    ones = _EVERY_POINT & ((1 << 64 * count) - 1)
    whose = raw & ones * (_PLACES - _INDEX_BITS) | ones * slot
    return array("Q", sorted(array("Q", whose.to_bytes(8 * count, "little"))))


def _merged(runs: list[array[int]]) -> array[int]:
    """Of sorted ones, one sorted; portion by portion of the circle."""
    found, cuts = array("Q"), [0] * len(runs)
    portions = max(1, sum(map(len, runs)) // PORTION)
    for portion in range(1, portions + 1):
        end, part = portion * (1 << 64) // portions, array("Q")
        for number, run in enumerate(runs):
            stop = bisect_left(run, end, cuts[number])
            part += run[cuts[number] : stop]
            cuts[number] = stop
        found.extend(sorted(part))
    return found


def _sorted(runs: Iterable[array[int]]) -> list[int]:
    return sorted(point for run in runs for point in run)


def _spliced(points: array[int], leave: list[int], come: list[int]) -> array[int]:
    """leave: all of them among the points."""
    found, at = array("Q"), 0
    changes = sorted([*((point, False) for point in leave), *((point, True) for point in come)])
    for point, comes in changes:
        place = bisect_left(points, point, at)
        found += points[at:place]
        at = place
        if comes:
            found.append(point)
        else:
            at += 1
    found += points[at:]
    return found
