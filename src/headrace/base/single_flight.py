"""Share one run of the work among concurrent calls with the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SingleFlight(Generic[Key, Result]):
    """Runs by key, on one asyncio loop. A cancelled caller stops waiting; the run continues for the others."""

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        return await asyncio.shield(self.begin(key, work))

    def begin(self, key: Key, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        """Return the run of a key, for callers that wait for many. They must not cancel it."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(self._finish(key, work))
            self._running[key] = task
        return task

    async def run_anew(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run the work after this call: a run that began before is awaited first, and its result is not used."""
        earlier = self._running.get(key)
        if earlier is not None:
            await asyncio.wait([earlier])
        return await self.run(key, work)

    async def stop(self) -> None:
        """Cancel every run."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        finally:
            del self._running[key]
