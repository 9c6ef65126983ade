from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.policy.rate_shares import NodeRate, OverloadFactor, rate_of
from headrace.testing.origin_budget import TICK_S, most_within, requests_sent

LIMIT = 400.0


def steady(rate: float) -> Callable[[float], float]:
    return lambda _: rate


def switching(high: float, period_s: float, phase_s: float) -> Callable[[float], float]:
    """Nothing and much in turns."""
    return lambda now_s: high if (now_s + phase_s) % period_s < period_s / 2 else 0.0


LOADS = {
    "all load": [steady(200)] * 8,
    "one loads": [steady(2000)] + [steady(3)] * 7,
    "demands differ": [steady(10 * 2**number) for number in range(8)],
    "loads begin and end": [switching(300, 17 + number, 3.1 * number) for number in range(6)]
    + [steady(150)] * 2,
}


@pytest.mark.parametrize("load", LOADS)
def test_eight_nodes_use_the_budget_and_do_not_exceed_it(load: str) -> None:
    counts = requests_sent(LIMIT, LOADS[load], 60)
    assert most_within(counts, 10) <= 1.02 * 10 * LIMIT
    settled = counts[round(5 / TICK_S) :]
    assert sum(settled) >= 0.9 * LIMIT * len(settled) * TICK_S


def test_an_overload_lowers_all_nodes_and_they_recover() -> None:
    counts = requests_sent(LIMIT, [steady(200)] * 8, 60, refuses=lambda now_s: 10 <= now_s < 10.3)

    def rate(start_s: float, end_s: float) -> float:
        return sum(counts[round(start_s / TICK_S) : round(end_s / TICK_S)]) / (end_s - start_s)

    assert rate(11, 13) <= 0.65 * LIMIT
    assert rate(20, 22) > rate(12, 14)
    assert rate(50, 60) >= 0.95 * LIMIT


RECORDS = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.builds(
        NodeRate,
        demand=st.floats(0, 1000),
        rate=st.floats(0, 100),
        factor=st.sampled_from([1.0, 0.5]),
        share=st.sampled_from([1.0, 3.0]),
    ),
    min_size=1,
)


@settings(max_examples=150, deadline=None)
@given(RECORDS)
def test_rates_from_one_view_keep_the_budget(records: dict[str, NodeRate]) -> None:
    rates = {name: rate_of(name, LIMIT, records) for name in records}
    bearable = LIMIT * min(record.factor for record in records.values())
    before = sum(record.rate for record in records.values())
    assert sum(rates.values()) <= max(bearable, before) + 1e-6
    again = {name: record._replace(rate=rates[name]) for name, record in records.items()}
    assert sum(rate_of(name, LIMIT, again) for name in again) <= bearable + 1e-6
    assert all(rate >= 0 for rate in rates.values())


def test_one_view_is_settled_after_two_steps() -> None:
    records = {"a": NodeRate(1000, 300), "b": NodeRate(1000, 100), "c": NodeRate(20, 0)}
    for _ in range(2):
        records = {name: r._replace(rate=rate_of(name, LIMIT, records)) for name, r in records.items()}
    assert {name: round(record.rate) for name, record in records.items()} == {"a": 190, "b": 190, "c": 20}


def test_repeated_answers_of_one_overload_count_once() -> None:
    overload = OverloadFactor()
    for now_s in (10.0, 10.1, 10.9):
        overload.record_overload(now_s)
    assert overload.factor(10.0) == 0.5
    overload.record_overload(11.5)
    assert overload.factor(11.5) == pytest.approx((0.5 + 1.5 * 0.02) / 2)
    assert overload.factor(60) == 1
