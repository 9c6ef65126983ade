"""Folders in which other nodes wrote something: each is looked at soon, one at a time, and again when it is told of
meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.base.errors import HeadraceError

log = logging.getLogger(__name__)

BELOW_PAUSE_S = 0.5
"""Between two looks for all folders below one."""


class RefreshQueue:
    """see: makes the index right for a folder. below: the folders of the index at and below one; gives others their
    turn."""

    def __init__(
        self, see: Callable[[bytes], Awaitable[None]], below: Callable[[bytes], AsyncIterator[bytes]]
    ) -> None:
        self._see = see
        self._below = below
        self._again: dict[bytes, bool] = {}
        """Folders that are looked at; whether they were told of since."""
        self._tops: set[bytes] = set()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, folder: bytes) -> None:
        if folder in self._again:
            self._again[folder] = True
            return
        self._again[folder] = False
        self._spawn(self._see_until_quiet(folder))

    def add_below(self, top: bytes) -> None:
        self._tops.add(top)
        if self._looking is None or self._looking.done():
            self._looking = self._spawn(self._look_below())

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _see_until_quiet(self, folder: bytes) -> None:
        try:
            await self._see(folder)
            while self._again[folder]:
                self._again[folder] = False
                await self._see(folder)
        except HeadraceError as error:
            log.info("what others wrote is not seen path=%s error=%s", os.fsdecode(folder), error)
        finally:
            del self._again[folder]

    async def _look_below(self) -> None:
        while self._tops:
            tops, self._tops = self._tops, set()
            for top in tops:
                async for folder in self._below(top):
                    self.add(folder)
            await asyncio.sleep(BELOW_PAUSE_S)

    def _spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("what others wrote is not seen", exc_info=task.exception())
