"""The rate of planned fetches: the least that keeps readers ahead, and all there is while one may wait."""

from __future__ import annotations

import pytest

from headrace.plan.pacing import CATCH_UP_S, SAFETY_S, ReaderDemand, fetch_rate

STEP_S, STEP_BYTES = 0.1, 1_000_000
NEEDED = STEP_BYTES / STEP_S
ROOM = 10**12


def demand(ahead_s: float, left_s: float = 1000.0) -> ReaderDemand:
    return ReaderDemand(STEP_S, STEP_BYTES, round(ahead_s / STEP_S), round(left_s / STEP_S))


def test_a_reader_that_is_safely_ahead_gets_what_it_reads() -> None:
    assert fetch_rate([demand(SAFETY_S)], ROOM) == pytest.approx(NEEDED, rel=0.02)
    assert fetch_rate([demand(SAFETY_S), demand(SAFETY_S)], ROOM) == pytest.approx(2 * NEEDED, rel=0.02)


def test_a_reader_that_is_far_ahead_gets_less() -> None:
    rate = fetch_rate([demand(SAFETY_S + 30)], ROOM)
    assert rate is not None
    assert 0 < rate < 0.6 * NEEDED


def test_what_is_late_is_fetched_beside_the_rest() -> None:
    rate = fetch_rate([demand(SAFETY_S / 2)], ROOM)
    assert rate == pytest.approx(NEEDED + NEEDED * SAFETY_S / 2 / CATCH_UP_S, rel=0.05)


def test_nothing_limits_the_rate_while_a_reader_may_wait() -> None:
    assert fetch_rate([demand(0.2)], ROOM) is None
    assert fetch_rate([demand(SAFETY_S), demand(0.2)], ROOM) is None


def test_nothing_is_fetched_when_all_that_is_known_is_there() -> None:
    assert fetch_rate([], ROOM) == 0
    assert fetch_rate([demand(5, left_s=5)], ROOM) == 0
    assert fetch_rate([demand(0, left_s=0)], ROOM) == 0


def test_small_steps_are_joined() -> None:
    fast = ReaderDemand(1e-4, 1000, 200_000, 10_000_000)
    assert len(list(fast.points())) <= 201
    assert fetch_rate([fast], ROOM) == pytest.approx(0.8 * 1e7, rel=0.2)


@pytest.mark.parametrize("outage_s", [0.0, 5.0, 9.0])
def test_a_job_waits_for_no_outage_and_has_no_peak(outage_s: float) -> None:
    """A cold job over a link of twice its need; the origin is away for some seconds in the middle."""
    fetched = consumed = waited_s = 0.0
    rates = []
    for tick in range(1200):
        now_s = tick * 0.1
        ahead = max(0.0, fetched - consumed)
        rate = fetch_rate([ReaderDemand(STEP_S, STEP_BYTES, int(ahead // STEP_BYTES), 10_000)], ROOM)
        possible = 0.0 if 60 <= now_s < 60 + outage_s else 2 * NEEDED
        speed = possible if rate is None else min(rate, possible)
        fetched += speed * 0.1
        if fetched - consumed >= STEP_BYTES:
            consumed += STEP_BYTES
        elif now_s > 1:
            waited_s += 0.1
        if now_s > 55 and not outage_s:
            rates.append(speed)
    assert waited_s == 0
    if rates:
        assert max(rates) <= 1.05 * NEEDED
