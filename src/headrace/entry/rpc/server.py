"""Serve the clients of this host on a unix socket: one request at a time on each connection.

A client that closes its connection while a request is in progress cancels the request. A HeadraceError is returned
as Failure; any other error is logged with its trace and returned as `internal`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from headrace.base.errors import HeadraceError, NodeUnavailableError, ProtocolError
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import (
    PROTOCOL,
    Answer,
    Done,
    Evicted,
    Failure,
    Forgot,
    Hello,
    JobStart,
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
    """Delivers events to the sessions that follow the node's changes. A session that does not read its events is
    disconnected and reconnects."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[Answer | None]] = set()
        self._receipts: dict[int, tuple[asyncio.Queue[Answer | None], asyncio.Future[None]]] = {}
        self._receipt = 0

    def publish(self, event: Answer) -> None:
        for queue in list(self._queues):
            self._put(queue, event)

    def _put(self, queue: asyncio.Queue[Answer | None], event: Answer) -> None:
        if queue.qsize() >= EVENTS_WAITING_MAX:
            log.warning("a session that does not read its events was disconnected")
            self._leave(queue)
            queue.put_nowait(None)
        else:
            queue.put_nowait(event)

    async def drop_damaged(self, ids: list[int]) -> None:
        """Make every session drop the bytes of these files from its cache. On return each session has done so, or
        was disconnected because it did not confirm in time."""
        for queue in await self._unconfirmed(Evicted(ids=ids, damaged=True)):
            log.warning("a session that did not confirm an eviction was disconnected")
            self._leave(queue)
            queue.put_nowait(None)

    async def deliver(self) -> None:
        """Return when each session has handled all events so far, or after FORGET_LIMIT_S: a call in the kernel may
        hold up the events of a directory."""
        late = await self._unconfirmed(Evicted(ids=[]))
        if late:
            log.info("sessions have not handled all events yet sessions=%d", len(late))

    async def _unconfirmed(self, event: Evicted) -> list[asyncio.Queue[Answer | None]]:
        """Publish an event with a receipt for each session. Return the sessions that did not confirm it within
        FORGET_LIMIT_S."""
        confirmations: dict[int, asyncio.Future[None]] = {}
        for queue in list(self._queues):
            self._receipt += 1
            confirmations[self._receipt] = future = asyncio.get_running_loop().create_future()
            self._receipts[self._receipt] = queue, future
            self._put(queue, msgspec.structs.replace(event, receipt=self._receipt))
        try:
            if confirmations:
                await asyncio.wait(confirmations.values(), timeout=FORGET_LIMIT_S)
        finally:
            receipts = [self._receipts.pop(receipt) for receipt in confirmations]
        return [queue for queue, future in receipts if not future.done()]

    def acknowledge(self, receipt: int) -> None:
        """Record that a session confirmed the receipt."""
        _, future = self._receipts.get(receipt, (None, None))
        if future is not None and not future.done():
            future.set_result(None)

    def _leave(self, queue: asyncio.Queue[Answer | None]) -> None:
        self._queues.discard(queue)
        for receipt_queue, future in self._receipts.values():
            if receipt_queue is queue and not future.done():
                future.set_result(None)

    async def follow(self) -> AsyncIterator[Answer]:
        """Yield the events for one session, until it is disconnected."""
        queue: asyncio.Queue[Answer | None] = asyncio.Queue()
        self._queues.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._leave(queue)


class _ClientProtocol(asyncio.StreamReaderProtocol):
    """Watches one connection. A client that disconnects during its request, or sends another one before the answer,
    cancels the request. (To read the connection in a task beside the request would cost two tasks a request.)"""

    serving: asyncio.Task[None] | None = None
    busy = False

    def data_received(self, data: bytes) -> None:
        if self.busy:
            log.warning("a connection was closed, it sent a request before the last one was answered")
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
    """Accepts the connections of this host's clients. welcome: the answer to every hello. answer: handles a request
    with one answer. stream: handles a request with many."""

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
        """Listen on a socket that only this user may use. Replace a socket file that a dead node left."""
        _unlink(socket_path)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                self._new_protocol, socket_path
            )
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

    def _new_protocol(self) -> _ClientProtocol:
        reader = asyncio.StreamReader()

        async def on_connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._on_connected(reader, writer, protocol)

        protocol = _ClientProtocol(reader, on_connected)
        return protocol

    async def _on_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: _ClientProtocol
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        protocol.serving = task
        try:
            await self._serve(reader, writer, protocol)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected, or the node stops
        except ProtocolError as error:
            log.warning("a connection was closed error=%s", error)
        finally:
            self._connections.discard(task)
            protocol.serving = None
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, protocol: _ClientProtocol
    ) -> None:
        while True:
            header = await reader.readexactly(frame.HEADER_BYTES)
            request = frame.decode_request(await reader.readexactly(frame.body_length(header)))
            protocol.busy = True
            try:
                await self._handle(request, writer)
            finally:
                protocol.busy = False

    async def _handle(self, request: Request, writer: asyncio.StreamWriter) -> None:
        try:
            if isinstance(request, Subscribe):
                async for event in self._subscribers.follow():
                    await _send(writer, event)
                raise NodeUnavailableError("events were lost", why="this client reads them too slowly")
            if isinstance(request, Forgot):
                self._subscribers.acknowledge(request.receipt)
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
    writer.write(frame.encode_answer(message))
    await writer.drain()


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
