"""The budget of a month slows background work before it stops it."""

from __future__ import annotations

import calendar
from collections.abc import Iterable

import msgspec
import pytest

from headrace.policy.document import ORIGINS_MAX
from headrace.policy.spending import (
    BYTES_MAX,
    DEPARTED_MAX,
    RECORD_BYTES_MAX,
    Departed,
    Spending,
    background_rate,
    decode_departed,
    decode_spending,
    encode_spending,
    month_of,
)


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


NOVEMBER = "2026-11"


def departed_of(spendings: Iterable[Spending], present: str = NOVEMBER) -> Departed:
    """Return the record of nodes that left, as another node decodes it."""
    departed = Departed()
    for number, spending in enumerate(spendings):
        checked = decode_spending(encode_spending(spending))
        departed = departed.with_record(f"n{number % (DEPARTED_MAX + 9)}", checked, present)
        departed = decode_departed(msgspec.json.encode(departed))
    return departed


def test_a_node_that_left_twice_with_other_origins_leaves_a_record_that_can_be_read() -> None:
    departed = Departed()
    for letter, size_bytes in (("a", 5), ("b", 7)):
        amounts = {f"s3://{letter}{number}": size_bytes for number in range(ORIGINS_MAX)}
        departed = departed.with_record("n", Spending(NOVEMBER, amounts), NOVEMBER)
    decoded = decode_departed(msgspec.json.encode(departed))
    assert decoded.bytes_of(NOVEMBER, "s3://b0", ()) == 7


def test_records_with_long_urls_leave_a_record_that_can_be_read() -> None:
    long = RECORD_BYTES_MAX - 100
    departed = departed_of(
        Spending(NOVEMBER, {f"s3://{number:0{long}}": 1, "s3://b": 3}) for number in range(9)
    )
    assert departed.bytes_of(NOVEMBER, "s3://b", ()) == 27
    assert departed.bytes_of(NOVEMBER, "s3://b", {"n0"}) == 27  # named no more: nothing is lost


def test_sums_stay_within_what_a_record_may_have() -> None:
    departed = departed_of(Spending(NOVEMBER, {"s3://b": BYTES_MAX}) for _ in range(DEPARTED_MAX + 9))
    assert departed.bytes_of(NOVEMBER, "s3://b", ()) > BYTES_MAX


def test_records_of_wrong_clocks_do_not_take_the_place_of_the_present_month() -> None:
    months = [NOVEMBER, "2026-10", "9999-12", "2099-01", "9998-12", "9997-12"]
    departed = departed_of(Spending(month, {"s3://b": 4}) for month in months)
    assert departed.bytes_of(NOVEMBER, "s3://b", ()) == 4
    assert departed.bytes_of("2026-10", "s3://b", ()) == 4
    assert len(departed.months) == 3
