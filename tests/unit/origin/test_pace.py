"""Mounts share the budget of their origin, which may change and go while they run."""

from __future__ import annotations

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError
from headrace.origin.memory import MemoryOrigin
from headrace.origin.pace import BudgetRates, OriginPace, OriginPaces
from headrace.origin.throttle import OriginLimits, ThrottleOrigin


def mounted(paces: OriginPaces, url: str) -> tuple[OriginPace, ThrottleOrigin]:
    memory = MemoryOrigin()
    memory.hold("f", b"x" * 1000)
    pace = OriginPace(url)
    paces.add(pace)
    return pace, ThrottleOrigin(memory, OriginLimits(), pace)


async def took_s(origin: ThrottleOrigin, count: int) -> float:
    begun_s = monotonic_s()
    for _ in range(count):
        await origin.head("f", deadline=Deadline.never())
    return monotonic_s() - begun_s


async def test_mounts_of_a_budget_share_it() -> None:
    paces = OriginPaces()
    _, first = mounted(paces, "s3://b/x")
    _, second = mounted(paces, "s3://b")
    _, other = mounted(paces, "s3://bb")
    paces.apply({"s3://b": BudgetRates(10.0, None)})
    begun_s = monotonic_s()
    for _ in range(10):
        await first.head("f", deadline=Deadline.never())
        await second.head("f", deadline=Deadline.never())
    assert monotonic_s() - begun_s >= 1.7
    assert await took_s(other, 50) == 0


async def test_the_longest_url_counts_and_a_later_mount_is_paced_too() -> None:
    paces = OriginPaces()
    paces.apply({"s3://b": BudgetRates(1.0, None), "s3://b/fast": BudgetRates(1e6, None)})
    _, fast = mounted(paces, "s3://b/fast/data")
    _, slow = mounted(paces, "s3://b/fasten")
    assert await took_s(fast, 50) < 0.1
    assert await took_s(slow, 3) >= 2.0 - 0.01


async def test_a_budget_that_goes_limits_nothing_more() -> None:
    paces = OriginPaces()
    _, origin = mounted(paces, "s3://b")
    paces.apply({"s3://b": BudgetRates(1.0, 1.0)})
    paces.apply({})
    assert await took_s(origin, 50) == 0


async def test_a_wait_beyond_the_deadline_is_refused_and_takes_nothing() -> None:
    paces = OriginPaces()
    _, origin = mounted(paces, "s3://b")
    rates = BudgetRates(None, 100.0)
    paces.apply({"s3://b": rates})
    version = (await origin.head("f", deadline=Deadline.never())).version
    with pytest.raises(DeadlineExceededError, match="a budget of the policy"):
        await origin.read_range("f", 0, 1000, version=version, deadline=Deadline.after(1.0))
    assert rates.bytes is not None and rates.bytes.debt(monotonic_s()) == 0


async def test_a_mount_that_is_gone_is_forgotten() -> None:
    paces = OriginPaces()
    pace, origin = mounted(paces, "s3://b")
    paces.remove("s3://b")
    paces.apply({"s3://b": BudgetRates(1.0, None)})
    assert pace.charges(10) == [] and await took_s(origin, 20) == 0


async def test_a_wait_ends_at_the_deadline_if_the_rate_does_not_rise_as_expected() -> None:
    paces = OriginPaces()
    _, origin = mounted(paces, "s3://b")
    rates = BudgetRates(1.0, None)
    paces.apply({"s3://b": rates})
    assert rates.requests is not None
    rates.requests.set_rate(0.001, monotonic_s(), soon_per_s=100.0)  # its part while etcd is away
    await origin.head("f", deadline=Deadline.never())
    begun_s = monotonic_s()
    with pytest.raises(DeadlineExceededError, match="delayed it past the deadline"):
        await origin.head("f", deadline=Deadline.after(5.0))
    assert monotonic_s() - begun_s == pytest.approx(5.0)
    assert rates.requests.debt(monotonic_s()) == 0
