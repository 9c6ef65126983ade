"""Estimates of what more cache and more bandwidth would give."""

from __future__ import annotations

from headrace.plan.estimates import PlanEstimate, estimates


def test_twice_the_cache_and_twice_the_bandwidth() -> None:
    assert list(estimates(100, 4000, 1000, 45)) == [
        PlanEstimate(1, 1, 0.25, 0.6),
        PlanEstimate(2, 1, 0.5, 0.9),
        PlanEstimate(1, 2, 0.25, 1.0),
    ]


def test_data_that_fit_need_no_link() -> None:
    assert [estimate.utilization for estimate in estimates(100, 1000, 1000, 0)] == [1.0, 1.0, 1.0]


def test_without_a_bandwidth_there_is_no_utilization() -> None:
    now, more_cache, more_bandwidth = estimates(100, 2000, 1000, 0)
    assert (now.utilization, more_cache.utilization, more_bandwidth.utilization) == (None, 1.0, None)
