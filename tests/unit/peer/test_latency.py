"""A peer that is slow beside the others."""

from __future__ import annotations

from headrace.peer.latency import (
    AGE_S_MAX,
    JUDGEMENT_S,
    JUDGEMENT_S_EACH,
    SAMPLES_MIN,
    Latencies,
    size_class,
)

SMALL = 100_000
JUDGEMENT_S_MAX = JUDGEMENT_S + 16 * JUDGEMENT_S_EACH
"""For as few as there are here."""


def taken(**seconds: float) -> Latencies:
    latencies = Latencies()
    for node, duration_s in seconds.items():
        for _ in range(SAMPLES_MIN):
            latencies.add(node, SMALL, seconds=duration_s, now_s=0.0)
    return latencies


def test_one_that_is_far_above_the_others_is_slow() -> None:
    latencies = taken(a=0.01, b=0.012, c=0.3)
    assert [latencies.is_slow(node, now_s=1.0) for node in ("a", "b", "c", "unknown")] == [
        False,
        False,
        True,
        False,
    ]


def test_all_alike_or_alone_is_not_slow() -> None:
    assert not taken(a=0.5, b=0.5).is_slow("a", now_s=1.0)
    assert not taken(a=5.0).is_slow("a", now_s=1.0)
    assert not taken(a=0.001, b=0.015).is_slow("b", now_s=1.0)  # fifteen times, and still nothing


def test_a_few_slow_answers_of_many_count() -> None:
    latencies = taken(a=0.01, b=0.01)
    for _ in range(3):
        latencies.add("b", SMALL, seconds=1.0, now_s=0.0)
    assert latencies.is_slow("b", now_s=1.0)


def test_one_that_becomes_slow_or_well_again_is_found_out_soon_and_not_at_once() -> None:
    latencies = taken(a=0.01, b=0.01)
    assert not latencies.is_slow("b", now_s=1.0)
    for _ in range(SAMPLES_MIN):
        latencies.add("b", SMALL, seconds=1.0, now_s=1.0)
    assert not latencies.is_slow("b", now_s=1.0 + JUDGEMENT_S / 2)
    assert latencies.is_slow("b", now_s=1.0 + JUDGEMENT_S_MAX)
    latencies.forget("b")  # another run of it
    assert not latencies.is_slow("b", now_s=1.0 + JUDGEMENT_S_MAX)


def test_each_is_compared_with_the_median_of_the_others() -> None:
    """Which, of an even number, lies between two."""
    assert taken(a=0.03, b=0.05, c=0.161).is_slow("c", now_s=1.0)  # others: 0.04
    assert not taken(a=0.03, b=0.05, c=0.159).is_slow("c", now_s=1.0)
    assert not taken(a=0.03, b=0.05, c=0.06, d=0.199).is_slow("d", now_s=1.0)  # others: 0.05
    assert taken(a=0.03, b=0.05, c=0.06, d=0.201).is_slow("d", now_s=1.0)


def test_sizes_are_compared_with_their_like() -> None:
    latencies = taken(a=0.01, b=0.01)
    for _ in range(SAMPLES_MIN):
        latencies.add("a", 8 << 20, seconds=0.4, now_s=0.0)
    assert not latencies.is_slow("a", now_s=1.0)
    assert size_class(SMALL) < size_class(1 << 20) < size_class(8 << 20) < size_class(1 << 30)


def test_what_is_old_is_forgotten() -> None:
    latencies = taken(a=0.01, c=1.0)
    assert latencies.is_slow("c", now_s=AGE_S_MAX)
    assert not latencies.is_slow("c", now_s=AGE_S_MAX + JUDGEMENT_S_MAX)
    assert latencies.over_all("c", share=0.5, now_s=AGE_S_MAX + 1) is None


def test_quantiles() -> None:
    latencies = Latencies()
    for n in range(100):
        latencies.add("a", SMALL, seconds=n / 100, now_s=0.0)
    assert latencies.over_all("a", share=0.5, now_s=0.0) == 0.5
    assert latencies.over_all("a", share=0.99, now_s=0.0) == 0.99
    assert latencies.usual_s(size_class(SMALL), now_s=0.0) == 0.99
    latencies.forget("a")
    assert latencies.over_all("a", share=0.5, now_s=0.0) is None
