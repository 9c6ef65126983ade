"""What arrives within a moment is worked on together: one transaction, one turn of a thread, for many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """work: gives what comes of each item, in their order; an exception is raised to the one who gave the item, and one
    that work itself raises, to all. most: items at one time. delay_s: how long the first waits for others. unclaimed:
    told of a result for which nobody waits any more."""

    def __init__(
        self,
        work: Callable[[list[Item]], Awaitable[list[Result | Exception]]],
        *,
        most: int,
        delay_s: float = 0.0,
        unclaimed: Callable[[Result], None] | None = None,
    ) -> None:
        self._work = work
        self._most = most
        self._delay_s = delay_s
        self._unclaimed = unclaimed
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._working: set[asyncio.Task[None]] = set()

    async def one(self, item: Item, *, soon: bool = False, alone: bool = False) -> Result:
        """soon: with those that wait, and come in this turn of the loop. alone: with no others."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        if alone:
            self._begin([(item, result)])
            return await result
        self._waiting.append((item, result))
        if len(self._waiting) == self._most:
            self._begin_all()
        elif soon:
            loop.call_soon(self._begin_all)
        elif len(self._waiting) == 1:
            loop.call_later(self._delay_s, self._begin_all)
        return await result

    async def stop(self) -> None:
        """What waits is given up; what is worked on is done on return."""
        for _, result in self._waiting:
            result.cancel()
        self._waiting.clear()
        await asyncio.gather(*self._working)

    def _begin_all(self) -> None:
        taken, self._waiting = self._waiting, []
        if taken:
            self._begin(taken)

    def _begin(self, taken: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        task = asyncio.ensure_future(self._do(taken))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _do(self, taken: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._work([item for item, _ in taken])
        except Exception as error:  # noqa: BLE001 - handed to those who wait
            results = [error] * len(taken)
        for (_, waits), result in zip(taken, results, strict=True):
            if isinstance(result, Exception):
                if not waits.done():
                    waits.set_exception(result)
            elif not waits.done():
                waits.set_result(result)
            elif self._unclaimed is not None:
                self._unclaimed(result)
