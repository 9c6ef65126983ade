"""Rates and the order of fetches."""

from __future__ import annotations

import time

from headrace.plan.schedule import rate_now, smoothest_rates


def test_a_large_buffer_gives_one_rate_for_all() -> None:
    demand = [(float(second), 10) for second in range(1, 11)]
    assert smoothest_rates(demand, 1000, 0) == [(10.0, 10.0)]
    assert smoothest_rates(demand, 1000, 50) == [(10.0, 5.0)]
    assert rate_now(demand, 1000, 50) == 5.0


def test_a_burst_is_fetched_ahead_as_far_as_the_buffer_allows() -> None:
    demand = [(1.0, 10), (2.0, 10), (3.0, 10), (4.0, 40), (5.0, 40)]
    assert smoothest_rates(demand, 1000, 0) == [(5.0, 22.0)]
    assert smoothest_rates(demand, 45, 0) == [(4.0, 18.75), (5.0, 35.0)]


def test_what_is_larger_than_the_buffer_is_fetched_by_its_deadline() -> None:
    assert smoothest_rates([(2.0, 100)], 10, 0) == [(2.0, 50.0)]


def test_late_bytes_are_left_to_the_readers() -> None:
    assert smoothest_rates([(-1.0, 7), (0.0, 7), (2.0, 10)], 100, 0) == [(2.0, 5.0)]
    assert smoothest_rates([(0.0, 10)], 100, 0) == []
    assert smoothest_rates([], 100, 0) == []
    assert rate_now([], 100, 0) == 0.0


def test_what_is_there_needs_no_rate() -> None:
    assert smoothest_rates([(1.0, 10), (2.0, 10)], 100, 20) == [(2.0, 0.0)]


def test_a_hundred_thousand_deadlines_take_linear_time() -> None:
    demand = [(float(number), 1 + number % 97) for number in range(1, 100_001)]
    start = time.thread_time()
    assert smoothest_rates(demand, 10_000, 0)
    assert time.thread_time() - start < 20, "a quadratic search takes hours"
