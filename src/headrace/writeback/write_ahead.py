"""Flush this node's disk before an origin changes: the journal of the change, and the files that it is made from.

No power loss then makes the layer older than the origin. The journal knows all of this node's objects at the origin, so
none looks like another writer's. One flush serves all callers that wait for it. Calls are on the node's loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.base.errors import StoreError
from headrace.base.tasks import OwnedTasks

FLUSH_DELAY_S = 1.0
"""Most seconds before `flush_soon` flushes."""


class WriteAhead:
    """Flush the disk. sync: makes durable everything recorded and changed before the call; runs in `threads`, raises
    OSError."""

    def __init__(self, sync: Callable[[], None], threads: Executor) -> None:
        self._sync = sync
        self._threads = threads
        self._tasks = OwnedTasks(StoreError)
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def flush(self) -> None:
        """Make durable all rows of the journal, and all changes of names and attributes in the layer, from before this
        call. Raises StoreError if the disk failed; nothing may change at the origin then."""
        await asyncio.shield(self._begin())

    def flush_soon(self) -> None:
        """Flush within FLUSH_DELAY_S, without waiting, to record what an origin has done."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_DELAY_S, self._on_timer)

    async def stop(self) -> None:
        """Wait for the flushes that were requested."""
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.wait()

    def _on_timer(self) -> None:
        self._timer = None
        self._begin()  # a failure is raised by the next `flush`

    def _begin(self) -> asyncio.Task[None]:
        """Return the next flush. It begins when the running one has ended."""
        if self._next is None:
            self._next = self._tasks.start(self._flush_after(self._running))
        return self._next

    async def _flush_after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._next = self._next, None  # later callers wait for another flush
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._sync)
        except OSError as error:
            raise StoreError("journal of the upper layer", why=os.strerror(error.errno or 0)) from error
