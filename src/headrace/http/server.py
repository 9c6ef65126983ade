"""Serve HTTP on one socket: one thread waits for all connections and answers what is cached; pools do work that may
wait.

It works like the peers' server (`entry/peer/server.py`), but here the waiting thread itself answers hits that are
small and in memory, because a handover costs more than the answer. It hands large hits over with the file open:
`sendfile` runs in several threads at once, without the GIL. Measured: docs/decisions/0012-the-s3-gateway.md.

A slow client occupies no thread that answers. The waiting thread waits for heads, handshakes, the beginnings of
bodies and room for answers, each with one deadline for the whole. Connections that have not authenticated have
threads of their own, come after those that have, and take turns by address (`base/fair_queue.py`). The rest of a
long body is received by another pool, at a minimum rate. `admission.py` decides which connections are kept.
Measured: docs/decisions/0046-slow-clients.md and 0064-each-in-its-turn.md.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time

from headrace.base.refusals import Refusals
from headrace.http import deadlines
from headrace.http.acceptor import Acceptor
from headrace.http.application import Application
from headrace.http.connection import ConnectionPhase, HttpServerConnection
from headrace.http.connection_table import IN_PROGRESS, ConnectionTable
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request
from headrace.http.request_handler import RequestHandler
from headrace.http.tls import ServerTls, TlsConnection

log = logging.getLogger(__name__)

NEWCOMER_SLICE_S = 0.002
"""Seconds for which the waiting thread serves unauthenticated connections before it polls again."""
SMALL_BYTES = 64 << 10
"""Largest answer that the waiting thread sends itself: it fits the buffer of an idle connection."""
RECEIVE_BYTES = 64 << 10
TICK_S = 1.0
"""Seconds between two checks of the deadlines of connections."""
CLEAN_EVERY_S = 600.0
"""Seconds between two cleanups of the application."""
STOP_S = 10.0
"""Seconds that requests in progress have to end when the server stops."""


class HttpServer:
    """Serves an application on a listening socket, which it owns. name: the interface, for the names of threads and
    the log. tls: None for plain connections."""

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        *,
        name: str,
        tls: ServerTls | None = None,
    ) -> None:
        self._application = application
        self._tls = tls
        self._refusals = Refusals(log, name)
        self._table = ConnectionTable(self._refusals)
        self._epoll = self._table.epoll
        self._handler = RequestHandler(application, self._table, self._refusals, name=name)
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._acceptor = Acceptor(listener, self._epoll, self._table.admission, self._refusals, name=name)
        self._is_stopping = False

    def stop(self) -> None:
        """Stop the server, from any thread or signal handler: `run` returns when requests in progress are done, or
        after STOP_S."""
        self._is_stopping = True
        self._table.stop()
        os.eventfd_write(self._wakeup_fd, 1)

    def run(self) -> None:
        """Serve until stop is called. The calling thread is the waiting thread."""
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        next_tick_s = next_clean_s = 0.0
        while not self._is_stopping:
            self._poll_once(TICK_S)
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                self._tick(now_s)
            if now_s >= next_clean_s:
                next_clean_s = now_s + CLEAN_EVERY_S
                self._handler.begin_clean()
        self._finish_all()

    # ------------------------------------------------------------ the loop

    def _poll_once(self, limit_s: float) -> None:
        accepting, newcomers = False, []
        for fd, _ in self._epoll.poll(limit_s):
            connection = self._table.waiting.get(fd)
            if connection is None:
                accepting = accepting or fd == self._acceptor.fileno()
            elif connection.is_authenticated:
                if connection.phase is ConnectionPhase.HEAD:
                    self._receive_head(connection)
                else:
                    self._resume(connection)
            else:
                newcomers.append(connection)
        if newcomers:
            self._serve_newcomers(newcomers)
        if accepting:
            self._accept()  # last: a new connection may get the descriptor of one that ended

    def _serve_newcomers(self, newcomers: list[HttpServerConnection]) -> None:
        """Serve unauthenticated connections for one slice; epoll reports the others again."""
        if len(newcomers) > 1:
            newcomers.sort(key=self._table.admission.weight)
        deadline_s = time.monotonic() + NEWCOMER_SLICE_S
        for connection in newcomers:
            if self._table.waiting.get(connection.fd) is connection:
                self._resume(connection)
            if time.monotonic() >= deadline_s:
                return

    def _tick(self, now_s: float) -> None:
        self._acceptor.resume()
        for connection in self._table.all_waiting():
            if now_s >= connection.deadline_s:
                self._table.drop_waiting(connection)

    def _finish_all(self) -> None:
        """Wait until requests in progress are done; cut them off after STOP_S."""
        self._acceptor.close()
        deadline_s = time.monotonic() + STOP_S
        while True:
            is_late = time.monotonic() >= deadline_s
            for connection in self._table.all_waiting():
                if is_late or connection.phase not in IN_PROGRESS:
                    self._table.drop_waiting(connection)
            if is_late or not (self._table.waiting or self._handler.is_working):
                break
            for fd, _ in self._epoll.poll(0.02):
                ready = self._table.waiting.get(fd)
                if ready is not None:
                    self._resume(ready)
        self._handler.shutdown()

    # ------------------------------------------------------------ new connections

    def _accept(self) -> None:
        for sock, client, _ in self._acceptor.accept():
            try:
                self._begin(
                    HttpServerConnection(sock, client)
                    if self._tls is None
                    else self._tls.connection(sock, client)
                )
            except OSError:  # disconnected already
                sock.close()

    def _begin(self, connection: HttpServerConnection) -> None:
        if not self._table.enter(connection):
            return
        if isinstance(connection, TlsConnection):
            self._table.park(connection, ConnectionPhase.HELLO, deadlines.HELLO_S)
        else:
            self._table.park(connection, ConnectionPhase.HEAD, deadlines.HEAD_S)

    # ------------------------------------------------------------ ready connections

    def _resume(self, connection: HttpServerConnection) -> None:
        phase = connection.phase
        if phase is ConnectionPhase.HEAD:
            self._receive_head(connection)
        elif phase is ConnectionPhase.END:
            if not connection.discard_input():
                self._table.drop(connection)
        elif phase is ConnectionPhase.BODY:
            self._receive_body_start(connection)
        elif self._table.claim(connection):
            connection.unpark()
            if isinstance(connection, TlsConnection) and phase is ConnectionPhase.HELLO:
                self._handler.begin_handshake(connection)
            else:
                assert connection.response is not None
                self._handler.begin_send(connection, connection.response)

    def _receive_head(self, connection: HttpServerConnection) -> None:
        had_bytes = bool(connection.buffer)
        if not self._receive_piece(connection):
            return
        try:
            while (request := connection.next_request()) is not None:
                if not self._answer_now(connection, request):
                    return
                connection.deadline_s, had_bytes = time.monotonic() + deadlines.IDLE_S, False
        except BadRequestError as error:
            self._table.claim(connection)
            self._handler.begin_refusal(connection, error)
            return
        except HungUpError:
            self._table.drop(connection)
            return
        except Exception:  # a defect ends one connection, not the server
            log.exception("a connection failed")
            self._table.drop(connection)
            return
        if connection.buffer and not had_bytes:
            connection.deadline_s = time.monotonic() + deadlines.HEAD_S
        if connection.buffer or connection.is_buffered:
            self._table.account_buffered(connection)

    def _answer_now(self, connection: HttpServerConnection, request: Request) -> bool:
        """Answer a request without waiting, or pass it to a pool. Return whether the connection still belongs to
        this thread."""
        response = self._application.cached(request) if connection.framing.is_plain else None
        if not connection.is_authenticated and request.who:
            self._table.mark_authenticated(connection)
        if response is None:
            self._table.claim(connection)
            self._handler.begin(connection, request)
            return False
        head = connection.head_of(response, self._application.marks(response))
        try:
            is_sent = connection.send_now(response, head, SMALL_BYTES)
        except HungUpError:
            response.release()
            raise
        if is_sent:
            response.release()
            return True
        self._table.claim(connection)
        connection.request = request
        self._handler.begin_send(connection, response)
        return False

    def _receive_body_start(self, connection: HttpServerConnection) -> None:
        """Receive the beginning of a body."""
        if not self._receive_piece(connection):
            return
        if connection.framing.needs_more(connection.buffer):
            self._table.account_buffered(connection)
            return
        request = connection.request
        assert request is not None
        self._table.claim(connection)
        self._handler.begin_body(connection, request)

    def _receive_piece(self, connection: HttpServerConnection) -> bool:
        """Add bytes that have arrived to the buffer; return False if there are none. Drop a connection that ended."""
        piece = connection.receive_now(RECEIVE_BYTES)
        if piece:
            connection.buffer += piece
        elif piece is not None:
            self._table.drop(connection)
        return bool(piece)
