"""Batch items that arrive within a moment: many share one transaction, or one job of a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from headrace.base.tasks import OwnedTasks

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupCommit(Generic[Item, Result]):
    """The batches of one kind of work. work: returns the result of each item, in their order. It may return an
    exception for an item, which the item's caller gets; an exception that it raises goes to all callers. most: items of
    one batch. delay_s: seconds that the first item waits for others. unclaimed: called with a result for which nobody
    waits any more."""

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
        self._tasks = OwnedTasks()

    async def submit(self, item: Item, *, soon: bool = False, alone: bool = False) -> Result:
        """Add an item to a batch and return its result. soon: in a batch with the waiting items and those of this turn
        of the loop. alone: in a batch of its own."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()
        if alone:
            self._begin([(item, result)])
            return await self._claim(result)
        self._waiting.append((item, result))
        if len(self._waiting) == self._most:
            self._begin_all()
        elif soon:
            loop.call_soon(self._begin_all)
        elif len(self._waiting) == 1:
            loop.call_later(self._delay_s, self._begin_all)
        return await self._claim(result)

    async def _claim(self, result: asyncio.Future[Result]) -> Result:
        """Wait for a result. The caller may be cancelled after the result is set and before it runs again."""
        try:
            return await result
        except asyncio.CancelledError:
            has_result = result.done() and not result.cancelled() and result.exception() is None
            if has_result and self._unclaimed is not None:
                self._unclaimed(result.result())
            raise

    async def stop(self) -> None:
        """Cancel waiting items, and wait for the batches that are being worked on."""
        for _, result in self._waiting:
            result.cancel()
        self._waiting.clear()
        await self._tasks.wait()

    def _begin_all(self) -> None:
        batch, self._waiting = self._waiting, []
        if batch:
            self._begin(batch)

    def _begin(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        self._tasks.start(self._do(batch))

    async def _do(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        try:
            results = await self._work([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - raised in all waiting callers
            results = [error] * len(batch)
        except asyncio.CancelledError:  # by the library that the work called; nobody else ends the waits
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                if not future.done():
                    future.set_exception(result)
            elif not future.done():
                future.set_result(result)
            elif self._unclaimed is not None:
                self._unclaimed(result)
