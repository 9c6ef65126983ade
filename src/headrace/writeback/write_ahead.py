"""Before an origin hears of a change, this node's disk has it: what the change is, and what it was made from.

So no power loss makes the layer older than the origin, and whatever of ours the origin has is in the table: nothing of
our own is ever taken for somebody else's. One flush serves all who wait for it. On the node's loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor

from headrace.base.errors import StoreError

SOON_S = 1.0


class WriteAhead:
    """sync: makes durable what was noted and changed before it was called; runs in `threads`. OSError."""

    def __init__(self, sync: Callable[[], None], threads: Executor) -> None:
        self._sync = sync
        self._threads = threads
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def flush(self) -> None:
        """Makes durable what was noted in the table, and all changes of names and attributes of the layer, before this
        call. StoreError: the disk failed, and nothing may be done at the origin."""
        await asyncio.shield(self._begin())

    def flush_soon(self) -> None:
        """The same within SOON_S, and nobody waits for it: what an origin has done is noted."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._in_time)

    async def stop(self) -> None:
        """Waits for the flushes that were asked for."""
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._running, self._next):
            if task is not None:
                await asyncio.wait({task})

    def _in_time(self) -> None:
        self._timer = None
        self._begin().add_done_callback(_let_pass)

    def _begin(self) -> asyncio.Task[None]:
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
        return self._next

    async def _after(self, running: asyncio.Task[None] | None) -> None:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._next = self._next, None  # who comes from here on waits for another one
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._sync)
        except OSError as error:
            raise StoreError("journal of the upper layer", why=os.strerror(error.errno or 0)) from error


def _let_pass(flush: asyncio.Task[None]) -> None:
    """A disk that fails says so to the next one who waits for it."""
    if not flush.cancelled():
        flush.exception()
