"""Tasks that belong together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable


async def all_of(works: Iterable[Awaitable[object]]) -> None:
    """Run all at once. The first failure ends the others, and is raised when they have ended."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
