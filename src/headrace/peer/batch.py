"""Small files that many wait for go together: one request to a peer instead of hundreds. On the loop only.

A call that comes while few requests are under way goes at once, with all that came in the same turn of the loop;
others gather until one of those is through.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError
from headrace.base.model import Arrived
from headrace.peer.calls import Fetched
from headrace.wire.peer_messages import FILES_MAX, FileRange

UNDER_WAY_MAX = 4
"""Requests at once: a file that takes long (an origin) then doesn't hold up those behind it."""
BATCH_BYTES_MAX = 16 << 20


class Waiting:
    """One call."""

    __slots__ = ("deadline", "epoch", "fetched", "wanted")

    def __init__(self, wanted: FileRange, epoch: int, *, deadline: Deadline) -> None:
        self.wanted = wanted
        self.epoch = epoch
        self.deadline = deadline
        self.fetched: asyncio.Future[Arrived] = asyncio.get_running_loop().create_future()

    def resolve(self, found: Fetched) -> None:
        if self.fetched.done():
            return
        if isinstance(found, HeadraceError):
            self.fetched.set_exception(found)
        else:
            self.fetched.set_result(found)


class Batcher:
    """send: one request; resolves those it is given, as their files come, and raises nothing but on cancel."""

    def __init__(self, send: Callable[[list[Waiting]], Awaitable[None]]) -> None:
        self._send = send
        self._queue: deque[Waiting] = deque()
        self._under_way: dict[asyncio.Task[None], list[Waiting]] = {}
        self._starting = False

    async def ask(self, waiting: Waiting) -> Arrived:
        """The file's bytes. PeerError when the deadline passed; a cancelled call leaves its batch."""
        self._queue.append(waiting)
        self._start_soon()
        left_s = waiting.deadline.left_s()
        limit = asyncio.timeout(None if left_s == float("inf") else left_s)
        try:
            async with limit:
                return await waiting.fetched
        except TimeoutError:
            if not limit.expired():
                raise
            raise PeerError("small file", why="no answer within the time allowed") from None
        finally:
            self._leave(waiting)

    def _start_soon(self) -> None:
        if not self._starting and self._queue and len(self._under_way) < UNDER_WAY_MAX:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        while self._queue and len(self._under_way) < UNDER_WAY_MAX:
            batch = self._take()
            if batch:
                task = asyncio.ensure_future(self._run(batch))
                self._under_way[task] = batch
                task.add_done_callback(self._ended)

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size_bytes = 0
        while self._queue and len(batch) < FILES_MAX:
            one = self._queue[0]
            length = one.wanted.end - one.wanted.start
            if batch and size_bytes + length > BATCH_BYTES_MAX:
                break
            self._queue.popleft()
            if not one.fetched.done():
                batch.append(one)
                size_bytes += length
        return batch

    async def _run(self, batch: list[Waiting]) -> None:
        await self._send(batch)

    def _ended(self, task: asyncio.Task[None]) -> None:
        batch = self._under_way.pop(task)
        failed = None if task.cancelled() else task.exception()
        for one in batch:
            one.resolve(PeerError("small file", why=repr(failed) if failed else "the request was ended"))
        self._start_soon()

    def _leave(self, waiting: Waiting) -> None:
        """When nobody waits for a request any more, it ends."""
        waiting.fetched.cancel()
        if not waiting.fetched.cancelled():
            return
        for task, batch in list(self._under_way.items()):
            if waiting in batch and all(one.fetched.done() for one in batch):
                task.cancel()
