"""Orders of readers: positions, epochs, memory."""

from __future__ import annotations

import random
from array import array

import pytest

from headrace.base.errors import UsageError
from headrace.plan.orders import MergedOrders, PlannedStream


def built(order: list[int], batch_size: int = 1) -> PlannedStream:
    stream = PlannedStream(array("I", order), batch_size)
    assert stream.build(1_000_000)
    return stream


def shuffled(count: int, seed: int = 0) -> list[int]:
    files = list(range(count))
    random.Random(seed).shuffle(files)
    return files


def test_a_file_is_read_next_at_its_position_of_the_first_epoch_that_has_it() -> None:
    stream = built([3, 1, 2])
    stream.extend(array("I", [2, 3, 1]))
    assert stream.next_position(1) == 1
    stream.advance(2)
    assert stream.next_position(1) is None, "the table of the next epoch is not made yet"
    assert stream.build(1 << 20)
    assert [stream.next_position(file) for file in (1, 2, 3, 4)] == [5, 2, 4, None]


def test_epochs_that_are_past_are_released_but_the_last() -> None:
    stream = built([0, 1])
    stream.extend(array("I", [1, 0]))
    stream.extend(array("I", []))
    stream.advance(2)
    assert [epoch.start for epoch in stream.epochs] == [2]
    assert list(stream.upcoming(0, 2)) == []
    stream.advance(4)
    assert [epoch.start for epoch in stream.epochs] == [2]
    assert stream.build(1 << 20) and stream.knows(1) and stream.next_position(1) is None
    stream.extend(array("I", [5]))
    assert [epoch.start for epoch in stream.epochs] == [4]
    assert stream.end == 5


def test_a_reader_does_not_move_back() -> None:
    stream = built([0, 1, 2])
    stream.advance(2)
    stream.advance(1)
    assert stream.position == 2


def test_upcoming_files_end_with_their_epoch() -> None:
    stream = built([4, 5, 6])
    stream.extend(array("I", [6, 5, 4]))
    assert list(stream.upcoming(1, 1)) == [5]
    assert list(stream.upcoming(1, 9)) == [5, 6]
    assert list(stream.upcoming(3, 9)) == [6, 5, 4]
    assert list(stream.upcoming(6, 9)) == []


def test_a_deadline_is_the_begin_of_its_batch() -> None:
    stream = built(list(range(10)), batch_size=4)
    stream.set_step_s(0.5)
    assert [stream.seconds_until(position) for position in (0, 3, 4, 9)] == [0, 0, 0.5, 1]
    stream.advance(4)
    assert [stream.seconds_until(position) for position in (0, 4, 8, 9)] == [0, 0, 0.5, 0.5]


def test_deadlines_end_with_the_horizon_or_the_limit() -> None:
    merged = MergedOrders()
    merged.add("slow", built([0, 1, 2, 3]))
    fast = built([3, 9])
    fast.set_step_s(0.25)
    merged.add("fast", fast)
    assert list(merged.deadlines(1.0, 9)) == [(0.0, 0), (0.0, 3), (0.25, 9), (1.0, 1)]
    assert list(merged.deadlines(9.0, 2)) == [(0.0, 0), (0.0, 3)]
    merged.remove("fast")
    merged.advance("fast", 1)
    assert merged.get("fast") is None
    assert merged.next_use_s(3) == 3.0


@pytest.mark.parametrize("order", [array("Q", [1]), array("H", [1])])
def test_an_order_has_numbers_of_4_bytes(order: array[int]) -> None:
    with pytest.raises(UsageError, match="order of a plan"):
        PlannedStream(order, 1)


def test_a_batch_has_a_sample() -> None:
    with pytest.raises(UsageError, match="batch size 0"):
        PlannedStream(array("I", [1]), 0)


@pytest.mark.parametrize("step_s", [-1.0, float("nan"), float("inf")])
def test_a_step_time_is_a_number_of_seconds(step_s: float) -> None:
    with pytest.raises(UsageError, match="step time"):
        built([1]).set_step_s(step_s)


@pytest.mark.parametrize("distance", [1, 97])
def test_large_orders_find_each_file(distance: int) -> None:
    """Tables of many steps and of many chains; distance 97: an order of a few of many files."""
    order = shuffled(20_000)
    stream = built([7 + file * distance for file in order])
    assert all(stream.next_position(7 + file * distance) == position for position, file in enumerate(order))
    assert stream.next_position(6) is None
    assert stream.next_position(7 + 20_000 * distance) is None


def test_a_file_that_most_samples_are_does_not_slow_the_others() -> None:
    """A weighted sampler may draw one file a thousand times as often as the others."""
    order = [0] * 30_000 + [distant * 1000 for distant in range(1, 3000)]
    random.Random(1).shuffle(order)
    stream = built(order)
    for position in range(0, len(order), 3000):
        stream.advance(position)
        assert stream.next_position(0) == order.index(0, position)
        file = order[position]
        assert stream.next_position(file) == position


def test_tables_are_made_in_steps() -> None:
    merged = MergedOrders()
    merged.add("first", PlannedStream(array("I", range(50_000)), 1))
    merged.add("second", PlannedStream(array("I", range(10)), 1))
    calls = 0
    while not merged.build(4096):
        calls += 1
        assert calls > 10 or merged.next_use_s(0) is None
    assert 10 < calls < 30
    assert merged.next_use_s(0) == 0
