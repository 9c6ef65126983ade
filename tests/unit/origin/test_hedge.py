"""A read that hears nothing is asked for again, and only a few are. Virtual time."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, OriginUnavailableError, VersionChangedError
from headrace.base.model import Arrived, Version
from headrace.origin.hedge import AT_ONCE, FACTOR, KNOWN, LEAST_S, SHARE, HedgeOrigin, SlowestReads
from headrace.origin.memory import MemoryOrigin
from headrace.origin.retry import RetryOrigin
from headrace.testing.virtual_loop import pass_time
from tests.faulty_origin import FaultyOrigin, PlannedFault

DATA = bytes(range(200))


class SlowOrigin(MemoryOrigin):
    """delays_s: of the next reads; those after them take usual_s. open: reads under way."""

    def __init__(self) -> None:
        super().__init__()
        self.delays_s: list[float] = []
        self.usual_s = 0.02
        self.asked = self.open = 0

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        self.asked += 1
        self.open += 1
        try:
            await pass_time(self.delays_s.pop(0) if self.delays_s else self.usual_s)
            return await super().read_range(key, start, end, version=version, deadline=deadline)
        finally:
            self.open -= 1


class HedgeFixture:
    def __init__(self) -> None:
        self.slow = SlowOrigin()
        self.version = self.slow.hold("f", DATA)
        self.faulty = FaultyOrigin(self.slow)
        self.hedging = HedgeOrigin(self.faulty)
        self.origin = RetryOrigin(self.hedging)

    async def read(self, start: int = 0, timeout_s: float = 60.0) -> float:
        """Return how long it took."""
        begun_s = monotonic_s()
        arrived = await self.origin.read_range(
            "f", start, len(DATA), version=self.version, deadline=Deadline.after(timeout_s)
        )
        assert bytes(arrived.body) == DATA[start:]
        assert self.slow.open == 0  # nothing is left under way
        return monotonic_s() - begun_s


async def test_a_silent_read_is_asked_for_again_and_ended() -> None:
    world = HedgeFixture()
    for _ in range(KNOWN):
        await world.read()
    assert world.hedging.reads_hedged == 0 and world.slow.asked == KNOWN
    world.slow.delays_s = [1e9]
    assert await world.read() == pytest.approx(LEAST_S + 0.02, abs=0.01)
    assert world.hedging.reads_hedged == 1 and world.slow.asked == KNOWN + 2
    world.slow.delays_s = [1e9, 1e9]
    assert await world.read() == pytest.approx(3 * LEAST_S + 0.02, abs=0.01)


async def test_the_first_read_of_all_is_not_waited_for_either() -> None:
    world = HedgeFixture()
    world.slow.delays_s = [1e9]
    assert await world.read() < LEAST_S + 1


async def test_what_is_slow_as_a_whole_is_asked_little_more() -> None:
    world, reads = HedgeFixture(), 400

    async def read() -> None:
        deadline = Deadline.after(600)
        await world.origin.read_range("f", 0, len(DATA), version=world.version, deadline=deadline)

    world.slow.usual_s = 10.0
    for _ in range(reads // 8):
        await asyncio.gather(*(read() for _ in range(8)))
    assert world.hedging.reads_hedged <= AT_ONCE
    world.slow.usual_s = 100.0  # and now it is ten times as slow
    for _ in range(reads // 8):
        await asyncio.gather(*(read() for _ in range(8)))
    assert world.slow.asked <= 2 * reads * (1 + SHARE) + AT_ONCE


async def test_the_first_good_answer_counts_and_a_good_one_that_is_late_too() -> None:
    world = HedgeFixture()
    world.slow.delays_s = [LEAST_S + 1.0, 1e9, 1e9]
    assert await world.read() == pytest.approx(LEAST_S + 1.0, abs=0.01)


async def test_a_second_try_that_fails_is_tried_again_while_the_first_is_silent() -> None:
    world = HedgeFixture()
    world.faulty.fail("read", PlannedFault.HANG, numbers=0)
    world.faulty.fail("read", PlannedFault.UNAVAILABLE, numbers=1)
    assert await world.read() < LEAST_S + 1.0
    assert world.faulty.count("read") == 3 and world.faulty.hanging == 0


async def test_an_answer_that_it_is_another_version_ends_both() -> None:
    world = HedgeFixture()
    world.faulty.fail("read", PlannedFault.HANG, numbers=0)
    world.faulty.fail("read", PlannedFault.CHANGED, numbers=1)
    with pytest.raises(VersionChangedError):
        await world.read()
    assert world.faulty.hanging == 0


async def test_an_origin_that_says_nothing_at_all_is_given_up_at_the_deadline() -> None:
    world = HedgeFixture()
    world.faulty.fail("read", PlannedFault.HANG)
    begun_s = monotonic_s()
    with pytest.raises((DeadlineExceededError, OriginUnavailableError)):
        await world.read(timeout_s=20.0)
    assert monotonic_s() - begun_s == pytest.approx(20.0, abs=0.1)
    assert world.faulty.count("read") == 3 and world.faulty.hanging == 0


async def test_a_cancel_leaves_nothing_under_way() -> None:
    world = HedgeFixture()
    world.faulty.fail("read", PlannedFault.HANG)
    read = asyncio.ensure_future(world.read())
    await pass_time(LEAST_S + 1.0)
    assert world.faulty.hanging == 2
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert world.faulty.hanging == 0


def test_what_is_slow_goes_by_what_reads_of_that_size_took() -> None:
    slowest = SlowestReads()
    for _ in range(KNOWN):
        slowest.add(1 << 20, 4.0)
        slowest.add(100, 0.01)
    assert slowest.limit_s(1 << 20) == 4.0 * FACTOR
    assert slowest.limit_s(100) == LEAST_S
    assert slowest.limit_s(8 << 20) == LEAST_S + 2.0  # nothing is known of those
