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
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from headrace.base.errors import HeadraceError
from headrace.base.fair_queue import FairPool
from headrace.base.refusals import Refusals
from headrace.http.acceptor import Acceptor
from headrace.http.admission import Admission, Buffered
from headrace.http.connection import LINGER_S, ConnectionPhase, HttpServerConnection
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request, Response
from headrace.http.tls import ServerTls, TlsConnection

log = logging.getLogger(__name__)

THREADS = 256
"""Requests that wait for the node or the disk at one time. Further requests wait for a thread."""
BODY_THREADS = 256
"""Bodies beyond their beginning that are received at one time."""
ADDRESS_BODIES_MAX = 128
"""How many of them may come from one address. Further ones wait, which leaves room for other addresses."""
LINGERING_MAX = 256
"""Ending connections whose input is still received and dropped, so that the client sees the reason. Further ones are
closed at once."""
NEWCOMER_THREADS = 4
ADDRESS_NEWCOMERS_MAX = 2
"""Threads for the unauthenticated connections of one address."""
NEWCOMER_SLICE_S = 0.002
"""How long the waiting thread serves unauthenticated connections before it polls again."""
"""How long it accepts connections at a time. The kernel has one accept queue for all addresses."""
SMALL_BYTES = 64 << 10
"""An answer that fits the buffer of an idle connection is sent without a thread."""
RECEIVE_BYTES = 64 << 10
HELLO_S = 10.0
HEAD_S = 30.0
"""The limit for a head, from its first byte; on a new connection, from the connection's start."""
BODY_S = 60.0
"""The limit for the beginning of a body; the rest has a minimum rate (`pace.py`)."""
IDLE_S = 120.0
TICK_S = 1.0
CLEAN_EVERY_S = 600.0
STOP_S = 10.0
IN_PROGRESS = (ConnectionPhase.BODY, ConnectionPhase.ANSWER)


class Application(Protocol):
    """Turns requests into answers. It converts its own errors to answers."""

    def cached(self, request: Request) -> Response | None:
        """Return an answer that needs no wait, or None when `answer` must be called. Runs on the waiting thread."""

    def admit(self, request: Request) -> Response | None:
        """Return the refusal that follows from the head alone, or None to go on. Never waits. Calls
        `authenticate` of the request."""

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """Return the answer, in a thread of the pool, which may wait. pieces: the body. Raise HungUpError."""

    def refuse(self, error: BadRequestError) -> Response:
        """Return the answer to an invalid request."""

    def marks(self, response: Response) -> list[tuple[str, str]]:
        """Return the headers of every answer."""

    def clean(self) -> None:
        """Clean up. A thread of the pool calls it every ten minutes."""


class HttpServer:
    """Serves an application on a listening socket, which it owns. name: of the interface, for thread names and the
    log. tls: None for plain connections."""

    def __init__(
        self,
        application: Application,
        listener: socket.socket,
        *,
        name: str,
        tls: ServerTls | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._application = application
        self._tls = tls
        self._idle_s = idle_s
        self._waiting: dict[int, HttpServerConnection] = {}
        self._lock = threading.Lock()
        self._working = 0
        self._lingering = 0
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._newcomers: FairPool[str] = FairPool(
            ThreadPoolExecutor(NEWCOMER_THREADS, thread_name_prefix=f"{name}-new"),
            share=ADDRESS_NEWCOMERS_MAX,
        )
        self._bodies: FairPool[str] = FairPool(
            ThreadPoolExecutor(BODY_THREADS, thread_name_prefix=f"{name}-body"),
            share=ADDRESS_BODIES_MAX,
        )
        self._admission: Admission[HttpServerConnection] = Admission(self._displace)
        self._buffered: Buffered[HttpServerConnection] = Buffered()
        self._refusals = Refusals(log, name)
        self._epoll = select.epoll()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._acceptor = Acceptor(listener, self._epoll, self._admission, self._refusals, name=name)
        self._stopping = False

    def stop(self) -> None:
        """Stop the server, from any thread or signal handler: `run` returns when requests in progress are done, or
        after STOP_S."""
        self._stopping = True
        os.eventfd_write(self._wakeup_fd, 1)

    def run(self) -> None:
        """Serve until stop is called. The calling thread is the waiting thread."""
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        next_tick_s = next_clean_s = 0.0
        while not self._stopping:
            self._poll_once(TICK_S)
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                self._tick(now_s)
            if now_s >= next_clean_s:
                next_clean_s = now_s + CLEAN_EVERY_S
                self._pool.submit(self._clean)
        self._finish_all()

    # ------------------------------------------------------------ the waiting thread

    def _poll_once(self, limit_s: float) -> None:
        accepting, newcomers = False, []
        for fd, _ in self._epoll.poll(limit_s):
            connection = self._waiting.get(fd)
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
            newcomers.sort(key=self._admission.weight)
        deadline_s = time.monotonic() + NEWCOMER_SLICE_S
        for connection in newcomers:
            if self._waiting.get(connection.fd) is connection:
                self._resume(connection)
            if time.monotonic() >= deadline_s:
                return

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
        if not self._admission.enter(connection):
            self._refusals.add("too many connections", address=connection.client)
            connection.close()
        elif isinstance(connection, TlsConnection):
            self._park(connection, ConnectionPhase.HELLO, HELLO_S)
        else:
            self._park(connection, ConnectionPhase.HEAD, HEAD_S)

    def _displace(self, connection: HttpServerConnection) -> None:
        """Close a connection in favour of a newer one. A thread that serves it sees its socket ended."""
        self._refusals.add(
            "it did not authenticate while newer connections arrived", address=connection.client
        )
        if self._claim(connection):
            self._leave(connection)
            connection.close(at_once=True)
        else:
            connection.shut()

    def _resume(self, connection: HttpServerConnection) -> None:
        phase = connection.phase
        if phase is ConnectionPhase.HEAD:
            self._receive_head(connection)
        elif phase is ConnectionPhase.END:
            if not connection.discard_input():
                self._drop(connection)
        elif phase is ConnectionPhase.BODY:
            self._receive_body_start(connection)
        elif self._claim(connection):
            connection.unpark()
            if phase is ConnectionPhase.HELLO:
                assert isinstance(connection, TlsConnection)
                tls = connection
                self._submit_fairly(self._newcomers, lambda: self._shake_hands(tls), connection)
            else:
                self._submit(lambda: self._resume_answer(connection), connection)

    def _receive_head(self, connection: HttpServerConnection) -> None:
        had_bytes = bool(connection.buffer)
        if not self._receive_piece(connection):
            return
        try:
            while (request := connection.next_request()) is not None:
                if not self._answer_now(connection, request):
                    return
                connection.deadline_s, had_bytes = time.monotonic() + self._idle_s, False
        except BadRequestError as error:
            self._claim(connection)
            bad_request = error
            self._submit_fairly(self._newcomers, lambda: self._refuse(connection, bad_request), connection)
            return
        except HungUpError:
            self._drop(connection)
            return
        except Exception:  # a defect ends one connection, not the server
            log.exception("a connection failed")
            self._drop(connection)
            return
        if connection.buffer and not had_bytes:
            connection.deadline_s = time.monotonic() + HEAD_S
        if connection.buffer or connection.is_buffered:
            self._account_buffered(connection)

    def _answer_now(self, connection: HttpServerConnection, request: Request) -> bool:
        """Answer a request without waiting, or pass it to a pool. Return whether the connection still belongs to
        this thread."""
        response = self._application.cached(request) if connection.is_plain else None
        if not connection.is_authenticated and request.who:
            self._mark_authenticated(connection)
        if response is None:
            self._claim(connection)
            self._start(connection, request)
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
        self._claim(connection)
        connection.request = request
        self._submit(lambda: self._send(connection, response), connection)
        return False

    def _receive_body_start(self, connection: HttpServerConnection) -> None:
        """Receive the beginning of a body."""
        if not self._receive_piece(connection):
            return
        if connection.needs_more:
            self._account_buffered(connection)
            return
        request = connection.request
        assert request is not None
        self._claim(connection)
        self._serve_body(connection, request)

    def _receive_piece(self, connection: HttpServerConnection) -> bool:
        """Add bytes that have arrived to the buffer; return False if there are none. Drop a connection that ended."""
        piece = connection.receive_now(RECEIVE_BYTES)
        if piece:
            connection.buffer += piece
        elif piece is not None:
            self._drop(connection)
        return bool(piece)

    def _account_buffered(self, connection: HttpServerConnection) -> None:
        connection.is_buffered = bool(connection.buffer)
        for oldest in self._buffered.hold(connection, len(connection.buffer)):
            self._refusals.add("its request came too slowly", address=oldest.client)
            if self._claim(oldest):
                self._drop(oldest)

    def _tick(self, now_s: float) -> None:
        self._acceptor.resume()
        with self._lock:
            waiting = list(self._waiting.values())
        for connection in waiting:
            if now_s >= connection.deadline_s and self._claim(connection):
                self._drop(connection)

    def _finish_all(self) -> None:
        """Wait until requests in progress are done; cut them off after STOP_S."""
        self._acceptor.close()
        deadline_s = time.monotonic() + STOP_S
        while True:
            with self._lock:
                waiting = list(self._waiting.values())
            is_late = time.monotonic() >= deadline_s
            for connection in waiting:
                if (is_late or connection.phase not in IN_PROGRESS) and self._claim(connection):
                    self._drop(connection)
            if is_late or not (self._waiting or self._working):
                break
            for fd, _ in self._epoll.poll(0.02):
                ready = self._waiting.get(fd)
                if ready is not None:
                    self._resume(ready)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._newcomers.shutdown(wait=False)
        self._bodies.shutdown(wait=False)

    # ------------------------------------------------------------ any thread

    def _park(
        self,
        connection: HttpServerConnection,
        phase: ConnectionPhase,
        limit_s: float,
        events: int = select.EPOLLIN,
    ) -> None:
        connection.park(phase, events, limit_s)
        self._wait_for(connection)

    def _wait_for(self, connection: HttpServerConnection) -> None:
        """Give a parked connection to the waiting thread."""
        with self._lock:
            if not self._stopping or connection.phase in IN_PROGRESS:
                self._waiting[connection.fd] = connection
                self._epoll.register(connection.fd, connection.events)
                return
        self._drop(connection)

    def _claim(self, connection: HttpServerConnection) -> bool:
        """Take a connection from the waiting thread. Return False when that thread does not have it."""
        with self._lock:
            if self._waiting.get(connection.fd) is not connection:
                return False
            del self._waiting[connection.fd]
            self._epoll.unregister(connection.fd)
        if connection.is_buffered:
            connection.is_buffered = False
            self._buffered.hold(connection, 0)
        return True

    def _drop(self, connection: HttpServerConnection) -> None:
        self._claim(connection)
        self._leave(connection)
        connection.close()

    def _leave(self, connection: HttpServerConnection) -> None:
        self._admission.leave(connection)
        if connection.is_lingering:
            connection.is_lingering = False
            with self._lock:
                self._lingering -= 1

    def _mark_authenticated(self, connection: HttpServerConnection) -> None:
        connection.is_authenticated = True
        self._admission.mark_authenticated(connection)

    def _submit(self, work: Callable[[], None], connection: HttpServerConnection) -> None:
        with self._lock:
            self._working += 1
        self._pool.submit(self._run, work, connection)

    def _submit_fairly(
        self, pool: FairPool[str], work: Callable[[], None], connection: HttpServerConnection
    ) -> None:
        with self._lock:
            self._working += 1
        pool.submit(connection.address, lambda: self._run(work, connection))

    # ------------------------------------------------------------ the pools' threads

    def _run(self, work: Callable[[], None], connection: HttpServerConnection) -> None:
        try:
            work()
        except HungUpError as error:
            log.debug("a connection ended why=%s", error)
            self._drop(connection)
        except Exception:
            log.exception("a connection failed")
            self._drop(connection)
        finally:
            with self._lock:
                self._working -= 1

    def _shake_hands(self, connection: TlsConnection) -> None:
        left_s = connection.deadline_s - time.monotonic()
        try:
            if left_s <= 0:
                raise HungUpError("the TLS handshake did not finish in time")
            is_done = connection.shake_hands()
        except HungUpError as error:
            self._refusals.add(str(error), address=connection.client)
            raise
        if is_done:
            self._park(connection, ConnectionPhase.HEAD, HEAD_S)
        else:
            self._park(connection, ConnectionPhase.HELLO, left_s, connection.events)

    def _admit(self, connection: HttpServerConnection, request: Request) -> None:
        """Let the application refuse the request by its head; the body of a refused client is not parsed."""
        refusal = self._application.admit(request)
        if request.who and not connection.is_authenticated:
            self._mark_authenticated(connection)
        if refusal is not None:
            self._send_new(connection, request, refusal)
        elif not connection.has_body:
            self._submit(lambda: self._work(connection, request), connection)
        else:
            if not request.who:
                connection.send_continue()  # the body holds the credential
            if connection.needs_more:
                connection.request = request
                self._park(connection, ConnectionPhase.BODY, BODY_S)
            else:
                self._serve_body(connection, request)

    def _serve_body(self, connection: HttpServerConnection, request: Request) -> None:
        if connection.is_whole:
            self._submit(lambda: self._work(connection, request), connection)
            return
        self._submit_fairly(self._bodies, lambda: self._work(connection, request), connection)

    def _work(self, connection: HttpServerConnection, request: Request) -> None:
        self._send_new(connection, request, self._application.answer(request, connection.body(request)))

    def _send_new(self, connection: HttpServerConnection, request: Request, response: Response) -> None:
        connection.request = request
        connection.prepare(response, connection.head_of(response, self._application.marks(response)))
        self._send(connection, response)

    def _resume_answer(self, connection: HttpServerConnection) -> None:
        response = connection.response
        assert response is not None
        self._send(connection, response)

    def _send(self, connection: HttpServerConnection, response: Response) -> None:
        """Send the answer, of which a part may have been sent, then continue with what follows on the connection."""
        is_sent = False
        try:
            is_sent = connection.send_rest(response)
            if not is_sent:
                connection.park_answer(response)
        except HeadraceError as error:  # the head was sent, so the connection must be broken off
            path = b"" if connection.request is None else connection.request.path
            log.warning("an answer was broken off path=%s error=%s", path, error)
            response.release()
            self._finish(connection)
            return
        except BaseException:
            response.release()
            raise
        if not is_sent:
            self._wait_for(connection)
            return
        connection.response = None
        response.release()
        if log.isEnabledFor(logging.INFO) and (request := connection.request) is not None:
            log.info("request method=%s path=%s status=%d", request.method, request.path, response.status)
        if not connection.skip_body():
            self._finish(connection)
        elif response.close or not connection.is_reusable:
            self._drop(connection)
        else:
            self._next(connection)

    def _next(self, connection: HttpServerConnection) -> None:
        """Continue with the request that came with the last one, or wait for one."""
        try:
            request = connection.next_request()
        except BadRequestError as error:
            self._refuse(connection, error)
            return
        if request is None:
            limit_s = HEAD_S if connection.buffer or not connection.is_authenticated else self._idle_s
            self._park(connection, ConnectionPhase.HEAD, limit_s)
            return
        self._start(connection, request)

    def _start(self, connection: HttpServerConnection, request: Request) -> None:
        """Pass a request to a pool. A body's credential is checked first; unauthenticated clients use threads of
        their own."""
        if not connection.is_authenticated:
            self._submit_fairly(self._newcomers, lambda: self._admit(connection, request), connection)
        elif connection.has_body:
            self._submit(lambda: self._admit(connection, request), connection)
        else:
            self._submit(lambda: self._work(connection, request), connection)

    def _refuse(self, connection: HttpServerConnection, error: BadRequestError) -> None:
        """Answer an invalid request and close the connection."""
        response = self._application.refuse(error)
        response.close = True
        connection.request = None
        connection.prepare(response, connection.head_of(response, self._application.marks(response)))
        self._send(connection, response)

    def _finish(self, connection: HttpServerConnection) -> None:
        """End a connection whose client may still be sending. If it were closed at once, the client's bytes would
        make the kernel discard the answer. So the waiting thread drops those bytes for a moment."""
        with self._lock:
            connection.is_lingering = self._lingering < LINGERING_MAX
            self._lingering += connection.is_lingering
        if connection.is_lingering and connection.end_sending():
            self._park(connection, ConnectionPhase.END, LINGER_S)
        else:
            self._drop(connection)

    def _clean(self) -> None:
        try:
            self._application.clean()
        except Exception:  # the next attempt may succeed
            log.exception("the periodic cleanup failed")
