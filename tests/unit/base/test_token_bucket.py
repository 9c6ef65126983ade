from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.clock import monotonic_s
from headrace.base.token_bucket import Reservation, TokenBucket, wait_for_turn, wait_for_turn_in_thread


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 2), st.integers(1, 50)), max_size=100), st.floats(1, 100))
def test_amounts_pass_at_the_rate_after_a_burst(calls: list[tuple[float, int]], rate: float) -> None:
    bucket, now_s, taken = TokenBucket(rate, 0.0, burst_s=0.5), 0.0, 0
    for pause_s, amount in calls:
        now_s += pause_s
        taken += amount
        now_s += bucket.reserve(amount, now_s).wait_s(now_s)
        assert taken <= max(1.0, rate * 0.5) + rate * now_s + 1e-6


def test_a_changed_rate_is_also_for_what_waits() -> None:
    bucket = TokenBucket(10, 0.0, burst_s=0.1)
    first, second = bucket.reserve(1, 0.0), bucket.reserve(1, 0.0)
    assert [first.wait_s(0.0), second.wait_s(0.0)] == [0, pytest.approx(0.1)]
    bucket.set_rate(1, 0.0, soon_per_s=20)
    assert second.wait_s(0.0) == pytest.approx(1)
    assert second.wait_at_best_s(0.0) == pytest.approx(0.05)
    third = bucket.reserve(1, 0.0)
    assert third.wait_s(0.0) == pytest.approx(2)
    bucket.set_rate(100, 1.0)
    assert [second.wait_s(1.0), third.wait_s(1.0)] == [0, pytest.approx(0.01)]
    assert third.wait_s(2.0) == 0


def test_what_is_given_back_goes_to_those_who_come_later() -> None:
    bucket = TokenBucket(1, 0.0, burst_s=1)
    bucket.reserve(1, 0.0)
    second = bucket.reserve(5, 0.0)
    second.cancel()
    assert bucket.reserve(1, 0.0).wait_s(0.0) == pytest.approx(1)


def test_what_is_given_back_delays_nobody_who_waits_behind_it() -> None:
    bucket = TokenBucket(100, 0.0)
    first, second, third = (bucket.reserve(amount, 0.0) for amount in (125, 1000, 100))
    second.cancel()
    assert (first.wait_s(0.0), third.wait_s(0.0), bucket.reserve(100, 0.0).wait_s(0.0)) == (1.0, 2.0, 3.0)


def test_all_who_wait_pass_in_order_whatever_the_others_give_back() -> None:
    """No traffic comes later, and whoever passed once never waits again."""
    chance = random.Random(0)
    for _ in range(200):
        bucket, now_s = TokenBucket(10, 0.0), 0.0
        live: list[Reservation] = []
        passed: list[Reservation] = []
        for _ in range(60):
            now_s += chance.choice((0.0, 0.1, 3.0))
            live.append(bucket.reserve(chance.choice((0, 1, 7, 40)), now_s))
            if chance.random() < 0.6:
                live.pop(chance.randrange(len(live))).cancel()
            if passed and chance.random() < 0.2:
                passed.pop().cancel()
            waits_s = [each.wait_s(now_s) for each in live]
            assert waits_s == sorted(waits_s)
            owed = sum(each.amount for each in live)
            assert bucket.debt(now_s) <= owed + 1e-5, "only those who wait owe anything"
            passed += [each for each in live if each.wait_s(now_s) == 0]
            live = [each for each in live if each.wait_s(now_s) > 0]
            if live:
                assert waits_s[-1] == pytest.approx(bucket.debt(now_s) / 10, abs=1e-5)
            assert all(each.wait_s(now_s) == 0 for each in passed)
        now_s += bucket.debt(now_s) / 10 + 1e-6
        assert all(each.wait_s(now_s) == 0 for each in live)


async def test_a_wait_behind_one_that_is_cancelled_ends() -> None:
    bucket = TokenBucket(100, monotonic_s())
    reservations = [bucket.reserve(amount, monotonic_s()) for amount in (10_000, 100, 100)]
    first, second, third = (asyncio.ensure_future(wait_for_turn([each])) for each in reservations)
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert reservations[1].wait_s(monotonic_s()) <= 1
    async with asyncio.timeout(60):
        await second
        await third


def test_a_limit_that_is_lifted_holds_nobody() -> None:
    bucket = TokenBucket(1, 0.0)
    waiting = bucket.reserve(1e9, 0.0)
    assert waiting.wait_s(0.0) > 1e8
    bucket.lift()
    assert (waiting.wait_s(0.0), bucket.reserve(1e9, 0.0).wait_at_best_s(0.0)) == (0, 0)
    waiting.cancel()


def test_a_thread_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr("headrace.base.token_bucket.time.sleep", pauses_s.append)
    bucket = TokenBucket(1, monotonic_s(), burst_s=1)
    assert not wait_for_turn_in_thread([bucket.reserve(5, monotonic_s())], timeout_s=1.1)
    assert sum(pauses_s) == pytest.approx(1.1)
    assert bucket.debt(monotonic_s()) == 0, "what it did not use is given back"
    assert wait_for_turn_in_thread([bucket.reserve(2, monotonic_s())], timeout_s=5.0)


@given(st.floats(0.1, 1e9), st.floats(0.1, 1e9), st.floats(0, 1))
def test_a_limit_that_changes_leaves_the_bucket_as_full_as_it_is(
    before: float, after: float, taken: float
) -> None:
    bucket = TokenBucket(before, 0.0, burst_s=1)
    bucket.reserve(before * taken, 0.0)
    bucket.scale_rate(after, 0.0)
    rest = bucket.reserve(after, 0.0)
    assert rest.wait_s(0.0) == pytest.approx(taken, abs=1e-5)


def test_what_waits_is_owed_whatever_the_limit() -> None:
    bucket = TokenBucket(10, 0.0, burst_s=1)
    waiting = bucket.reserve(30, 0.0)
    assert waiting.wait_s(0.0) == pytest.approx(2)
    bucket.scale_rate(40, 0.0)
    assert waiting.wait_s(0.0) == pytest.approx(0.5)
