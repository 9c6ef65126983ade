"""Read the part of a node's status that is on the disk, for its seals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.jobs.seal import unread_status

WITHIN_S = 3.0


class SealsStatus:
    """The status of the seals, by `read` in a thread of `disk`. A disk that hangs delays no status for longer than
    `within_s`, and holds one thread, however often the status is asked for: reads need the others."""

    def __init__(
        self, read: Callable[[], dict[str, object]], disk: Executor, *, within_s: float = WITHIN_S
    ) -> None:
        self._read = read
        self._disk = disk
        self._within_s = within_s
        self._work: asyncio.Future[dict[str, object]] | None = None

    async def get(self) -> dict[str, object]:
        """Return the fields. `seals_unread` says that the disk does not answer."""
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().run_in_executor(self._disk, self._read)
        work = self._work
        await asyncio.wait([work], timeout=self._within_s)
        return (
            work.result()
            if work.done()
            else unread_status("the disk of the first cache volume does not answer")
        )
