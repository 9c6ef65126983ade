"""Do the work of a job on many files at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

WORKERS = 64
"""Tasks that work at a time."""
QUEUE_MAX = 4096
"""Most items that wait for a task."""

Item = TypeVar("Item")


async def run_workers(items: AsyncIterator[Item], work: Callable[[Item], Awaitable[None]]) -> None:
    """Call `work` for every item. Workers start with the first ones, while the iterator continues. An error of the
    iterator or of `work` ends all of them, in an ExceptionGroup."""
    queue: asyncio.Queue[Item | None] = asyncio.Queue(QUEUE_MAX)
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(_work(queue, work))
        async for item in items:
            await queue.put(item)
        for _ in range(WORKERS):
            await queue.put(None)


async def _work(queue: asyncio.Queue[Item | None], work: Callable[[Item], Awaitable[None]]) -> None:
    while (item := await queue.get()) is not None:
        await work(item)
