"""The taut string against all pairs of bounds: no deadline is missed, no buffer exceeded, and no lower peak exists."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.schedule import rate_now, smoothest_rates

DEMAND = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), max_size=12).map(sorted)


def bounds_of(
    demand: list[tuple[int, int]], buffer_bytes: int, start_bytes: int
) -> list[tuple[int, int, int]]:
    """Return (time, least, most) of what is fetched, at each deadline after now."""
    late = sum(size for deadline, size in demand if deadline == 0)
    start_bytes = max(start_bytes, late)
    bounds, total = [], max(0, sum(size for _, size in demand) - start_bytes)
    for time in sorted({deadline for deadline, _ in demand if deadline > 0}):
        before = sum(size for deadline, size in demand if deadline < time)
        until = sum(size for deadline, size in demand if deadline <= time)
        least = max(0, until - start_bytes)
        bounds.append((time, least, min(total, max(least, before + buffer_bytes - start_bytes))))
    return bounds


@given(DEMAND, st.integers(1, 60), st.integers(0, 60))
def test_the_rates_meet_all_deadlines_within_the_buffer_at_the_lowest_peak(
    demand: list[tuple[int, int]], buffer_bytes: int, start_bytes: int
) -> None:
    start_bytes = min(start_bytes, buffer_bytes)
    exact: Any = [(Fraction(deadline), size) for deadline, size in demand]
    segments: list[tuple[Fraction, Fraction]] = [
        (Fraction(until), Fraction(rate).limit_denominator(10_000))
        for until, rate in smoothest_rates(exact, buffer_bytes, start_bytes)
    ]
    bounds = bounds_of(demand, buffer_bytes, start_bytes)
    assert [until for until, _ in segments] == sorted({until for until, _ in segments})
    assert (segments[-1][0] if segments else 0) == (bounds[-1][0] if bounds else 0)
    for time, least, most in bounds:
        fetched = Fraction(0)
        begin = Fraction(0)
        for until, rate in segments:
            fetched += max(Fraction(0), min(until, Fraction(time)) - begin) * rate
            begin = until
        assert least <= fetched <= most
    corners = [(0, 0, 0), *bounds]
    if corners:
        corners[-1] = (corners[-1][0], corners[-1][1], corners[-1][1])
    lowest_peak = max(
        (
            Fraction(corners[end][1] - corners[start][2], corners[end][0] - corners[start][0])
            for end in range(len(corners))
            for start in range(end)
        ),
        default=Fraction(0),
    )
    assert max((rate for _, rate in segments), default=0) == max(0, lowest_peak)
    first = segments[0][1] if segments else 0
    assert Fraction(rate_now(exact, buffer_bytes, start_bytes)).limit_denominator(10_000) == first
