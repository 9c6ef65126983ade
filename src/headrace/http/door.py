"""An HTTP server's socket: one thread waits for all connections and answers what is cached; a pool does what may wait.

As the peers' door does (`entry/peer/server.py`), but here the waiting thread itself answers hits that are small and in
memory: handing over costs more than the answer. Large ones it hands over with the file open: `sendfile` runs in several
threads at once, outside of the interpreter's lock. Measured: docs/decisions/0012-the-s3-gateway.md.
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
from headrace.http.connection import Connection
from headrace.http.errors import BadRequestError, HungUpError
from headrace.http.messages import Request, Response
from headrace.http.tls import ServerTls, TlsConnection

log = logging.getLogger(__name__)

THREADS = 256
"""Requests that wait at one time: for the node, the disk, or a slow client. More wait for a thread."""
CONNECTIONS_MAX = 8192
SMALL_BYTES = 64 << 10
"""An answer that fits an idle connection's buffer: it is sent without a thread."""
RECEIVE_BYTES = 64 << 10
IDLE_S = 120.0
TICK_S = 1.0
CLEAN_EVERY_S = 600.0
STOP_S = 10.0


class Application(Protocol):
    """What is behind a door: from a request to its answer. Errors of its own become answers inside."""

    def cached(self, request: Request) -> Response | None:
        """For the door's thread: what needs no wait; None: it has to be asked for by `answer`."""

    def answer(self, request: Request, pieces: Iterator[bytes]) -> Response:
        """For a thread of the pool, which may wait. pieces: of the body. HungUpError."""

    def refuse(self, error: BadRequestError) -> Response:
        """To what is no request."""

    def marks(self, response: Response) -> list[tuple[str, str]]:
        """Headers that each answer has."""

    def clean(self) -> None:
        """Called every ten minutes, by a thread of the pool."""


class Door:
    """listening: belongs to this from now on. name: of the pool's threads. tls: None for plain connections."""

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
        self._waiting: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._working = 0
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
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
        accepting, bell = self._listening.fileno(), self._bell
        next_tick = next_clean = 0.0
        while not self._stopping:
            new = False
            for number, _ in self._epoll.poll(TICK_S):
                if number == accepting:
                    new = True
                elif number != bell:
                    self._readable(number)
            if new:
                self._accept()  # last: a new connection may get the number of one that ended
            now_s = time.monotonic()
            if now_s >= next_tick:
                next_tick = now_s + TICK_S
                self._tick(now_s)
            if now_s >= next_clean:
                next_clean = now_s + CLEAN_EVERY_S
                self._pool.submit(self._clean)
        self._end()

    # ------------------------------------------------------------ the door's thread

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: later, or this would spin
                log.warning("connection not accepted error=%s", error)
                self._epoll.unregister(self._listening)
                self._accepting = False
                return
            if len(self._waiting) + self._working >= CONNECTIONS_MAX:
                log.warning("connection refused connections=%d", CONNECTIONS_MAX)
                sock.close()
                continue
            try:
                self._begin(sock)
            except OSError:  # gone already
                sock.close()

    def _begin(self, sock: socket.socket) -> None:
        if self._tls is None:
            self._wait_for_request(Connection(sock))
            return
        connection = self._tls.connection(sock)
        self._submit(lambda: self._shake_hands(connection), connection)

    def _shake_hands(self, connection: TlsConnection) -> None:
        connection.shake_hands()
        self._wait_for_request(connection)

    def _wait_for_request(self, connection: Connection) -> None:
        """From any thread that has the connection."""
        connection.idle_since_s = time.monotonic()
        with self._lock:
            if self._stopping:
                connection.close()
                return
            self._waiting[connection.number] = connection
            self._epoll.register(connection.number, select.EPOLLIN)

    def _readable(self, number: int) -> None:
        connection = self._waiting.get(number)
        if connection is None:
            return
        piece = connection.receive_now(RECEIVE_BYTES)
        if piece is None:
            return
        if not piece:
            self._drop(connection)
            return
        connection.buffer += piece
        connection.idle_since_s = time.monotonic()
        try:
            while (request := connection.next_request()) is not None:
                if not self._answer_now(connection, request):
                    return
        except BadRequestError as error:
            self._take(connection)
            why = error
            self._submit(lambda: self._refuse(connection, why), connection)
        except HungUpError:
            self._drop(connection)
        except Exception:  # a defect costs one connection, not the door
            log.exception("connection failed")
            self._drop(connection)

    def _answer_now(self, connection: Connection, request: Request) -> bool:
        """Whether the connection is still the door's."""
        response = None if connection.has_body else self._application.cached(request)
        if response is None:
            self._take(connection)
            self._submit(lambda: self._work(connection, request, None), connection)
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
        self._submit(lambda: self._work(connection, request, response), connection)
        return False

    def _submit(self, work: Callable[[], None], connection: Connection) -> None:
        with self._lock:
            self._working += 1
        self._pool.submit(self._run, work, connection)

    def _take(self, connection: Connection) -> None:
        with self._lock:
            if self._waiting.pop(connection.number, None) is not None:
                self._epoll.unregister(connection.number)

    def _drop(self, connection: Connection) -> None:
        self._take(connection)
        connection.close()

    def _tick(self, now_s: float) -> None:
        if not self._accepting:
            self._epoll.register(self._listening, select.EPOLLIN)
            self._accepting = True
        for connection in list(self._waiting.values()):
            if now_s - connection.idle_since_s > self._idle_s:
                self._drop(connection)

    def _end(self) -> None:
        self._listening.close()
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        for connection in waiting:
            connection.close()
        until_s = time.monotonic() + STOP_S
        while self._working and time.monotonic() < until_s:
            time.sleep(0.02)
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ the pool's threads

    def _run(self, work: Callable[[], None], connection: Connection) -> None:
        try:
            work()
        except HungUpError as error:
            log.debug("connection ended why=%s", error)
            connection.close()
        except Exception:
            log.exception("connection failed")
            connection.close()
        finally:
            with self._lock:
                self._working -= 1

    def _work(self, connection: Connection, request: Request, begun: Response | None) -> None:
        """The request, and those that came with it; then the connection waits again. begun: the answer, of which the
        door has sent a part."""
        current: Request | None = request
        while current is not None:
            if not self._serve(connection, current, begun):
                connection.close_after_answer()
                return
            begun = None
            try:
                current = connection.next_request()
            except BadRequestError as error:
                self._refuse(connection, error)
                return
        self._wait_for_request(connection)

    def _serve(self, connection: Connection, request: Request, begun: Response | None) -> bool:
        """Whether the connection can be used again."""
        response = begun or self._application.answer(request, connection.body(request))
        try:
            if begun is not None:
                connection.send_rest(begun)
            else:
                connection.send(response, connection.head_of(response, self._application.marks(response)))
        except HeadraceError as error:  # in the middle of the bytes: all that can be done is to break off
            log.warning("answer broken off path=%s error=%s", request.path, error)
            return False
        finally:
            response.drop()
        if log.isEnabledFor(logging.INFO):
            log.info("request method=%s path=%s status=%d", request.method, request.path, response.status)
        return not response.close and connection.drain()

    def _refuse(self, connection: Connection, error: BadRequestError) -> None:
        """What is no request is answered once, and the connection ends."""
        response = self._application.refuse(error)
        response.close = True
        connection.send(response, connection.head_of(response, self._application.marks(response)))
        connection.close_after_answer()

    def _clean(self) -> None:
        try:
            self._application.clean()
        except Exception:  # the next time may do better
            log.exception("not cleaned")
