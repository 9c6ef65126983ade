"""Serve requests in threads, from a complete head to the last byte of the answer: handshakes, bodies, answers.

Unauthenticated connections have a few threads of their own, and take turns by address. So do long bodies.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headrace.base.errors import HeadraceError, VersionChangedError
from headrace.base.fair_queue import FairPool
from headrace.base.refusals import Refusals
from headrace.http import deadlines
from headrace.http.application import Application
from headrace.http.connection import ConnectionPhase, HttpServerConnection
from headrace.http.connection_table import ConnectionTable
from headrace.http.errors import BadRequestError, ClientLeftError, HungUpError
from headrace.http.messages import Request, Response
from headrace.http.tls import TlsConnection

log = logging.getLogger(__name__)

THREADS = 256
"""Most requests that wait for the node or the disk at one time. Further requests wait for a thread."""
BODY_THREADS = 256
"""Most long bodies whose rest is received at one time."""
ADDRESS_BODIES_MAX = 128
"""Most of them from one address. Further ones wait, which leaves threads to other addresses."""
NEWCOMER_THREADS = 4
"""Threads for unauthenticated connections."""
ADDRESS_NEWCOMERS_MAX = 2
"""Most threads for the unauthenticated connections of one address."""


class RequestHandler:
    """Serves the connections that the waiting thread passes on. Each method gets a connection that the caller has
    claimed, and returns at once. name: the interface, for the names of threads."""

    def __init__(
        self,
        application: Application,
        table: ConnectionTable,
        refusals: Refusals,
        *,
        name: str,
    ) -> None:
        self._application = application
        self._table = table
        self._refusals = refusals
        self._lock = threading.Lock()
        self._working = 0
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=name)
        self._newcomers: FairPool[str] = FairPool(
            ThreadPoolExecutor(NEWCOMER_THREADS, thread_name_prefix=f"{name}-new"),
            share=ADDRESS_NEWCOMERS_MAX,
        )
        self._bodies: FairPool[str] = FairPool(
            ThreadPoolExecutor(BODY_THREADS, thread_name_prefix=f"{name}-body"),
            share=ADDRESS_BODIES_MAX,
        )

    @property
    def is_working(self) -> bool:
        return self._working > 0

    def begin(self, connection: HttpServerConnection, request: Request) -> None:
        """Serve a request. A body's credential is checked first; unauthenticated clients use threads of their own."""
        if not connection.is_authenticated:
            self._submit_fairly(self._newcomers, lambda: self._admit(connection, request), connection)
        elif connection.framing.has_body:
            self._submit(lambda: self._admit(connection, request), connection)
        else:
            self._submit(lambda: self._work(connection, request), connection)

    def begin_body(self, connection: HttpServerConnection, request: Request) -> None:
        """Serve a request of which the beginning of the body has arrived."""
        if connection.framing.is_whole(connection.buffer):
            self._submit(lambda: self._work(connection, request), connection)
        else:
            self._submit_fairly(self._bodies, lambda: self._work(connection, request), connection)

    def begin_refusal(self, connection: HttpServerConnection, error: BadRequestError) -> None:
        """Answer an invalid request and close the connection."""
        self._submit_fairly(self._newcomers, lambda: self._refuse(connection, error), connection)

    def begin_send(self, connection: HttpServerConnection, response: Response) -> None:
        """Send the rest of an answer."""
        self._submit(lambda: self._send(connection, response), connection)

    def begin_handshake(self, connection: TlsConnection) -> None:
        """Continue a TLS handshake."""
        self._submit_fairly(self._newcomers, lambda: self._shake_hands(connection), connection)

    def begin_clean(self) -> None:
        """Run the periodic cleanup of the application."""
        self._pool.submit(self._clean)

    def shutdown(self) -> None:
        """Start no further work; don't wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._newcomers.shutdown(wait=False)
        self._bodies.shutdown(wait=False)

    # ------------------------------------------------------------ threads

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

    def _run(self, work: Callable[[], None], connection: HttpServerConnection) -> None:
        try:
            work()
        except HungUpError as error:
            log.debug("a connection ended why=%s", error)
            self._table.drop(connection)
        except Exception:
            log.exception("a connection failed")
            self._table.drop(connection)
        finally:
            with self._lock:
                self._working -= 1

    def _clean(self) -> None:
        try:
            self._application.clean()
        except Exception:  # the next attempt may succeed
            log.exception("the periodic cleanup failed")

    # ------------------------------------------------------------ the way of a request

    def _shake_hands(self, connection: TlsConnection) -> None:
        left_s = connection.deadline_s - time.monotonic()
        try:
            if left_s <= 0:
                raise HungUpError("the TLS handshake did not finish in time")
            is_done = connection.shake_hands()
        except ClientLeftError:  # it was not refused
            raise
        except HungUpError as error:
            self._refusals.add(str(error), address=connection.client)
            raise
        if is_done:
            self._table.park(connection, ConnectionPhase.HEAD, deadlines.HEAD_S)
        else:
            self._table.park(connection, ConnectionPhase.HELLO, left_s, connection.events)

    def _admit(self, connection: HttpServerConnection, request: Request) -> None:
        """Let the application refuse the request by its head; the body of a refused client is not parsed."""
        refusal = self._application.admit(request)
        if request.who and not connection.is_authenticated:
            self._table.mark_authenticated(connection)
        if refusal is not None:
            self._send_new(connection, request, refusal)
        elif not connection.framing.has_body:
            self._submit(lambda: self._work(connection, request), connection)
        else:
            if not request.who:
                connection.send_continue()  # the body holds the credential
            if connection.framing.needs_more(connection.buffer):
                connection.request = request
                self._table.park(connection, ConnectionPhase.BODY, deadlines.BODY_S)
            else:
                self.begin_body(connection, request)

    def _work(self, connection: HttpServerConnection, request: Request) -> None:
        self._send_new(connection, request, self._application.answer(request, connection.body(request)))

    def _refuse(self, connection: HttpServerConnection, error: BadRequestError) -> None:
        response = self._application.refuse(error)
        response.close = True
        self._send_new(connection, None, response)

    def _send_new(
        self, connection: HttpServerConnection, request: Request | None, response: Response
    ) -> None:
        connection.request = request
        if request is not None and request.method == "HEAD":
            response.omit_body()  # also of a refusal: the client would take its body for the next answer
        connection.prepare(response, connection.head_of(response, self._application.marks(response)))
        self._send(connection, response)

    def _send(self, connection: HttpServerConnection, response: Response) -> None:
        """Send the answer, of which a part may have been sent, then continue with what follows on the connection."""
        is_sent = False
        try:
            is_sent = connection.send_rest(response)
            if not is_sent:
                connection.park_answer(response)
        except (
            HeadraceError
        ) as error:  # the head was sent, so only the end of the connection can report the error
            path = b"" if connection.request is None else connection.request.path
            level = logging.INFO if isinstance(error, VersionChangedError) else logging.WARNING
            log.log(level, "a response was interrupted path=%s error=%s", path, error)
            response.release()
            self._table.linger(connection, deadlines.LINGER_S)
            return
        except BaseException:
            response.release()
            raise
        if not is_sent:
            self._table.add(connection)
            return
        connection.response = None
        response.release()
        if log.isEnabledFor(logging.INFO) and (request := connection.request) is not None:
            log.info(
                "a request was answered method=%s path=%s status=%d",
                request.method,
                request.path,
                response.status,
            )
        if not connection.skip_body():
            self._table.linger(connection, deadlines.LINGER_S)
        elif response.close or not connection.framing.is_reusable:
            self._table.drop(connection)
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
            is_idle = connection.is_authenticated and not connection.buffer
            limit_s = deadlines.IDLE_S if is_idle else deadlines.HEAD_S
            self._table.park(connection, ConnectionPhase.HEAD, limit_s)
            return
        self.begin(connection, request)
