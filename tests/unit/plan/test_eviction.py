"""Victims by plan: what is needed last is evicted first, and nothing that is needed sooner for a prefetch."""

from __future__ import annotations

import random
from array import array

from headrace.plan.eviction import PlannedVictims
from headrace.plan.orders import MergedOrders, PlannedStream
from headrace.plan.use_marks import UseMarks


class Volume:
    """Hold the sizes of resident files, with their victims by plan."""

    def __init__(self, **orders: list[int]) -> None:
        self.orders = MergedOrders()
        self.sizes: dict[int, int] = {}
        self.pinned: set[int] = set()
        for name, order in orders.items():
            self.plan(name, order)
        self.victims = PlannedVictims(self.orders, lambda file: self.sizes.get(file, 0))

    def plan(self, name: str, order: list[int]) -> None:
        self.orders.add(name, PlannedStream(array("I", order), 1))
        while not self.orders.build(1 << 20):
            pass

    def fill(self, *files: int, size_bytes: int = 10) -> None:
        for file in files:
            self.sizes[file] = size_bytes
            self.victims.insert(file)

    def choose(self, bytes_needed: int) -> list[int]:
        while not self.victims.catch_up():
            pass
        return self.victims.victims(bytes_needed, self.pinned.__contains__)

    def evict(self, bytes_needed: int) -> list[int]:
        chosen = self.choose(bytes_needed)
        for file in chosen:
            del self.sizes[file]
        return chosen


def test_victims_have_the_bytes_and_stay_until_they_are_evicted() -> None:
    volume = Volume(job=list(range(8)))
    volume.fill(1, 3, 5)
    assert volume.choose(11) == [5, 3]
    assert volume.evict(11) == [5, 3]
    assert volume.choose(100) == [1]
    volume.fill(3)
    assert volume.choose(10) == [3]


def test_files_that_are_used_no_more_are_evicted_first() -> None:
    volume = Volume(job=[0, 1, 2, 3])
    volume.fill(0, 1, 2, 3)
    volume.orders.advance("job", 2)
    assert volume.choose(30) == [0, 1, 3]
    volume.fill(0)
    assert volume.choose(10) == [0], "it is read again after its use, as after a miss"


def test_files_of_no_plan_are_left_to_the_policy() -> None:
    volume = Volume(job=[0, 1])
    volume.fill(0, 70, 80)
    assert volume.choose(100) == [0]
    volume.orders.remove("job")
    assert volume.choose(100) == []


def test_the_next_epoch_gives_used_files_a_use_again() -> None:
    volume = Volume(job=[0, 1, 2])
    volume.fill(0, 1, 2)
    volume.orders.advance("job", 2)
    assert volume.choose(10) == [0]
    stream = volume.orders.get("job")
    assert stream is not None
    stream.extend(array("I", [1, 2, 0]))
    assert stream.build(1 << 20)
    assert volume.choose(30) == [0, 1, 2]


def test_a_file_is_needed_when_its_soonest_reader_needs_it() -> None:
    volume = Volume(first=[0, 1, 2, 3], second=[3, 2, 9, 9])
    volume.fill(0, 1, 2, 3)
    assert volume.choose(40)[:2] in ([1, 2], [2, 1])
    assert volume.choose(40)[2:] in ([0, 3], [3, 0])
    volume.orders.remove("second")
    assert volume.choose(40) == [3, 2, 1, 0]
    volume.plan("third", [8, 3, 8])
    assert volume.choose(20) == [2, 1]


def test_files_that_were_resident_before_the_plan_are_its_candidates() -> None:
    volume = Volume()
    volume.fill(0, 5, 9)
    volume.plan("job", list(range(10)))
    assert volume.choose(20) == [9, 5]


def test_pinned_files_stay_and_are_candidates_again_later() -> None:
    volume = Volume(job=list(range(200)))
    volume.fill(*range(200))
    volume.pinned = set(range(20, 200))
    assert volume.choose(20) == [19, 18]
    volume.pinned = set()
    for _ in range(4):
        volume.choose(10)
    assert volume.choose(20) == [199, 198]


def test_a_prefetch_evicts_only_what_is_needed_later() -> None:
    volume = Volume(job=list(range(10)))
    volume.fill(2, 6)
    volume.choose(0)
    assert volume.victims.may_admit(4)
    assert not volume.victims.may_admit(7)
    assert not volume.victims.may_admit(6), "as soon is not later"
    assert not volume.victims.may_admit(4, 20), "the second victim is needed sooner"
    assert not volume.victims.may_admit(77), "nobody is known to need it"
    volume.pinned = {6}
    assert not volume.victims.may_admit(4, 10, volume.pinned.__contains__)
    volume.orders.advance("job", 3)
    volume.choose(0)
    assert volume.victims.may_admit(9), "2 is used no more"


def test_a_prefetch_may_displace_what_no_plan_knows() -> None:
    volume = Volume(job=[1, 2])
    volume.fill(70)
    assert volume.victims.may_admit(1)


def test_marks_find_the_last_and_the_first() -> None:
    marks, positions = UseMarks(100_000), set[int]()
    random_source = random.Random(5)
    for _ in range(3000):
        position = random_source.randrange(100_000)
        if random_source.random() < 0.6:
            marks.set(position)
            positions.add(position)
        else:
            last = marks.last()
            assert last == max(positions, default=-1)
            marks.clear(max(0, last))
            positions.discard(last)
    assert list(marks.pop_before(60_000)) == sorted(p for p in positions if p < 60_000)
    assert list(marks.pop_before(100_000)) == sorted(p for p in positions if p >= 60_000)
    assert marks.last() == -1
    marks.set(3)
    assert (marks.last(), list(marks.pop_before(4))) == (3, [3])


def test_before_all_is_known_the_known_victims_must_suffice() -> None:
    volume = Volume(job=list(range(8)))
    volume.fill(7)
    assert volume.victims.may_admit(2, 10, must_suffice=True)
    assert not volume.victims.may_admit(2, 30, must_suffice=True)
