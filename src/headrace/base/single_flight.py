"""Many ask, one works: concurrent calls with one key share one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class SingleFlight(Generic[Key, Result]):
    """One asyncio loop. A caller that is cancelled leaves; the run goes on for the others, to its end."""

    def __init__(self) -> None:
        self._running: dict[Key, asyncio.Task[Result]] = {}

    async def run(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        return await asyncio.shield(self.begin(key, work))

    def begin(self, key: Key, work: Callable[[], Awaitable[Result]]) -> asyncio.Task[Result]:
        """The run, for who waits for many: it is not to be cancelled by them."""
        task = self._running.get(key)
        if task is None:
            task = asyncio.ensure_future(self._finish(key, work))
            self._running[key] = task
        return task

    async def run_anew(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        """As run, but by a run that began after this call: what went on before is waited for, and not enough."""
        before = self._running.get(key)
        if before is not None:
            await asyncio.wait([before])
        return await self.run(key, work)

    async def stop(self) -> None:
        """Cancels every run."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, key: Key, work: Callable[[], Awaitable[Result]]) -> Result:
        try:
            return await work()
        finally:
            del self._running[key]
