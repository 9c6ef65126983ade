"""The semaphore says whose turn it is."""

from __future__ import annotations

import asyncio

from headrace.jobs.priority_semaphore import PrioritySemaphore


async def test_a_higher_priority_goes_first_and_else_who_came_first() -> None:
    turns, order = PrioritySemaphore(1), list[str]()

    async def one(name: str, priority: int) -> None:
        async with turns.acquire(priority):
            order.append(name)

    async with asyncio.TaskGroup() as group:
        async with turns.acquire(1):
            for name, priority in (("low", 2), ("a", 1), ("b", 1), ("high", 0)):
                group.create_task(one(name, priority))
            await asyncio.sleep(0)
            assert order == []
    assert order == ["high", "a", "b", "low"]


async def test_a_cancelled_wait_takes_no_place() -> None:
    turns = PrioritySemaphore(1)

    async def one() -> None:
        async with turns.acquire(1):
            pass

    async with turns.acquire(1):
        waiting = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.gather(waiting[0], return_exceptions=True)
    waiting[1].cancel()  # just when it has its turn
    await asyncio.gather(*waiting, return_exceptions=True)
    assert waiting[2].done() and not waiting[2].cancelled()
    async with asyncio.timeout(60), turns.acquire(1):
        pass
