"""The door for the host's own clients: a unix socket, one request at a time a connection.

A client that closes its connection while a request is under way cancels the request. Errors go back as Failure;
what is no HeadraceError is logged with its trace and goes back as `internal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.base.errors import HeadraceError, NodeUnavailableError, ProtocolError
from headrace.wire import frame
from headrace.wire.messages import (
    PROTOCOL,
    Answer,
    Done,
    Evicted,
    Failure,
    Forgot,
    Hello,
    JobStart,
    Message,
    OpenMany,
    Request,
    Subscribe,
    Welcome,
)

log = logging.getLogger(__name__)

EVENTS_WAITING_MAX = 10_000
FORGET_LIMIT_S = 5.0

Answerer = Callable[[Request], Awaitable[Answer]]
Streamer = Callable[[JobStart | OpenMany], AsyncIterator[Answer]]


class Subscribers:
    """Sessions that follow what the node changes. One that doesn't read its events is cut off, and comes back."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Answer | None]] = set()
        self._receipts: dict[int, tuple[asyncio.Queue[Answer | None], asyncio.Future[None]]] = {}
        self._receipt = 0

    def publish(self, event: Answer) -> None:
        for queue in list(self._queues):
            self._put(queue, event)

    def _put(self, queue: asyncio.Queue[Answer | None], event: Answer) -> None:
        if queue.qsize() >= EVENTS_WAITING_MAX:
            log.warning("a session does not read its events, cut off")
            self._leave(queue)
            queue.put_nowait(None)
        else:
            queue.put_nowait(event)

    async def drop_damaged(self, ids: list[int]) -> None:
        """Every session that follows has forgotten the bytes of these files on return, or was cut off, as one that
        does not answer in time is."""
        waiting: dict[int, asyncio.Future[None]] = {}
        for queue in list(self._queues):
            self._receipt += 1
            waiting[self._receipt] = future = asyncio.get_running_loop().create_future()
            self._receipts[self._receipt] = queue, future
            self._put(queue, Evicted(ids=ids, damaged=True, receipt=self._receipt))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=FORGET_LIMIT_S)
        for receipt in waiting:
            queue, future = self._receipts.pop(receipt)
            if not future.done():
                log.warning("a session does not answer, cut off")
                self._leave(queue)
                queue.put_nowait(None)

    def forgot(self, receipt: int) -> None:
        """A session sent the receipt back."""
        _, future = self._receipts.get(receipt, (None, None))
        if future is not None and not future.done():
            future.set_result(None)

    def _leave(self, queue: asyncio.Queue[Answer | None]) -> None:
        self._queues.discard(queue)
        for waiting, future in self._receipts.values():
            if waiting is queue and not future.done():
                future.set_result(None)

    async def follow(self) -> AsyncIterator[Answer]:
        queue: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._leave(queue)


class _Doorstep(asyncio.StreamReaderProtocol):
    """One connection. Whoever leaves it while it is busy, or says more before it was answered, ends what is done for
    it. (To wait for its next word beside the work would cost each request two tasks.)"""

    serving: asyncio.Task[None] | None = None
    busy = False

    def data_received(self, data: bytes) -> None:
        if self.busy:
            log.warning("connection dropped error=a request before the last one was answered")
            self._leave()
        super().data_received(data)

    def eof_received(self) -> bool | None:
        self._leave()
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave()
        super().connection_lost(error)

    def _leave(self) -> None:
        if self.busy and self.serving is not None:
            self.serving.cancel()


class RpcServer:
    """welcome: what every client is told first. answer: one request, one answer. stream: one request, many
    answers."""

    def __init__(
        self, welcome: Welcome, subscribers: Subscribers, *, answer: Answerer, stream: Streamer
    ) -> None:
        self._welcome = welcome
        self._subscribers = subscribers
        self._answer = answer
        self._stream = stream
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self, socket_path: str) -> None:
        """Listens, readable by the user only. A socket file that a dead node left is replaced."""
        _unlink(socket_path)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(self._doorstep, socket_path)
        finally:
            os.umask(mask)
        self._path = socket_path

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for task in list(self._connections):
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            _unlink(self._path)

    def _doorstep(self) -> _Doorstep:
        reader = asyncio.StreamReader()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connected(reader, writer, doorstep)

        doorstep = _Doorstep(reader, connected)
        return doorstep

    async def _connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doorstep: _Doorstep
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        doorstep.serving = task
        try:
            await self._serve(reader, writer, doorstep)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client left, or the node stops
        except ProtocolError as error:
            log.warning("connection dropped error=%s", error)
        finally:
            self._connections.discard(task)
            doorstep.serving = None
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doorstep: _Doorstep
    ) -> None:
        while True:
            header = await reader.readexactly(frame.HEADER_BYTES)
            request = frame.decode_request(await reader.readexactly(frame.body_length(header)))
            doorstep.busy = True
            try:
                await self._handle(request, writer)
            finally:
                doorstep.busy = False

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(request, Subscribe):
                async for event in self._subscribers.follow():
                    await _send(writer, event)
                raise NodeUnavailableError("events were lost", why="this client read too slowly")
            if isinstance(request, Forgot):
                self._subscribers.forgot(request.receipt)
                await _send(writer, Done())
                return
            if isinstance(request, JobStart | OpenMany):
                async for state in self._stream(request):
                    await _send(writer, state)
                return
            await _send(
                writer, self._hello(request) if isinstance(request, Hello) else await self._answer(request)
            )
        except HeadraceError as error:
            await _send(writer, frame.failure_of(error))
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as error:
            log.exception("request failed kind=%s", type(request).__name__)
            await _send(
                writer,
                Failure(
                    code="internal", what=type(request).__name__, why=repr(error), hint="see the node's log"
                ),
            )

    def _hello(self, request: Hello) -> Welcome:
        if request.protocol != PROTOCOL:
            raise ProtocolError(
                f"the client speaks protocol {request.protocol}",
                why=f"this node speaks {PROTOCOL}",
                hint="use one release",
            )
        return self._welcome


async def _send(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(frame.encode(message))
    await writer.drain()


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
