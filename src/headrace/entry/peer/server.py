"""Serve other nodes: they request ranges of files and listings over TCP or TLS.

One thread (`peer-door`) waits for all connections and accepts new ones; a small pool (`peer-serve`) does the work
that needs no wait: parse, call the service, sendfile. A connection that waits for a request, for room in its socket
or for the service has no thread: its protocol is a generator that is resumed later. A connection belongs to a thread
of the pool while RUNNING and to the waiting thread otherwise; `_lock` guards the change.

Connections that have not been greeted share a few threads of their own, little memory and one deadline, and are
displaced by others (`http/admission.py`). After the greeting each request has a deadline and each answer a minimum
rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.fair_queue import FairPool, FairQueue
from headrace.base.refusals import Refusals, reason_of
from headrace.entry.peer.channel import Channel, Need, PeerGoneError
from headrace.entry.peer.protocol import PeerProtocol
from headrace.entry.peer.service import LoopBridge, OpenFileRange, PeerService
from headrace.http.acceptor import Acceptor
from headrace.http.admission import Admission, Buffered, count_address
from headrace.http.pace import TransferPace
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.wire.peer_frame import SPOKEN
from headrace.wire.peer_messages import PeerWelcome

__all__ = ["OpenFileRange", "PeerServer", "PeerService"]

log = logging.getLogger(__name__)

THREADS = 16
"""The kernel moves the bytes, so more threads than cores help only where disks block them. A guess."""
BACKLOG = 1024
CONGESTION_NAME_BYTES = 16
NEWCOMER_THREADS = 4
"""Threads for handshakes and hellos."""
ADDRESS_NEWCOMERS_MAX = 2
NEWCOMER_SLICE_S = 0.002
GREETING_S = 10.0
"""Seconds for handshake and hello together."""
REQUEST_S = 60.0
"""Seconds for a whole request, from its first byte."""
BUFFERED_BYTES_MAX = 32 << 20
"""The limit for all incomplete requests together."""
WRITE_WAIT_MS = 100
"""Milliseconds that a thread itself waits for room in a socket: on a fast link that is cheaper than a handover."""
STALL_S = 30.0
"""Seconds after which a peer is disconnected that reads nothing, or stops in the middle of a request."""
IDLE_S = 300.0
TICK_S = 1.0


class ConnectionState(enum.Enum):
    RUNNING = 1
    WAITS_FOR_SOCKET = 2
    WAITS_FOR_SERVICE = 3


class ServerConnection:
    """Holds the state of one connection. peer: its address and port. deadline_s: when the wait for its socket
    becomes too long."""

    def __init__(
        self, channel: Channel, peer: str, address: str, protocol_for: Callable[[Channel], PeerProtocol]
    ) -> None:
        self.channel = channel
        self.peer = peer
        self.address = count_address(address)
        self.protocol = protocol_for(channel)
        self.steps = self.protocol.run()
        self.state = ConnectionState.WAITS_FOR_SOCKET
        self.greeting_deadline_s = time.monotonic() + GREETING_S
        self.deadline_s = self.greeting_deadline_s
        self.is_greeted = False
        self.is_buffered = False
        self.awaited: Future[Any] | None = None
        self._request_deadline_s = 0.0
        self._pace = TransferPace()
        self._parked_s = 0.0
        self._parked_bytes = 0

    def park(self, need: Need, *, stall_s: float, idle_s: float) -> None:
        """Set the deadline of the next wait. Raise PeerGoneError for a peer that sends or receives too little in too
        long a time."""
        now_s = self._parked_s = time.monotonic()
        if need is Need.WRITE:
            self._pace.moved(self.channel.sent_bytes - self._parked_bytes)
            self._parked_bytes = self.channel.sent_bytes
            if not self._pace.left_s:
                raise PeerGoneError("it reads its answer too slowly")
            stall_s = min(stall_s, self._pace.left_s)
        if not self.is_greeted:
            self.deadline_s = self.greeting_deadline_s
        elif need is Need.REQUEST:
            self.deadline_s, self._request_deadline_s = now_s + idle_s, 0.0
        elif need is Need.READ:
            self._request_deadline_s = self._request_deadline_s or now_s + REQUEST_S
            self.deadline_s = min(now_s + stall_s, self._request_deadline_s)
        else:
            self.deadline_s = now_s + stall_s
        if now_s >= self.deadline_s:
            raise PeerGoneError("its request was not complete in time")

    def unpark(self) -> None:
        self._pace.waited(time.monotonic() - self._parked_s)


def avoid_bbr(sock: socket.socket) -> None:
    """Use CUBIC on this socket where the system's TCP is BBR, if the kernel has it and allows it. With many
    transfers on one link, BBR starves some of them for seconds (decision 0008)."""
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_NAME_BYTES).startswith(b"bbr"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


class PeerServer:
    """Accepts connections of other nodes and serves them. me: returns this node's identity. cluster: its name; nodes
    of other clusters are refused. loop: the service's loop. tls: requests and reads the peer's certificate; None for
    plain TCP."""

    def __init__(
        self,
        me: Callable[[], PeerWelcome],
        cluster: str,
        service: PeerService,
        *,
        loop: asyncio.AbstractEventLoop,
        tls: MutualTls | None = None,
        protocols: tuple[int, int] = SPOKEN,
        stall_s: float = STALL_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._bridge = LoopBridge(service, loop)
        self._tls = tls
        self._protocols = protocols
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._connections: dict[int, ServerConnection] = {}
        self._stopping = False
        self._acceptor: Acceptor | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="peer-serve")
        self._newcomers: FairPool[str] = FairPool(
            ThreadPoolExecutor(NEWCOMER_THREADS, thread_name_prefix="peer-greet"),
            share=ADDRESS_NEWCOMERS_MAX,
        )
        self._admission: Admission[ServerConnection] = Admission(self._displace)
        self._buffered: Buffered[ServerConnection] = Buffered(BUFFERED_BYTES_MAX)
        self._refusals = Refusals(log, "peers")
        self._later: FairQueue[str, ServerConnection] = FairQueue()
        self._waiting_thread = threading.Thread(target=self._wait_for_all, name="peer-door", daemon=True)

    def start(self, host: str, port: int) -> str:
        """Start to serve peers; return "host:port" of the listening socket. port 0: any free port. Raise UsageError
        when it can't listen."""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            self._pool.shutdown()
            self._newcomers.shutdown(wait=True)
            raise UsageError(
                f"peers at {host}:{port}", why=error.strerror or str(error), hint="set listen = HOST:PORT"
            ) from error
        avoid_bbr(listener)  # accepted sockets inherit it
        listener.setblocking(False)
        self._epoll = select.epoll()
        self._wakeup_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wakeup_fd, select.EPOLLIN)
        self._acceptor = Acceptor(listener, self._epoll, self._admission, self._refusals, name="peers")
        self._waiting_thread.start()
        address = listener.getsockname()
        return f"[{address[0]}]:{address[1]}" if family == socket.AF_INET6 else f"{address[0]}:{address[1]}"

    def stop(self) -> None:
        """Stop serving: cut off transfers in progress and release every thread and descriptor. Blocks for a moment.
        Don't call it on the loop's thread, which may be needed for answers."""
        if self._acceptor is None:
            return
        self._stopping = True
        os.eventfd_write(self._wakeup_fd, 1)
        self._waiting_thread.join()
        for connection in self._all():
            self._cut(connection)
        self._pool.shutdown(wait=True)
        self._newcomers.shutdown(wait=True)
        for connection in self._all():  # those that waited, and those that the pool no longer ran
            self._end(connection, PeerGoneError("the node stops"))
        self._acceptor.close()
        self._acceptor = None
        self._epoll.close()
        os.close(self._wakeup_fd)

    def connections(self) -> int:
        return len(self._connections)

    # ------------------------------------------------------------ the waiting thread

    def _wait_for_all(self) -> None:
        acceptor, next_tick_s = self._acceptor, 0.0
        assert acceptor is not None
        while not self._stopping:
            ready_fds = [
                fd
                for fd, _ in self._epoll.poll(
                    0 if self._later else TICK_S if self._connections or acceptor.is_paused else None
                )
            ]
            self._wake(ready_fds)
            if acceptor.fileno() in ready_fds:
                for (
                    sock,
                    host,
                    port,
                ) in acceptor.accept():  # last: it may get the descriptor of one that ended
                    self._welcome(sock, host, port)
            now_s = time.monotonic()
            if now_s >= next_tick_s:
                next_tick_s = now_s + TICK_S
                acceptor.resume()
                self._tick(now_s)

    def _wake(self, ready_fds: list[int]) -> None:
        """Resume greeted connections first. The others follow by address in turn, for one time slice; the rest waits
        for the next round. The wakeup descriptor and the listener have no connection."""
        for fd in ready_fds:
            connection = self._connections.get(fd)
            if connection is None:
                continue
            if connection.is_greeted:
                self._resume(connection)
            else:
                self._later.add(connection.address, connection)
        deadline_s = time.monotonic() + NEWCOMER_SLICE_S
        while self._later:
            self._resume(self._later.next())
            if time.monotonic() >= deadline_s:
                return

    def _welcome(self, sock: socket.socket, address: str, port: int) -> None:
        """Register a new connection, which waits for its peer's first bytes."""
        try:
            channel = Channel(sock, self._tls)
        except OSError:  # disconnected already
            sock.close()
            return
        connection = ServerConnection(
            channel,
            f"{address}:{port}",
            address,
            lambda new_channel: self._protocol_for(new_channel, address),
        )
        if not self._admission.enter(connection):
            self._refusals.add("too many connections", address=address)
            channel.close()
            return
        with self._lock:
            self._connections[channel.fd] = connection
            self._epoll.register(channel.fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _protocol_for(self, channel: Channel, address: str) -> PeerProtocol:
        return PeerProtocol(
            channel,
            self._bridge,
            me=self._me,
            cluster=self._cluster,
            protocols=self._protocols,
            on_refused=lambda why, who: self._refusals.add(why, address=address, who=who),
        )

    def _displace(self, connection: ServerConnection) -> None:
        why = "it sent no hello while newer connections arrived"
        self._refusals.add(why, address=connection.address)
        with self._lock:
            waits = connection.state is ConnectionState.WAITS_FOR_SOCKET
            if waits:
                connection.state = ConnectionState.RUNNING
        if waits:
            self._end(connection, PeerGoneError(why), at_once=True)
        else:
            connection.channel.shut()

    def _resume(self, connection: ServerConnection) -> None:
        with self._lock:
            if self._connections.get(connection.channel.fd) is not connection:
                return
            awaited = connection.awaited if connection.state is ConnectionState.WAITS_FOR_SERVICE else None
            run = connection.state is ConnectionState.WAITS_FOR_SOCKET
            if run:
                connection.state = ConnectionState.RUNNING
        if run:
            connection.unpark()
            if connection.is_greeted:
                self._pool.submit(self._run, connection)
            else:
                self._newcomers.submit(connection.address, lambda: self._run(connection))
        elif awaited is not None:
            awaited.cancel()  # the peer disconnected: its request need not be served

    def _tick(self, now_s: float) -> None:
        for connection in self._all():
            if connection.state is ConnectionState.WAITS_FOR_SOCKET and now_s >= connection.deadline_s:
                connection.channel.shut()  # wakes the connection, which sees its socket ended

    # ------------------------------------------------------------ the pools' threads

    def _run(self, connection: ServerConnection) -> None:
        """Run the protocol until it waits or ends."""
        try:
            while not self._stopping:
                need = next(connection.steps)
                if connection.protocol.is_greeted and not connection.is_greeted:
                    self._mark_greeted(connection)
                if isinstance(need, Future):
                    if not need.done():
                        return self._wait_for_service(connection, need)
                elif need is not Need.WRITE or not _has_room(connection.channel.fd):
                    return self._wait_for_socket(connection, need)
            self._end(connection, PeerGoneError("the node stops"))
        except StopIteration:
            self._end(connection, None)
        except (PeerGoneError, OSError, HeadraceError, StrangerError) as error:
            self._log_refused(connection, error)
            self._end(connection, error)
        except Exception as error:
            log.exception("a connection of a peer failed peer=%s", connection.peer)
            self._end(connection, error)

    def _log_refused(self, connection: ServerConnection, error: Exception) -> None:
        """Log a refused peer. A peer that was served and disconnected is not logged."""
        why = ""
        if isinstance(error, StrangerError) or (
            isinstance(error, HeadraceError) and not connection.is_greeted
        ):
            why = str(error)
        elif isinstance(error, ssl.SSLError) and not connection.is_greeted:
            why = reason_of(error)
        if why:
            self._refusals.add(why, address=connection.peer)

    def _wait_for_socket(self, connection: ServerConnection, need: Need) -> None:
        connection.park(need, stall_s=self._stall_s, idle_s=self._idle_s)
        self._account_buffered(connection)
        events = select.EPOLLOUT if need is Need.WRITE else select.EPOLLIN
        with self._lock:
            connection.state = ConnectionState.WAITS_FOR_SOCKET
            self._epoll.modify(connection.channel.fd, events | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _mark_greeted(self, connection: ServerConnection) -> None:
        connection.is_greeted = True
        self._admission.mark_authenticated(connection)

    def _account_buffered(self, connection: ServerConnection) -> None:
        size_bytes = connection.channel.received_bytes
        if not size_bytes and not connection.is_buffered:
            return
        connection.is_buffered = size_bytes > 0
        for oldest in self._buffered.hold(connection, size_bytes):
            self._refusals.add("its request came too slowly", address=oldest.peer)
            oldest.channel.shut()

    def _wait_for_service(self, connection: ServerConnection, awaited: Future[Any]) -> None:
        with self._lock:
            connection.state, connection.awaited = ConnectionState.WAITS_FOR_SERVICE, awaited
            self._epoll.modify(connection.channel.fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
        awaited.add_done_callback(lambda _: self._answered(connection))

    def _answered(self, connection: ServerConnection) -> None:
        """Resume the connection after the service's answer, on the loop or wherever the answer was cancelled."""
        with self._lock:
            connection.state, connection.awaited = ConnectionState.RUNNING, None
        with contextlib.suppress(RuntimeError):  # the pool is shut down: stop() ends the connection
            self._pool.submit(self._run, connection)

    def _end(self, connection: ServerConnection, error: Exception | None, *, at_once: bool = False) -> None:
        with self._lock:
            if self._connections.get(connection.channel.fd) is connection:
                del self._connections[connection.channel.fd]
        self._admission.leave(connection)
        if connection.is_buffered:
            self._buffered.hold(connection, 0)
        log.debug("a connection of a peer ended peer=%s why=%s", connection.peer, error)
        connection.steps.close()
        connection.channel.close(at_once=at_once)

    def _cut(self, connection: ServerConnection) -> None:
        connection.channel.shut()
        with self._lock:
            awaited = connection.awaited
        if awaited is not None:
            awaited.cancel()

    def _all(self) -> list[ServerConnection]:
        with self._lock:
            return list(self._connections.values())


def _has_room(fd: int) -> bool:
    """Return whether bytes can be written, after a short wait at most."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(WRITE_WAIT_MS))
