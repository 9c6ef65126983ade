from __future__ import annotations

import asyncio

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError
from headrace.base.model import Version
from headrace.base.token_bucket import BURST_S
from headrace.origin.memory import MemoryOrigin
from headrace.origin.throttle import OriginLimits, ThrottleOrigin
from headrace.testing.virtual_loop import pass_time, skipped_s
from tests.faulty_origin import FaultyOrigin, PlannedFault

SIZE = 1000


def setting(limits: OriginLimits) -> tuple[FaultyOrigin, ThrottleOrigin, Version]:
    memory = MemoryOrigin(page_size=1)
    version = memory.hold("f", b"x" * SIZE)
    memory.hold("g", b"x")
    faulty = FaultyOrigin(memory)
    return faulty, ThrottleOrigin(faulty, limits), version


async def test_no_limit_waits_for_nothing() -> None:
    _, origin, version = setting(OriginLimits())
    for _ in range(100):
        await origin.head("f", deadline=Deadline.never())
        await origin.read_range("f", 0, SIZE, version=version, deadline=Deadline.never())
    assert not skipped_s()


@pytest.mark.parametrize("rate", [2.0, 10.0, 500.0])
async def test_requests_come_at_the_rate(rate: float) -> None:
    _, origin, _ = setting(OriginLimits(requests_per_s=rate))
    begun_s, count = monotonic_s(), 200
    for _ in range(count):
        await origin.head("f", deadline=Deadline.never())
    took_s = monotonic_s() - begun_s
    assert count / rate - BURST_S - 1 / rate <= took_s <= count / rate


@pytest.mark.parametrize("rate", [100.0, 4000.0])
async def test_bytes_come_at_the_rate_also_when_a_read_is_more_than_the_burst(rate: float) -> None:
    _, origin, version = setting(OriginLimits(bytes_per_s=rate))
    begun_s, count = monotonic_s(), 20
    for _ in range(count):
        await origin.read_range("f", 0, SIZE, version=version, deadline=Deadline.never())
    took_s = monotonic_s() - begun_s
    assert count * SIZE / rate - BURST_S <= took_s <= count * SIZE / rate


async def test_idle_time_is_kept_for_a_short_burst_only() -> None:
    _, origin, _ = setting(OriginLimits(requests_per_s=100.0))
    await pass_time(3600)
    skipped_s().clear()
    for _ in range(int(100 * BURST_S)):
        await origin.head("f", deadline=Deadline.never())
    assert not skipped_s()
    await origin.head("f", deadline=Deadline.never())
    assert sum(skipped_s()) == pytest.approx(0.01, abs=0.01)


async def test_a_wait_beyond_the_deadline_is_refused_at_once_and_takes_nothing() -> None:
    faulty, origin, version = setting(OriginLimits(bytes_per_s=100.0))
    for _ in range(50):
        with pytest.raises(DeadlineExceededError):
            await origin.read_range("f", 0, SIZE, version=version, deadline=Deadline.after(1))
    assert not skipped_s() and faulty.count("read") == 0
    await origin.read_range("f", 0, 20, version=version, deadline=Deadline.after(1))


async def test_what_the_bytes_refuse_costs_no_request() -> None:
    faulty, origin, version = setting(OriginLimits(requests_per_s=4.0, bytes_per_s=100.0))
    for _ in range(50):
        with pytest.raises(DeadlineExceededError):
            await origin.read_range("f", 0, SIZE, version=version, deadline=Deadline.after(1))
    await origin.head("f", deadline=Deadline.after(0.5))
    assert not skipped_s()
    assert faulty.asked == [("head", "f")]


async def test_a_page_is_a_request() -> None:
    _, origin, _ = setting(OriginLimits(requests_per_s=1.0))
    begun_s = monotonic_s()
    assert len([page async for page in origin.list_directory("", deadline=Deadline.never())]) == 2
    assert 1.0 <= monotonic_s() - begun_s <= 3.0


async def test_no_more_calls_at_one_time_than_allowed() -> None:
    faulty, origin, version = setting(OriginLimits(concurrency_max=3))
    faulty.fail("read", PlannedFault.HANG)
    most = 0

    async def one() -> None:
        with pytest.raises(DeadlineExceededError):
            await origin.read_range("f", 0, 9, version=version, deadline=Deadline.after(0.05))

    async def watch() -> None:
        nonlocal most
        for _ in range(2000):
            most = max(most, faulty.hanging)
            await asyncio.sleep(0)

    await asyncio.gather(watch(), *(one() for _ in range(10)))
    assert faulty.hanging == 0
    faulty.mend()
    for _ in range(7):  # each slot came back
        await origin.read_range("f", 0, 9, version=version, deadline=Deadline.after(1))
    assert most == 3


async def test_a_cancelled_call_gives_its_slot_back() -> None:
    faulty, origin, version = setting(OriginLimits(concurrency_max=1))
    faulty.fail("read", PlannedFault.HANG, numbers=0)
    calls = [
        asyncio.ensure_future(origin.read_range("f", 0, 9, version=version, deadline=Deadline.after(5)))
        for _ in range(3)
    ]
    await pass_time(0.01)
    assert faulty.hanging == 1
    calls[1].cancel()  # waits for the slot
    calls[0].cancel()  # has it
    await asyncio.wait(calls)
    assert bytes(calls[2].result().body) == b"x" * 9


async def test_a_cancelled_wait_gives_its_allowance_back() -> None:
    _, origin, version = setting(OriginLimits(bytes_per_s=1000.0))
    call = asyncio.ensure_future(
        origin.read_range("f", 0, SIZE, version=version, deadline=Deadline.after(60))
    )
    await pass_time(0.01)
    assert not call.done()
    call.cancel()
    await asyncio.wait([call])
    await origin.read_range("f", 0, 100, version=version, deadline=Deadline.after(0.2))
