"""Open each file once for all who want it at the same time, as fast as the most urgent of them needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from headrace.base.model import FileId
from headrace.base.promotion import Promotion
from headrace.base.single_flight import SingleFlight
from headrace.dataplane.intent import ReadIntent


class SharedOpens:
    """Runs of `open_file` by file, on one loop. A small file is fetched by its run: if a load began it, a reader that
    joins it promotes its read."""

    def __init__(self, open_file: Callable[[FileId, ReadIntent], Awaitable[bool]]) -> None:
        self._open_file = open_file
        self._runs: SingleFlight[FileId, bool] = SingleFlight()
        self._promotions: dict[FileId, Promotion] = {}
        """Promotions of the runs that background reads began."""

    async def run(self, id: FileId, intent: ReadIntent) -> bool:
        """Wait for the run of a file. A cancelled caller stops waiting; the run continues for the others."""
        return await asyncio.shield(self.begin(id, intent))

    def begin(self, id: FileId, intent: ReadIntent) -> asyncio.Task[bool]:
        """Return the run of a file, for callers that wait for many. They must not cancel it."""
        if not self._runs.is_running(id) and intent.background:
            self._promotions[id] = promotion = Promotion()
            intent = replace(intent, promotion=promotion)
        elif not intent.background and id in self._promotions:
            self._promotions[id].promote()
        return self._runs.begin(id, partial(self._run, id, intent))

    async def stop(self) -> None:
        """Cancel every run."""
        await self._runs.stop()

    async def _run(self, id: FileId, intent: ReadIntent) -> bool:
        try:
            return await self._open_file(id, intent)
        finally:
            self._promotions.pop(id, None)
