"""The budget of a month slows background work before it stops it."""

from __future__ import annotations

import calendar

import msgspec
import pytest

from headrace.policy.spending import Spending, background_rate, decode_spending, encode_spending, month_of


@pytest.mark.parametrize(
    ("date", "name", "ends"),
    [
        ((2026, 11, 26, 12, 0, 0), "2026-11", (2026, 12, 1)),
        ((2026, 12, 31, 23, 59, 59), "2026-12", (2027, 1, 1)),
        ((2028, 2, 29, 0, 0, 0), "2028-02", (2028, 3, 1)),
    ],
)
def test_months_are_of_the_calendar(date: tuple[int, ...], name: str, ends: tuple[int, int, int]) -> None:
    month = month_of(calendar.timegm(date))
    assert month.name == name
    assert month.ends_s == calendar.timegm((*ends, 0, 0, 0))


def test_background_work_is_free_then_slowed_then_stopped() -> None:
    day_s = 86400.0
    assert background_rate(1000, 0, day_s) is None
    assert background_rate(1000, 799, day_s) is None
    assert background_rate(1000, 800, 10.0) == 20.0
    assert background_rate(1000, 1000, day_s) == 0.0
    assert background_rate(1000, 5000, day_s) == 0.0
    assert background_rate(1000, 900, -3.0) == 100.0


def test_what_is_left_lasts_until_the_end_of_the_month() -> None:
    spent, left_s = 810.0, 1000.0
    while left_s > 0:
        rate = background_rate(1000, spent, left_s)
        assert rate is not None
        spent += rate
        left_s -= 1
    assert spent == pytest.approx(1000, rel=0.01)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"month": "2026-11-01"}',
        b'{"month": "a"}',
        b'{"month": "2026-11", "bytes": {"s3://b": -1}}',
        b'{"month": "2026-11", "bytes": {"s3://b": 1.5}}',
        b'{"month": "2026-11", "bytes": {"s3://b": 99999999999999999999}}',
        b" " * (1 << 19),
    ],
)
def test_a_record_that_is_none_is_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_spending(raw)


def test_a_record_comes_back() -> None:
    spending = Spending("2026-11", {"s3://b": 1 << 50})
    assert decode_spending(encode_spending(spending)) == spending
