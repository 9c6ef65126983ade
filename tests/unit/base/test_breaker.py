"""A breaker decides when another side is not asked, and when it is tried again. Times are numbers here."""

from __future__ import annotations

from headrace.base.breaker import Breaker, BreakerLimits

FAILURES_MAX, PAUSE_S, PAUSE_S_MAX, PROBE_LIMIT_S = 3, 0.5, 15.0, 30.0
LIMITS = BreakerLimits(FAILURES_MAX, PAUSE_S, PAUSE_S_MAX, PROBE_LIMIT_S)


def opened(*, chance: float = 1.0) -> Breaker:
    breaker = Breaker(LIMITS)
    for _ in range(FAILURES_MAX):
        assert breaker.closed
        breaker.failed(0.0, chance=chance)
    assert not breaker.closed
    return breaker


def test_failures_in_a_row_open_it_and_others_do_not() -> None:
    breaker = Breaker(LIMITS)
    for _ in range(10):
        for _ in range(FAILURES_MAX - 1):
            breaker.failed(0.0, chance=1.0)
        breaker.succeeded()
    assert breaker.closed
    opened()


def test_one_silence_opens_it() -> None:
    breaker = Breaker(LIMITS)
    breaker.failed(0.0, chance=1.0, silent=True)
    assert not breaker.closed
    assert not breaker.take_probe(PAUSE_S * 0.99)
    assert breaker.take_probe(PAUSE_S)


def test_one_probe_after_the_pause_closes_it() -> None:
    breaker = opened()
    assert not breaker.take_probe(PAUSE_S * 0.99)
    assert breaker.state(PAUSE_S) == "open"
    assert breaker.take_probe(PAUSE_S)
    assert not breaker.take_probe(PAUSE_S)
    assert breaker.state(PAUSE_S) == "probing"
    breaker.succeeded()
    assert breaker.closed
    assert breaker.state(PAUSE_S) == "closed"
    assert not breaker.take_probe(PAUSE_S + 1)


def test_the_pause_grows_up_to_its_limit() -> None:
    breaker = opened()
    now, pauses = 0.0, []
    for _ in range(10):
        began = now
        while not breaker.take_probe(now):
            now += PAUSE_S / 10
        pauses.append(round(now - began, 6))
        breaker.failed(now, chance=1.0)
    assert pauses == sorted(pauses)
    assert pauses[1] > 1.5 * pauses[0]
    assert pauses[-1] <= PAUSE_S_MAX + PAUSE_S
    assert pauses[-2] == pauses[-1]


def test_chance_shortens_the_pause_by_half_at_most() -> None:
    assert opened(chance=0.0).take_probe(PAUSE_S / 2)
    assert not opened(chance=0.0).take_probe(PAUSE_S / 2 - 0.01)


def test_failures_of_requests_that_were_under_way_do_not_lengthen_the_pause() -> None:
    breaker = opened()
    for _ in range(50):
        breaker.failed(0.1, chance=1.0)
    assert breaker.take_probe(PAUSE_S)


def test_a_probe_nobody_told_the_end_of_is_forgotten() -> None:
    breaker = opened()
    assert breaker.take_probe(PAUSE_S)
    assert not breaker.take_probe(PAUSE_S + PROBE_LIMIT_S - 1)
    assert breaker.take_probe(PAUSE_S + PROBE_LIMIT_S)


def test_who_asks_for_a_pause_gets_it_at_once() -> None:
    breaker = Breaker(LIMITS)
    breaker.failed(0.0, chance=1.0, wait_s=7.0)
    assert not breaker.closed
    assert breaker.probe_due_s(0.0) == 7.0
    assert not breaker.take_probe(6.9)
    assert breaker.take_probe(7.0)
    assert breaker.probe_due_s(7.0) == 7.0 + PROBE_LIMIT_S
    breaker.failed(8.0, chance=1.0, wait_s=1e-3)
    assert breaker.probe_due_s(8.0) == 8.0 + 2 * PAUSE_S
