"""Combine fetches of small files: one request to a peer instead of hundreds. Everything runs on the event loop.

While few requests to the peer are in flight, a call starts a request at once, together with the other calls of the same
turn of the loop. Further calls wait in a queue until one of those requests ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError
from headrace.base.model import Arrived
from headrace.base.tasks import OwnedTasks
from headrace.peer.calls import Fetched
from headrace.wire.peer_messages import FILES_MAX, FileRange

IN_FLIGHT_MAX = 4
"""Requests in flight at once. With several, a file that takes long at its origin does not delay the files
behind it."""
BATCH_BYTES_MAX = 16 << 20


class Waiting:
    """Represents one call of `fetch_small` that waits for its file."""

    __slots__ = ("deadline", "epoch", "fetched", "file")

    def __init__(self, file: FileRange, epoch: int, *, deadline: Deadline) -> None:
        self.file = file
        self.epoch = epoch
        self.deadline = deadline
        self.fetched: asyncio.Future[Arrived] = asyncio.get_running_loop().create_future()

    def resolve(self, outcome: Fetched) -> None:
        if self.fetched.done():
            return
        if isinstance(outcome, HeadraceError):
            self.fetched.set_exception(outcome)
        else:
            self.fetched.set_result(outcome)


class Batcher:
    """Groups calls to one peer into requests. send: sends one request. It resolves each call as its file arrives,
    and raises nothing unless it is cancelled."""

    def __init__(self, send: Callable[[list[Waiting]], Awaitable[None]]) -> None:
        self._send = send
        self._queue: deque[Waiting] = deque()
        self._in_flight: dict[asyncio.Task[None], list[Waiting]] = {}
        self._tasks = OwnedTasks()
        self._starting = False

    async def ask(self, waiting: Waiting) -> Arrived:
        """Return the file's bytes. Raise PeerError when the deadline has passed. A cancelled call leaves its batch."""
        self._queue.append(waiting)
        self._start_soon()
        limit = asyncio.timeout(waiting.deadline.timeout_s())
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
        if not self._starting and self._queue and len(self._in_flight) < IN_FLIGHT_MAX:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        while self._queue and len(self._in_flight) < IN_FLIGHT_MAX:
            batch = self._take()
            if batch:
                task = self._tasks.start(self._send(batch))
                self._in_flight[task] = batch
                task.add_done_callback(self._on_end)

    def _take(self) -> list[Waiting]:
        batch: list[Waiting] = []
        size_bytes = 0
        while self._queue and len(batch) < FILES_MAX:
            waiting = self._queue[0]
            length = waiting.file.end - waiting.file.start
            if batch and size_bytes + length > BATCH_BYTES_MAX:
                break
            self._queue.popleft()
            if not waiting.fetched.done():
                batch.append(waiting)
                size_bytes += length
        return batch

    def _on_end(self, task: asyncio.Task[None]) -> None:
        batch = self._in_flight.pop(task)
        error = None if task.cancelled() else task.exception()
        for waiting in batch:
            waiting.resolve(
                PeerError("small file", why=repr(error) if error else "the request was cancelled")
            )
        self._start_soon()

    def _leave(self, waiting: Waiting) -> None:
        """Withdraw a call; cancel its request when no other call waits for it."""
        waiting.fetched.cancel()
        if not waiting.fetched.cancelled():
            return
        for task, batch in list(self._in_flight.items()):
            if waiting in batch and all(other.fetched.done() for other in batch):
                task.cancel()
