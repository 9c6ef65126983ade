"""The numbers of files, the victims by plan, and the measured time of a step."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from headrace.base.model import FileId
from headrace.plan.file_numbers import NO_FILE, FileNumbers
from headrace.plan.orders import PlannedStream
from headrace.plan.planned_files import VICTIMS_OF_A_FETCH, PlannedFiles
from headrace.plan.step_time import StepTime


@given(st.lists(st.sets(st.integers(min_value=1, max_value=(1 << 64) - 1), max_size=60), max_size=4))
def test_a_file_has_one_number_in_all_data_sets(data_sets: list[set[int]]) -> None:
    numbers = FileNumbers()
    expected: dict[int, int] = {}
    for ids in data_sets:
        for id in ids:
            assert numbers.add(FileId(id)) == expected.setdefault(id, len(expected) + 1)
    for id, number in expected.items():
        assert numbers.number_of(FileId(id)) == number
        assert numbers.id_of(number) == id
    assert numbers.number_of(FileId(1 << 63)) == expected.get(1 << 63, NO_FILE)
    assert len(numbers) == len(expected)


def test_numbers_end_at_their_most() -> None:
    numbers = FileNumbers(2)
    assert [numbers.add(FileId(id)) for id in (5, 6, 7, 5)] == [1, 2, NO_FILE, 1]


def test_many_files_have_numbers() -> None:
    numbers = FileNumbers()
    ids = [FileId(id << shift) for shift in (0, 1, 40) for id in range(1, 30_000, 2)]
    expected = {id: numbers.add(id) for id in ids}
    assert sorted(expected.values()) == list(range(1, len(expected) + 1))
    assert all(numbers.number_of(id) == number for id, number in expected.items())


class Cache:
    """One volume with files of 10 bytes, whose policy would evict the least ids first."""

    def __init__(self, planned: PlannedFiles, ids: list[int], volume: int = 0) -> None:
        self.planned = planned
        self._volume = volume
        self.ids = ids
        self.pinned: set[int] = set()
        planned.add_volume(volume, self.size_of)

    def size_of(self, id: FileId) -> int:
        return 10 * (id in self.ids)

    def choose(self, *ids: int) -> list[int]:
        chosen = self.planned.choose(self._volume, [FileId(id) for id in ids], lambda id: id in self.pinned)
        return [int(id) for id in chosen]


def planned_cache(order: list[int], resident: list[int]) -> Cache:
    """Return a cache whose files 1, 2, … are read in an order of their ids."""
    planned = PlannedFiles()
    stream = PlannedStream(array("I", (planned.numbers.add(FileId(id)) for id in order)), 1)
    planned.orders.add("job", stream)
    while not planned.orders.build(4096):
        pass
    cache = Cache(planned, resident)
    while not planned.catch_up():
        pass
    return cache


def test_the_file_that_is_needed_last_goes_first() -> None:
    cache = planned_cache([3, 1, 4, 2], [1, 2, 3, 4])
    assert cache.choose(3) == [2]
    assert cache.choose(1, 3) == [2, 4]
    cache.pinned = {2}
    assert cache.choose(1) == [4]


def test_files_that_no_plan_knows_are_left_to_the_policy() -> None:
    cache = planned_cache([3, 1, 4, 2], [1, 2, 3, 4, 50, 51])
    assert cache.choose(50, 51) == [50, 51]
    assert cache.choose(50, 3) == [50, 2]


def test_a_file_that_is_read_no_more_goes_before_all() -> None:
    cache = planned_cache([3, 1, 4, 2], [1, 2, 3, 4])
    cache.planned.orders.advance("job", 2)
    while not cache.planned.catch_up():
        pass
    assert set(cache.choose(4, 2)) == {1, 3}


def test_a_fetch_for_which_very_many_files_would_go_waits() -> None:
    ids = list(range(1, VICTIMS_OF_A_FETCH + 100))
    cache = planned_cache([*ids, 9000], ids)
    number = cache.planned.numbers.number_of(FileId(9000))
    cache.planned.orders.advance("job", len(ids))
    while not cache.planned.catch_up():
        pass
    assert cache.planned.may_admit(number, 10 * (VICTIMS_OF_A_FETCH - 1), deadline_s=0)
    assert not cache.planned.may_admit(number, 10 * (VICTIMS_OF_A_FETCH + 50), deadline_s=0)


def test_what_goes_before_all_others_decides_alone_if_it_suffices() -> None:
    """Volume 0 has a file that is needed sooner than that which is fetched; it stays."""
    cache = planned_cache([1, 2, 3, 4, 5], [1])
    borrowed = Cache(cache.planned, [4, 5], volume=-1)
    while not cache.planned.catch_up():
        pass
    number = cache.planned.numbers.number_of(FileId(2))
    assert cache.planned.may_admit(number, 20, deadline_s=0)
    assert not cache.planned.may_admit(number, 30, deadline_s=0)
    assert borrowed.choose(4) == [5]
    assert not cache.planned.may_admit(cache.planned.numbers.number_of(FileId(5)), 10, deadline_s=0)


def test_without_plans_nothing_changes() -> None:
    planned = PlannedFiles()
    assert planned.choose(0, [FileId(7)], lambda _: False) == [7]
    planned.note_resident(FileId(7))
    assert planned.may_admit(1, 10, deadline_s=0)


def test_the_step_is_what_it_takes_when_nothing_holds_the_job_up() -> None:
    step = StepTime(batch_size=10)
    now_s, position = 0.0, 0
    for seconds in [0.5] * 20 + [2.0] * 20 + [0.5] * 20:
        step.note(now_s, position)
        now_s, position = now_s + seconds, position + 10
    assert step.step_s == 0.5
    step.note(now_s, 0)  # another epoch
    assert step.step_s == 0.5
    assert StepTime(1).step_s is None
