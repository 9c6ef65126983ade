"""Share one run of the work among concurrent calls with the same key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SingleFlight(Generic[Key, Result]):
    """Runs by key, on one asyncio loop. A cancelled caller stops waiting; the run continues for the others."""

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Result]] = {}
        self._tasks = OwnedTasks(HeadraceError)

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        return await asyncio.shield(self.begin(key, work))

    def begin(self, key: Key, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        """Return the run of a key, for callers that wait for many. They must not cancel it."""
        task = self._running.get(key)
        if task is None or task.done():  # one that was cancelled before its first step stays
            task = self._running[key] = self._tasks.start(self._finish(key, work))
        return task

    def is_running(self, key: Key) -> bool:
        task = self._running.get(key)
        return task is not None and not task.done()

    async def run_anew(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run the work after this call: a run that began before is awaited first, and its result is not used."""
        earlier = self._running.get(key)
        if earlier is not None:
            await asyncio.wait([earlier])
        return await self.run(key, work)

    async def stop(self) -> None:
        """Cancel every run."""
        await self._tasks.close()

    async def _finish(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        finally:
            del self._running[key]
