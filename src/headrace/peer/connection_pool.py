"""Execute one call to one peer, from connection to answer: the part on the event loop. Threads only move bytes
(`calls.py`).

A connection serves one request at a time. It is closed when its request is cancelled or fails.

While a peer is silent, no thread waits for it, and soon a ping on another connection checks whether the peer is alive.
A node that hangs or is cut off is thereby detected in SILENCE_S + PING_S. A peer that waits for a slow origin gets the
time that it needs (decision 0037).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

from headrace.base.breaker import Breaker, BreakerLimits
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError
from headrace.base.single_flight import SingleFlight
from headrace.base.tasks import being_cancelled
from headrace.identity.mutual import MutualTls
from headrace.peer.calls import Call, UnaryCall
from headrace.peer.connection import SILENCE_S, PeerConnection
from headrace.wire.peer_messages import PeerHello, PeerWelcome, Ping

IDLE_CONNECTIONS_MAX = 32
IDLE_S_MAX = 60.0
"""Seconds that an unused connection stays open. The serving side waits longer (entry/peer/server.py), so mostly this
side closes it."""
CONNECTING_MAX = 4
"""Attempts at once to one peer: a peer that accepts and stays silent can't occupy all threads."""
PING_S = 0.8
SILENCE_S_MIN = 0.05
"""Seconds of silence that are allowed if another connection received bytes from the peer just before."""
PINGS_MAX = 3
LATE_S = 0.3
"""Seconds by which a timer fires late if this node was stalled; then it proves nothing about the peer."""
PING_THREADS = 16
"""Pings have their own threads and places to connect, so that a peer never seems dead for lack of a thread: a call
holds its place while it waits for one."""
CHECK_LIMIT_S = 10.0
"""Seconds after which a check is given up. It ends sooner by itself, unless the event loop is stalled."""
BREAKER = BreakerLimits(failures_max=3, pause_s=0.5, pause_s_max=15.0, probe_limit_s=30.0)
"""A single failure may be a connection that died when the peer restarted."""
GRACE_S = 0.1
"""Seconds after the deadline at which the loop ends a call. Threads keep the deadline themselves."""

Result = TypeVar("Result")


class Peer:
    """Hold this node's knowledge of one peer. instance: None accepts any instance that answers at the address."""

    def __init__(self, id: str, address: str, instance: str | None) -> None:
        self.id = id
        self.address = address
        self.instance = instance
        self.who = f"{id} at {address}" if id else f"at {address}"
        self.breaker = Breaker(BREAKER)
        self.idle: list[PeerConnection] = []
        self.connecting = asyncio.Semaphore(CONNECTING_MAX)
        self.connecting_to_ping = asyncio.Semaphore(CONNECTING_MAX)
        self.last_error = ""  # why the last request failed; "" after a success
        self.last_received_s = float("-inf")
        self.connect_failed_s = float("-inf")
        self.connect_error: HeadraceError | None = None
        self.is_forgotten = False  # no connection of it is kept any more
        self.requests = self.errors = self.bytes_received = self.files_received = 0

    def forget(self) -> None:
        """Close the idle connections, and each of the others at the end of its request."""
        self.is_forgotten = True
        self.close_idle()

    def close_idle(self, before_s: float = float("inf")) -> None:
        for connection in self.idle:
            if connection.idle_since_s < before_s:
                connection.close()
        self.idle = [connection for connection in self.idle if connection.idle_since_s >= before_s]


class ConnectionPool:
    """Holds the connections to all peers and the threads that use them."""

    def __init__(self, hello: PeerHello, *, tls: MutualTls | None, threads: int) -> None:
        self._hello = hello
        self._tls = tls
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="peer")
        self._ping_threads = ThreadPoolExecutor(PING_THREADS, thread_name_prefix="peer-ping")
        self._busy: set[PeerConnection] = set()
        self._checks: SingleFlight[Peer, None] = SingleFlight()
        self._closed = False

    async def execute(self, peer: Peer, call: Call, deadline: Deadline, *, watch: bool = True) -> None:
        """Run a call to its end. Raise PeerError when the peer or the network failed it; an error that the peer
        reports is kept by the call. watch: check whether the peer is alive while it is silent."""
        peer.requests += 1
        limit = asyncio.timeout(None if (left_s := deadline.timeout_s()) is None else left_s + GRACE_S)
        try:
            async with limit:
                await self._execute(peer, call, deadline, watch=watch)
        except (HeadraceError, TimeoutError) as error:
            peer.errors += 1
            now = time.monotonic()
            quiet = now - peer.last_received_s > SILENCE_S + PING_S and not _was_late(limit)
            if not limit.expired() or quiet or not peer.breaker.closed:  # a probe needs a result
                silent = limit.expired() or (isinstance(error, PeerError) and error.silent)
                peer.breaker.failed(now, chance=random.random(), silent=quiet and silent)
            if not limit.expired():
                peer.last_error = str(error)
                raise
            timeout = PeerError(f"node {peer.who}", why="no answer within the time allowed", silent=True)
            peer.last_error = str(timeout)
            raise timeout from None
        peer.breaker.succeeded()
        peer.last_error = ""

    async def ping(self, peer: Peer, deadline: Deadline) -> PeerWelcome:
        call = UnaryCall(Ping(), PeerWelcome)
        await self.execute(peer, call, deadline, watch=False)
        return call.result()

    def close(self) -> None:
        """Close the pool without waiting. Calls in flight fail with PeerError."""
        self._closed = True
        for connection in self._busy:
            connection.abort()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._ping_threads.shutdown(wait=False, cancel_futures=True)

    async def _execute(self, peer: Peer, call: Call, deadline: Deadline, *, watch: bool) -> None:
        threads = self._threads if watch else self._ping_threads
        while True:
            connection = _acquire_idle(peer)
            is_new = connection is None
            if connection is None:
                connection = await self._connect(peer, deadline, threads)
            if watch:
                connection.begin_request(deadline, self._thread_check(peer))
            else:
                connection.begin_request(deadline)
            self._busy.add(connection)
            try:
                await self._drive(peer, connection, call, threads, watch=watch)
                break
            except HeadraceError as error:
                connection.close()
                if is_new or connection.answered or (isinstance(error, PeerError) and error.silent):
                    raise
                peer.close_idle()  # this connection died while it was idle; the other idle ones most likely did too
                call.restart()
            finally:
                self._busy.discard(connection)
        self._release(peer, connection)

    async def _drive(
        self, peer: Peer, connection: PeerConnection, call: Call, threads: ThreadPoolExecutor, *, watch: bool
    ) -> None:
        while not await self._in_thread(lambda: call.run(connection), connection, threads):
            if connection.answered:
                peer.last_received_s = time.monotonic()
            await self._wait_readable(peer, connection, watch=watch)
        peer.last_received_s = time.monotonic()

    async def _in_thread(
        self, call: Callable[[], Result], connection: PeerConnection, threads: ThreadPoolExecutor
    ) -> Result:
        work = _submit(threads, call, connection.who)
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            connection.abort()
            work.cancel()
            work.add_done_callback(lambda _: connection.close())  # only once the thread has stopped using it
            if self._closed and not being_cancelled():
                raise PeerError(f"node {connection.who}", why="this node stops") from None
            raise

    async def _wait_readable(self, peer: Peer, connection: PeerConnection, *, watch: bool) -> None:
        """Wait until the peer sends something. Raise PeerError when it stays silent and is dead."""
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        fd = connection.fileno()
        limit_s = SILENCE_S if watch else None
        loop.add_reader(fd, arrived.set)
        try:
            while not arrived.is_set():
                try:
                    async with asyncio.timeout(limit_s):
                        await arrived.wait()
                except TimeoutError:
                    await self._check_alive(peer)
                    limit_s = max(SILENCE_S_MIN, peer.last_received_s + SILENCE_S - time.monotonic())
        except BaseException:
            loop.remove_reader(fd)
            connection.close()
            raise
        loop.remove_reader(fd)
        connection.restore_blocking()

    async def _check_alive(self, peer: Peer) -> None:
        """Raise PeerError when the peer is dead. One ping serves all callers that wait."""
        if time.monotonic() - peer.last_received_s < SILENCE_S:
            return
        await self._checks.run(peer, lambda: self._ping_patiently(peer))

    def _thread_check(self, peer: Peer) -> Callable[[], None]:
        """Return _check_alive as a blocking function, for a thread that waits in the middle of an answer."""
        loop = asyncio.get_running_loop()

        def check() -> None:
            work = self._check_alive(peer)
            try:
                checked = asyncio.run_coroutine_threadsafe(work, loop)
            except RuntimeError:
                work.close()
                raise PeerError(f"node {peer.who}", why="this node stops") from None
            try:
                checked.result(CHECK_LIMIT_S)
            except (CancelledError, TimeoutError):
                raise PeerError(f"node {peer.who}", why="this node stops") from None

        return check

    async def _ping_patiently(self, peer: Peer) -> None:
        for pings_left in reversed(range(PINGS_MAX)):
            late_s = time.monotonic() + PING_S + GRACE_S + LATE_S
            try:
                await self.ping(peer, Deadline.after(PING_S))
                return
            except PeerError as error:
                if not error.silent or not pings_left or time.monotonic() < late_s:
                    raise

    async def _connect(self, peer: Peer, deadline: Deadline, threads: ThreadPoolExecutor) -> PeerConnection:
        began_s = time.monotonic()
        async with peer.connecting if threads is self._threads else peer.connecting_to_ping:
            if peer.connect_error is not None and peer.connect_failed_s > began_s:
                raise peer.connect_error.copied()  # another attempt failed while this one waited for its turn
            work = _submit(
                threads,
                lambda: PeerConnection.connect(
                    peer.address,
                    self._hello,
                    node=peer.id,
                    who=peer.who,
                    tls=self._tls,
                    deadline=deadline,
                ),
                peer.who,
            )
            try:
                connection = await asyncio.wrap_future(work)
            except asyncio.CancelledError:
                work.cancel()
                work.add_done_callback(_close_result)
                if self._closed and not being_cancelled():
                    raise PeerError(f"node {peer.who}", why="this node stops") from None
                raise
            except HeadraceError as error:
                peer.connect_failed_s, peer.connect_error = time.monotonic(), error.copied()
                raise
        welcome = connection.welcome
        if peer.instance is not None and (welcome.node, welcome.instance) != (peer.id, peer.instance):
            connection.close()
            raise PeerError(
                f"node {peer.who}",
                why=f"another node answers there: {welcome.node}, instance {welcome.instance}",
            )
        peer.last_received_s = time.monotonic()
        return connection

    def _release(self, peer: Peer, connection: PeerConnection) -> None:
        if self._closed or peer.is_forgotten or len(peer.idle) >= IDLE_CONNECTIONS_MAX:
            connection.close()
            return
        connection.idle_since_s = time.monotonic()
        peer.idle.append(connection)


def _submit(threads: ThreadPoolExecutor, call: Callable[[], Result], who: str) -> Future[Result]:
    try:
        return threads.submit(call)
    except RuntimeError as error:
        raise PeerError(f"node {who}", why="this node stops") from error


def _acquire_idle(peer: Peer) -> PeerConnection | None:
    """Return the idle connection that was used last, and close those that ended meanwhile. None: there is none."""
    while peer.idle:
        connection = peer.idle.pop()
        if not connection.is_stale():
            connection.answered = False
            return connection
        connection.close()
    return None


def _was_late(limit: asyncio.Timeout) -> bool:
    when = limit.when()
    return limit.expired() and when is not None and asyncio.get_running_loop().time() > when + LATE_S


def _close_result(work: Future[PeerConnection]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().close()
