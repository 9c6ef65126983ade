from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    OriginDeniedError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import Version
from headrace.origin.memory import MemoryOrigin
from headrace.origin.origin import Origin
from headrace.origin.retry import ATTEMPTS_MAX, DELAY_FIRST_S, DELAY_MAX_S, RetryOrigin
from headrace.testing.faulty import Fault, FaultyOrigin
from tests.unit.origin.clock import FakeClock

DATA = b"0123456789"


class Setting:
    def __init__(self, **options: int | float | bool) -> None:
        memory = MemoryOrigin()
        self.version = memory.hold("f", DATA)
        self.faulty = FaultyOrigin(memory)
        self.origin = RetryOrigin(self.faulty, **options)  # type: ignore[arg-type]


async def _head(origin: Origin, version: Version, deadline: Deadline) -> None:
    await origin.head("f", deadline=deadline)


async def _read(origin: Origin, version: Version, deadline: Deadline) -> None:
    arrived = await origin.read_range("f", 2, 5, version=version, deadline=deadline)
    assert bytes(arrived.body) == DATA[2:5]


async def _list(origin: Origin, version: Version, deadline: Deadline) -> None:
    keys = [one.key async for page in origin.list_directory("", deadline=deadline) for one in page.objects]
    assert keys == ["f"]


CALLS: dict[str, Callable[[Origin, Version, Deadline], Coroutine[None, None, None]]] = {
    "head": _head,
    "read": _read,
    "list": _list,
}


@pytest.mark.parametrize("call", list(CALLS))
def test_what_mends_in_time_comes(clock: FakeClock, call: str) -> None:
    setting = Setting()
    setting.faulty.fail(call, Fault.UNAVAILABLE, at=range(ATTEMPTS_MAX - 1))
    asyncio.run(CALLS[call](setting.origin, setting.version, Deadline.never()))
    assert setting.faulty.count(call) == ATTEMPTS_MAX
    assert len(clock.slept) == ATTEMPTS_MAX - 1


@pytest.mark.parametrize("call", list(CALLS))
def test_attempts_are_counted(clock: FakeClock, call: str) -> None:
    setting = Setting(attempts_max=3)
    setting.faulty.fail(call, Fault.UNAVAILABLE)
    with pytest.raises(OriginUnavailableError):
        asyncio.run(CALLS[call](setting.origin, setting.version, Deadline.never()))
    assert setting.faulty.count(call) == 3


@pytest.mark.parametrize("call", list(CALLS))
@pytest.mark.parametrize(
    "error",
    [
        PathNotFoundError("f"),
        OriginDeniedError("f"),
        VersionChangedError("f"),
        DeadlineExceededError("f"),
        HeadraceError("f"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_will_not_mend_is_raised_at_once(clock: FakeClock, call: str, error: HeadraceError) -> None:
    setting = Setting()
    setting.faulty.fail(call, error)
    with pytest.raises(type(error)):
        asyncio.run(CALLS[call](setting.origin, setting.version, Deadline.never()))
    assert setting.faulty.count(call) == 1
    assert not clock.slept


def test_delays_grow_with_full_jitter_up_to_a_limit(clock: FakeClock) -> None:
    attempts = 12
    longest = [min(DELAY_MAX_S, DELAY_FIRST_S * 2**n) for n in range(attempts - 1)]
    seen: list[list[float]] = []
    for _ in range(60):
        setting = Setting(attempts_max=attempts)
        setting.faulty.fail("head", Fault.UNAVAILABLE)
        clock.slept.clear()
        with pytest.raises(OriginUnavailableError):
            asyncio.run(_head(setting.origin, setting.version, Deadline.never()))
        assert all(0 <= delay <= limit for delay, limit in zip(clock.slept, longest, strict=True))
        seen.append(list(clock.slept))
    for delays, limit in zip(zip(*seen, strict=True), longest, strict=True):
        # Sixty draws all in one half of the range: 1 in 10^18.
        assert min(delays) < limit / 2 < max(delays)


def test_no_wait_goes_beyond_the_deadline(clock: FakeClock) -> None:
    for within_s in (0.01, 0.1, 0.5, 2.0):
        setting = Setting(attempts_max=1000)
        setting.faulty.fail("head", Fault.UNAVAILABLE)
        deadline = Deadline.after(within_s)
        with pytest.raises(OriginUnavailableError):
            asyncio.run(_head(setting.origin, setting.version, deadline))
        assert clock.now_s <= deadline.at_s


def test_a_listing_that_was_begun_is_not_begun_again(clock: FakeClock) -> None:
    setting = Setting()
    setting.faulty.fail("list", Fault.HALF)
    with pytest.raises(OriginUnavailableError):
        asyncio.run(_list(setting.origin, setting.version, Deadline.never()))
    assert setting.faulty.count("list") == 1


def test_listings_may_be_left_to_the_kind(clock: FakeClock) -> None:
    setting = Setting(listings=False)
    setting.faulty.fail("list", Fault.UNAVAILABLE)
    with pytest.raises(OriginUnavailableError):
        asyncio.run(_list(setting.origin, setting.version, Deadline.never()))
    assert setting.faulty.count("list") == 1


def test_a_call_that_hangs_ends_with_the_deadline_and_is_not_repeated() -> None:
    setting = Setting()
    setting.faulty.fail("read", Fault.HANG)
    with pytest.raises(DeadlineExceededError):
        asyncio.run(_read(setting.origin, setting.version, Deadline.after(0.05)))
    assert setting.faulty.count("read") == 1
    assert setting.faulty.hanging == 0


def test_a_cancel_ends_the_wait() -> None:
    setting = Setting(delay_first_s=1000.0)
    setting.faulty.fail("head", Fault.UNAVAILABLE)

    async def body() -> None:
        task = asyncio.ensure_future(setting.origin.head("f", deadline=Deadline.never()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    assert setting.faulty.count("head") == 1
