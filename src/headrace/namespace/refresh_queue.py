"""Queue the directories in which other nodes changed names. Each is refreshed soon, one refresh at a time, and again
if a change arrives meanwhile."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.base.errors import HeadraceError
from headrace.base.tasks import OwnedTasks

log = logging.getLogger(__name__)

BELOW_PAUSE_S = 0.5
"""Seconds between two scans for all directories below a path."""


class RefreshQueue:
    """Refresh directories in background tasks. `refresh` makes the index right for one directory. `below` yields the
    directories of the index at and below a path, and lets other tasks run in between."""

    def __init__(
        self, refresh: Callable[[bytes], Awaitable[None]], below: Callable[[bytes], AsyncIterator[bytes]]
    ) -> None:
        self._refresh = refresh
        self._below = below
        self._again: dict[bytes, bool] = {}
        """Directories that are being refreshed; whether a change arrived since the refresh began."""
        self._tops: set[bytes] = set()
        self._scan: asyncio.Task[None] | None = None
        self._tasks = OwnedTasks()

    def schedule(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - the signature of `on_changed`
        """Refresh a directory, or everything below it, because another node changed names there."""
        if below:
            self._tops.add(path)
            if self._scan is None or self._scan.done():
                self._scan = self._tasks.start(self._scan_below())
        else:
            self._add(path)

    def _add(self, directory_path: bytes) -> None:
        if directory_path in self._again:
            self._again[directory_path] = True
            return
        self._again[directory_path] = False
        self._tasks.start(self._refresh_until_quiet(directory_path))

    @property
    def busy(self) -> bool:
        return bool(self._tasks)

    async def stop(self) -> None:
        await self._tasks.close()

    async def _refresh_until_quiet(self, directory_path: bytes) -> None:
        try:
            while True:
                try:
                    await self._refresh(directory_path)
                except HeadraceError as error:
                    path = os.fsdecode(directory_path)
                    log.info("refresh of pending names failed path=%s error=%s", path, error)
                if not self._again[directory_path]:
                    return
                self._again[directory_path] = False
        finally:
            del self._again[directory_path]

    async def _scan_below(self) -> None:
        while self._tops:
            tops, self._tops = self._tops, set()
            for top in tops:
                async for directory_path in self._below(top):
                    self._add(directory_path)
            await asyncio.sleep(BELOW_PAUSE_S)
