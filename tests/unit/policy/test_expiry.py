from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.id_table import IdTable
from headrace.base.model import FileId
from headrace.policy.expiry import TimerWheel

TIMES = st.one_of(st.floats(0, 300), st.integers(0, 20_000), st.integers(0, 40_000_000))
STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "use", "remove", "pass"]), st.integers(0, 12), TIMES), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(STEPS, st.integers(1, 5))
def test_files_expire_in_their_second_and_only_then(steps: list[tuple[str, int, float]], limit: int) -> None:
    """Passing of time, in steps of a few files, against a dict of times."""
    now_s = 1_000_000.5
    wheel, expiry = TimerWheel(now_s), dict[int, float]()
    for action, number, delay_s in steps:
        if action == "set":
            wheel.set(FileId(number), now_s + delay_s)
            expiry[number] = now_s + delay_s
        elif action == "use" and number in expiry:
            expiry[number] += delay_s  # the wheel is not called
        elif action == "remove":
            wheel.remove(FileId(number))
            expiry.pop(number, None)
        elif action == "pass":
            now_s += min(delay_s, 20_000)
            expired = list[FileId]()
            while wheel.examined_to_s < math.floor(now_s):
                expired += wheel.due(now_s, limit, expiry.get)
            late = {number for number, at_s in expiry.items() if at_s <= now_s - 1}
            early = {number for number, at_s in expiry.items() if at_s > now_s}
            assert late <= set(expired)
            assert not early & set(expired)
            assert len(set(expired)) == len(expired)
            for id in expired:
                del expiry[id]
        assert len(wheel) == len(expiry)
        assert all((FileId(number) in wheel) == (number in expiry) for number in range(13))


def test_a_file_that_is_gone_is_forgotten() -> None:
    wheel = TimerWheel(0)
    wheel.set(FileId(1), 10)
    assert wheel.due(20, 1000, lambda _: None) == []
    assert len(wheel) == 0


def test_a_call_examines_no_more_than_its_limit() -> None:
    wheel, asked = TimerWheel(0), list[int]()
    for number in range(1000):
        wheel.set(FileId(number), 5000)

    def expires_at(id: FileId) -> float:
        asked.append(id)
        return 5000

    expired = list[FileId]()
    calls = 0
    while len(expired) < 1000:
        before = len(asked)
        expired += wheel.due(5000 + calls, 100, expires_at)
        assert len(asked) - before <= 100
        calls += 1
    assert len(asked) <= 4 * 1000


def test_files_of_a_far_slot_move_before_it_begins() -> None:
    """The seconds before a coarse slot take its files down, so its first second examines only its own."""
    wheel, asked = TimerWheel(0), 0
    for number in range(6000):
        wheel.set(FileId(number), 8192 + number % 4096)

    def expires_at(id: FileId) -> float:
        nonlocal asked
        asked += 1
        return 8192 + id % 4096

    for second in range(1, 8192):
        wheel.due(second, 10, expires_at)
    asked = 0
    assert wheel.due(8192, 10, expires_at) == [FileId(0), FileId(4096)]
    assert asked <= 10


def test_a_clock_that_is_set_ahead_passes_empty_years_at_once() -> None:
    wheel, expiry = TimerWheel(0), {FileId(number): 1000.0 ** (number % 4) for number in range(200)}
    for id, at_s in expiry.items():
        wheel.set(id, at_s)
    expired = set[FileId]()
    for _ in range(1000):
        expired.update(wheel.due(1e12, 100, expiry.get))
    assert expired == set(expiry)
    assert wheel.examined_to_s == 10**12


def test_a_file_that_never_expires_is_not_kept() -> None:
    wheel = TimerWheel(0)
    wheel.set(FileId(1), 10)
    wheel.set(FileId(1), math.inf)
    wheel.set(FileId(2), 10)
    assert len(wheel) == 1
    assert wheel.due(20, 1000, lambda _: math.inf) == []
    assert len(wheel) == 0


def test_an_epoch_of_seconds_has_no_end() -> None:
    wheel = TimerWheel(0)
    wheel.set(FileId(7), 10.0**9)
    assert wheel.due(1000, 1000, lambda _: 10.0**9) == []
    assert FileId(7) in wheel


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**63 - 1) | st.integers(0, 40)), max_size=200))
def test_numbers_of_ids_are_dense_and_unique(steps: list[tuple[bool, int]]) -> None:
    table, numbers = IdTable(), dict[int, int]()
    most = 0
    for is_added, id in steps:
        if is_added and id not in numbers:
            numbers[id] = table.add(FileId(id))
        elif not is_added:
            assert table.remove(FileId(id)) == numbers.pop(id, None)
        most = max(most, len(numbers))
        assert len(table) == len(numbers)
        assert table.find(FileId(id)) == numbers.get(id)
    assert len(set(numbers.values())) == len(numbers)
    assert all(table.id_of(number) == id and number < most for id, number in numbers.items())
