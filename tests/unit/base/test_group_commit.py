"""Requests that arrive within a moment are worked on together, and each gets its own result."""

from __future__ import annotations

import asyncio

import pytest

from headrace.base.group_commit import GroupCommit
from headrace.testing.virtual_loop import pass_time

pytestmark = pytest.mark.timeout(60)


class Doubled:
    """Doubles numbers; odd ones fail, and 13 fails all of its batch."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()

    async def work(self, items: list[int]) -> list[int | Exception]:
        self.batches.append(items)
        await self.go.wait()
        if 13 in items:
            raise ValueError("13")
        return [2 * item if item % 2 == 0 else KeyError(item) for item in items]


async def test_those_of_a_moment_are_one_batch() -> None:
    doubled = Doubled()
    batches = GroupCommit(doubled.work, most=8)
    assert await asyncio.gather(*(batches.submit(item) for item in (2, 4, 6))) == [4, 8, 12]
    assert await batches.submit(8) == 16
    assert doubled.batches == [[2, 4, 6], [8]]


async def test_no_batch_is_larger_than_allowed() -> None:
    doubled = Doubled()
    batches = GroupCommit(doubled.work, most=2, delay_s=0.01)
    assert await asyncio.gather(*(batches.submit(item) for item in (2, 4, 6, 8, 10))) == [
        4,
        8,
        12,
        16,
        20,
    ]
    assert doubled.batches == [[2, 4], [6, 8], [10]]


async def test_one_alone_waits_for_nobody() -> None:
    doubled = Doubled()
    batches = GroupCommit(doubled.work, most=8, delay_s=0.01)
    later = asyncio.ensure_future(batches.submit(2))
    await asyncio.sleep(0)
    assert await batches.submit(4, alone=True) == 8
    assert not later.done() and await later == 4
    assert doubled.batches == [[4], [2]]


async def test_each_fails_for_itself() -> None:
    batches = GroupCommit(Doubled().work, most=8)
    results = await asyncio.gather(*(batches.submit(item) for item in (2, 3)), return_exceptions=True)
    assert results[0] == 4
    assert isinstance(results[1], KeyError)


async def test_what_fails_as_a_whole_fails_for_all() -> None:
    batches = GroupCommit(Doubled().work, most=8)
    results = await asyncio.gather(*(batches.submit(item) for item in (2, 13)), return_exceptions=True)
    assert [type(error) for error in results] == [ValueError, ValueError]


async def test_the_result_of_one_who_left_is_given_back() -> None:
    doubled, unclaimed = Doubled(), list[int]()
    doubled.go.clear()
    batches = GroupCommit(doubled.work, most=8, unclaimed=unclaimed.append)
    left, stays = asyncio.ensure_future(batches.submit(2)), asyncio.ensure_future(batches.submit(4))
    await pass_time(0.01)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    doubled.go.set()
    assert await stays == 8
    assert unclaimed == [4]


async def test_the_result_of_one_who_is_cancelled_as_it_comes_is_given_back() -> None:
    """The caller has its result, and does not run again before it is cancelled."""
    unclaimed = list[int]()

    async def work(items: list[int]) -> list[int | Exception]:
        asyncio.get_running_loop().call_soon(caller.cancel)
        return [2 * item for item in items]

    batches = GroupCommit(work, most=8, unclaimed=unclaimed.append)
    caller = asyncio.ensure_future(batches.submit(2))
    with pytest.raises(asyncio.CancelledError):
        await caller
    await batches.stop()
    assert unclaimed == [4]


async def test_who_wants_it_soon_takes_those_along_that_wait() -> None:
    doubled = Doubled()
    batches = GroupCommit(doubled.work, most=8, delay_s=60)
    waits = asyncio.ensure_future(batches.submit(2))
    await asyncio.sleep(0)
    assert await batches.submit(4, soon=True) == 8
    assert await waits == 4
    assert doubled.batches == [[2, 4]]


async def test_a_stop_gives_up_what_waits_and_ends_what_is_worked_on() -> None:
    doubled = Doubled()
    doubled.go.clear()
    batches = GroupCommit(doubled.work, most=8, delay_s=60)
    worked_on = asyncio.ensure_future(batches.submit(2, soon=True))
    await pass_time(0.01)
    waits = asyncio.ensure_future(batches.submit(4))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.01, doubled.go.set)
    await batches.stop()
    assert await worked_on == 4
    with pytest.raises(asyncio.CancelledError):
        await waits
    assert doubled.batches == [[2]]


async def test_a_batch_that_a_library_cancels_ends_the_wait_of_its_callers() -> None:
    """A pool of threads that shuts down cancels the call that the work waits for."""

    async def work(items: list[int]) -> list[int | Exception]:
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call.cancel()
        await call
        return [*items]

    batches = GroupCommit(work, most=8)
    callers = [asyncio.ensure_future(batches.submit(item)) for item in (2, 4)]
    _, waiting = await asyncio.wait(callers, timeout=60)
    assert not waiting and all(caller.cancelled() for caller in callers)
