"""An HTTP server's socket: one thread waits for all connections and answers what is cached; pools do what may wait.

As the peers' door does (`entry/peer/server.py`), but here the waiting thread itself answers hits that are small and in
memory: handing over costs more than the answer. Large ones it hands over with the file open: `sendfile` runs in several
threads at once, outside of the interpreter's lock. Measured: docs/decisions/0012-the-s3-gateway.md.

Whoever is slow holds no thread that answers: heads, handshakes, the beginnings of bodies and the room for answers are
waited for here, each with a deadline as a whole. Who has shown no credential yet is served by threads of its own, after
those who have, and each address in its turn (`base/fair_queue.py`). Bodies beyond their beginning have a pool of
their own, and a least rate. Which connections are kept says `admission.py`. Measured:
docs/decisions/0046-slow-clients.md and 0064-each-in-its-turn.md.
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
from headrace.http.admission import Admission, Buffered, reset
from headrace.http.connection import LINGER_S, ConnectionPhase, HttpServerConnection
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request, Response
from headrace.http.tls import ServerTls, TlsConnection

log = logging.getLogger(__name__)

THREADS = 256
"""Requests that wait at one time for the node or the disk. More wait for a thread."""
BODY_THREADS = 256
"""Bodies beyond their beginning that are received at one time."""
ADDRESS_BODIES_MAX = 128
"""Of them, from one address: the others wait, and leave room for who comes from elsewhere."""
LINGERING_MAX = 256
"""Connections that end, and of which what still comes is taken away, so that the client hears why. More are cut."""
NEWCOMER_THREADS = 4
ADDRESS_NEWCOMERS_MAX = 2
"""Threads for those of one address who have shown nothing."""
NEWCOMER_SLICE_S = 0.002
"""How long the door's thread looks after those who have shown nothing, before it looks for others again."""
ACCEPT_SLICE_S = 0.002
"""How long it takes new connections: what waits for that is one queue of the kernel's for all addresses."""
SMALL_BYTES = 64 << 10
"""An answer that fits an idle connection's buffer: it is sent without a thread."""
RECEIVE_BYTES = 64 << 10
HELLO_S = 10.0
HEAD_S = 30.0
"""For a head as a whole, from its first byte; of a new connection, from its beginning."""
BODY_S = 60.0
"""For the beginning of a body as a whole; the rest has a least rate (`pace.py`)."""
IDLE_S = 120.0
TICK_S = 1.0
CLEAN_EVERY_S = 600.0
STOP_S = 10.0
UNDER_WAY = (ConnectionPhase.BODY, ConnectionPhase.ANSWER)


class Application(Protocol):
    """What is behind a door: from a request to its answer. Errors of its own become answers inside."""

    def cached(self, request: Request) -> Response | None:
        """For the door's thread: what needs no wait; None: it has to be asked for by `answer`."""

    def admit(self, request: Request) -> Response | None:
        """The refusal that the head alone decides; None: go on. Never waits. Notes in the request who it is."""

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """For a thread of the pool, which may wait. pieces: of the body. HungUpError."""

    def refuse(self, error: BadRequestError) -> Response:
        """To what is no request."""

    def marks(self, response: Response) -> list[tuple[str, str]]:
        """Headers that each answer has."""

    def clean(self) -> None:
        """Called every ten minutes, by a thread of the pool."""


class Door:
    """listening: belongs to this from now on. name: of the interface, in threads' names and the log. tls: None for
    plain connections."""

    def __init__(
        self,
        application: Application,
        listening: socket.socket,
        *,
        name: str,
        tls: ServerTls | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._application = application
        self._listening = listening
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
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopping = False
        self._accepting = True

    def stop(self) -> None:
        """From any thread, or a signal's handler: `run` returns when what is under way is done, or after a while."""
        self._stopping = True
        os.eventfd_write(self._bell, 1)

    def run(self) -> None:
        self._epoll.register(self._bell, select.EPOLLIN)
        self._epoll.register(self._listening, select.EPOLLIN)
        next_tick = next_clean = 0.0
        while not self._stopping:
            self._turn(TICK_S)
            now_s = time.monotonic()
            if now_s >= next_tick:
                next_tick = now_s + TICK_S
                self._tick(now_s)
            if now_s >= next_clean:
                next_clean = now_s + CLEAN_EVERY_S
                self._pool.submit(self._clean)
        self._end()

    # ------------------------------------------------------------ the door's thread

    def _turn(self, limit_s: float) -> None:
        accepting, later = False, []
        for number, _ in self._epoll.poll(limit_s):
            connection = self._waiting.get(number)
            if connection is None:
                accepting = accepting or number == self._listening.fileno()
            elif connection.proven:
                if connection.phase is ConnectionPhase.HEAD:
                    self._readable(connection)
                else:
                    self._woken(connection)
            else:
                later.append(connection)
        if later:
            self._look_after(later)
        if accepting:
            self._accept()  # last: a new connection may get the number of one that ended

    def _look_after(self, newcomers: list[HttpServerConnection]) -> None:
        """For a moment; those that are left are told of again."""
        if len(newcomers) > 1:
            newcomers.sort(key=self._admission.weight)
        until_s = time.monotonic() + NEWCOMER_SLICE_S
        for connection in newcomers:
            if self._waiting.get(connection.number) is connection:
                self._woken(connection)
            if time.monotonic() >= until_s:
                return

    def _accept(self) -> None:
        until_s = time.monotonic() + ACCEPT_SLICE_S
        while time.monotonic() < until_s:
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: later, or this would spin
                log.warning("connection not accepted error=%s", error)
                self._epoll.unregister(self._listening)
                self._accepting = False
                return
            client = str(address[0]) if isinstance(address, tuple) else ""
            if not self._admission.arrive(client):
                self._refusals.add("too many new connections a second", address=client)
                reset(sock)
                continue
            try:
                self._begin(
                    HttpServerConnection(sock, client)
                    if self._tls is None
                    else self._tls.connection(sock, client)
                )
            except OSError:  # gone already
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
        """By a newer one. One that a thread has finds its socket ended."""
        self._refusals.add("showed nothing while newer connections came", address=connection.client)
        if self._take(connection):
            self._leave(connection)
            connection.close(at_once=True)
        else:
            connection.shut()

    def _woken(self, connection: HttpServerConnection) -> None:
        phase = connection.phase
        if phase is ConnectionPhase.HEAD:
            self._readable(connection)
        elif phase is ConnectionPhase.END:
            if not connection.take_away():
                self._drop(connection)
        elif phase is ConnectionPhase.BODY:
            self._gather(connection)
        elif self._take(connection):
            connection.unpark()
            if phase is ConnectionPhase.HELLO:
                assert isinstance(connection, TlsConnection)
                tls = connection
                self._submit_in_turn(self._newcomers, lambda: self._shake_hands(tls), connection)
            else:
                self._submit(lambda: self._go_on(connection), connection)

    def _readable(self, connection: HttpServerConnection) -> None:
        begun = bool(connection.buffer)
        piece = connection.receive_now(RECEIVE_BYTES)
        if not piece:
            if piece is not None:
                self._drop(connection)
            return
        connection.buffer += piece
        try:
            while (request := connection.next_request()) is not None:
                if not self._answer_now(connection, request):
                    return
                connection.until_s, begun = time.monotonic() + self._idle_s, False
        except BadRequestError as error:
            self._take(connection)
            why = error
            self._submit_in_turn(self._newcomers, lambda: self._refuse(connection, why), connection)
            return
        except HungUpError:
            self._drop(connection)
            return
        except Exception:  # a defect costs one connection, not the door
            log.exception("connection failed")
            self._drop(connection)
            return
        if connection.buffer and not begun:
            connection.until_s = time.monotonic() + HEAD_S
        if connection.buffer or connection.holds:
            self._hold(connection)

    def _answer_now(self, connection: HttpServerConnection, request: Request) -> bool:
        """Whether the connection is still the door's."""
        response = self._application.cached(request) if connection.plain else None
        if not connection.proven and request.who:
            self._prove(connection)
        if response is None:
            self._take(connection)
            self._take_up(connection, request)
            return False
        head = connection.head_of(response, self._application.marks(response))
        try:
            done = connection.send_now(response, head, SMALL_BYTES)
        except HungUpError:
            response.drop()
            raise
        if done:
            response.drop()
            return True
        self._take(connection)
        connection.request = request
        self._submit(lambda: self._send(connection, response), connection)
        return False

    def _gather(self, connection: HttpServerConnection) -> None:
        """The beginning of a body."""
        piece = connection.receive_now(RECEIVE_BYTES)
        if not piece:
            if piece is not None:
                self._drop(connection)
            return
        connection.buffer += piece
        if connection.gathers:
            self._hold(connection)
            return
        request = connection.request
        assert request is not None
        self._take(connection)
        self._serve_body(connection, request)

    def _hold(self, connection: HttpServerConnection) -> None:
        connection.holds = bool(connection.buffer)
        for oldest in self._buffered.hold(connection, len(connection.buffer)):
            self._refusals.add("its request came too slowly", address=oldest.client)
            if self._take(oldest):
                self._drop(oldest)

    def _tick(self, now_s: float) -> None:
        if not self._accepting:
            self._epoll.register(self._listening, select.EPOLLIN)
            self._accepting = True
        with self._lock:
            waiting = list(self._waiting.values())
        for connection in waiting:
            if now_s >= connection.until_s and self._take(connection):
                self._drop(connection)

    def _end(self) -> None:
        """What is under way is done, or cut off after a while."""
        if self._accepting:
            self._epoll.unregister(self._listening)
        self._listening.close()
        until_s = time.monotonic() + STOP_S
        while True:
            with self._lock:
                waiting = list(self._waiting.values())
            over = time.monotonic() >= until_s
            for connection in waiting:
                if (over or connection.phase not in UNDER_WAY) and self._take(connection):
                    self._drop(connection)
            if over or not (self._waiting or self._working):
                break
            for number, _ in self._epoll.poll(0.02):
                found = self._waiting.get(number)
                if found is not None:
                    self._woken(found)
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
        """It is parked; the door has it from now on."""
        with self._lock:
            if not self._stopping or connection.phase in UNDER_WAY:
                self._waiting[connection.number] = connection
                self._epoll.register(connection.number, connection.events)
                return
        self._drop(connection)

    def _take(self, connection: HttpServerConnection) -> bool:
        """From the door; False: it has not got it."""
        with self._lock:
            if self._waiting.get(connection.number) is not connection:
                return False
            del self._waiting[connection.number]
            self._epoll.unregister(connection.number)
        if connection.holds:
            connection.holds = False
            self._buffered.hold(connection, 0)
        return True

    def _drop(self, connection: HttpServerConnection) -> None:
        self._take(connection)
        self._leave(connection)
        connection.close()

    def _leave(self, connection: HttpServerConnection) -> None:
        self._admission.leave(connection)
        if connection.lingers:
            connection.lingers = False
            with self._lock:
                self._lingering -= 1

    def _prove(self, connection: HttpServerConnection) -> None:
        connection.proven = True
        self._admission.prove(connection)

    def _submit(self, work: Callable[[], None], connection: HttpServerConnection) -> None:
        with self._lock:
            self._working += 1
        self._pool.submit(self._run, work, connection)

    def _submit_in_turn(
        self, turns: FairPool[str], work: Callable[[], None], connection: HttpServerConnection
    ) -> None:
        with self._lock:
            self._working += 1
        turns.submit(connection.address, lambda: self._run(work, connection))

    # ------------------------------------------------------------ the pools' threads

    def _run(self, work: Callable[[], None], connection: HttpServerConnection) -> None:
        try:
            work()
        except HungUpError as error:
            log.debug("connection ended why=%s", error)
            self._drop(connection)
        except Exception:
            log.exception("connection failed")
            self._drop(connection)
        finally:
            with self._lock:
                self._working -= 1

    def _shake_hands(self, connection: TlsConnection) -> None:
        left_s = connection.until_s - time.monotonic()
        try:
            if left_s <= 0:
                raise HungUpError("handshake: not done in time")
            done = connection.shake_hands()
        except HungUpError as error:
            self._refusals.add(str(error), address=connection.client)
            raise
        if done:
            self._park(connection, ConnectionPhase.HEAD, HEAD_S)
        else:
            self._park(connection, ConnectionPhase.HELLO, left_s, connection.events)

    def _admit(self, connection: HttpServerConnection, request: Request) -> None:
        """Who may not ask is told so, and nothing of what he goes on to send is looked at."""
        refusal = self._application.admit(request)
        if request.who and not connection.proven:
            self._prove(connection)
        if refusal is not None:
            self._send_new(connection, request, refusal)
        elif not connection.has_body:
            self._submit(lambda: self._work(connection, request), connection)
        else:
            if not request.who:
                connection.invite()  # what comes says who it is
            if connection.gathers:
                connection.request = request
                self._park(connection, ConnectionPhase.BODY, BODY_S)
            else:
                self._serve_body(connection, request)

    def _serve_body(self, connection: HttpServerConnection, request: Request) -> None:
        if connection.is_whole:
            self._submit(lambda: self._work(connection, request), connection)
            return
        self._submit_in_turn(self._bodies, lambda: self._work(connection, request), connection)

    def _work(self, connection: HttpServerConnection, request: Request) -> None:
        self._send_new(connection, request, self._application.answer(request, connection.body(request)))

    def _send_new(self, connection: HttpServerConnection, request: Request, response: Response) -> None:
        connection.request = request
        connection.begin(response, connection.head_of(response, self._application.marks(response)))
        self._send(connection, response)

    def _go_on(self, connection: HttpServerConnection) -> None:
        response = connection.response
        assert response is not None
        self._send(connection, response)

    def _send(self, connection: HttpServerConnection, response: Response) -> None:
        """The answer, of which a part may have been sent; then what follows on the connection."""
        sent = False
        try:
            sent = connection.send_rest(response)
            if not sent:
                connection.park_answer(response)
        except HeadraceError as error:  # in the middle of the bytes: all that can be done is to break off
            path = b"" if connection.request is None else connection.request.path
            log.warning("answer broken off path=%s error=%s", path, error)
            response.drop()
            self._finish(connection)
            return
        except BaseException:
            response.drop()
            raise
        if not sent:
            self._wait_for(connection)
            return
        connection.response = None
        response.drop()
        if log.isEnabledFor(logging.INFO) and (request := connection.request) is not None:
            log.info("request method=%s path=%s status=%d", request.method, request.path, response.status)
        if not connection.skip_body():
            self._finish(connection)
        elif response.close or not connection.reusable:
            self._drop(connection)
        else:
            self._next(connection)

    def _next(self, connection: HttpServerConnection) -> None:
        """The request that came with the last one, or the connection waits for one."""
        try:
            request = connection.next_request()
        except BadRequestError as error:
            self._refuse(connection, error)
            return
        if request is None:
            limit_s = HEAD_S if connection.buffer or not connection.proven else self._idle_s
            self._park(connection, ConnectionPhase.HEAD, limit_s)
            return
        self._take_up(connection, request)

    def _take_up(self, connection: HttpServerConnection, request: Request) -> None:
        """By a thread: of a body the credential first, and who has shown none waits for the threads of such."""
        if not connection.proven:
            self._submit_in_turn(self._newcomers, lambda: self._admit(connection, request), connection)
        elif connection.has_body:
            self._submit(lambda: self._admit(connection, request), connection)
        else:
            self._submit(lambda: self._work(connection, request), connection)

    def _refuse(self, connection: HttpServerConnection, error: BadRequestError) -> None:
        """What is no request is answered once, and the connection ends."""
        response = self._application.refuse(error)
        response.close = True
        connection.request = None
        connection.begin(response, connection.head_of(response, self._application.marks(response)))
        self._send(connection, response)

    def _finish(self, connection: HttpServerConnection) -> None:
        """Where the client may be sending still: closed at once, what it sends would have the kernel take back the
        answer. So that is taken away for a moment, by the door's thread."""
        with self._lock:
            connection.lingers = self._lingering < LINGERING_MAX
            self._lingering += connection.lingers
        if connection.lingers and connection.end_sending():
            self._park(connection, ConnectionPhase.END, LINGER_S)
        else:
            self._drop(connection)

    def _clean(self) -> None:
        try:
            self._application.clean()
        except Exception:  # the next time may do better
            log.exception("not cleaned")
