"""The peers' door: other nodes ask for ranges of files and for listings, over TCP or TLS.

One thread (`peer-door`) waits for all connections at once and accepts new ones; a small pool (`peer-serve`) does what
can be done now: parse, ask the desk, sendfile. A connection that waits (for a request, for room in its socket, for the
desk) has no thread: its conversation is a generator that goes on later. A connection belongs to one of them at a time:
to a thread of the pool while RUNNING, to the door while it waits; `_lock` guards the change.

Who has not been greeted yet has few threads of its own, little memory and a deadline for all of it, and makes room for
others (`http/admission.py`); after the greeting a request has a deadline as a whole, an answer a least rate.
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
from headrace.http.admission import Admission, Buffered, count_address, reset
from headrace.http.pace import TransferPace
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.wire.peer_frame import SPOKEN
from headrace.wire.peer_messages import PeerWelcome

__all__ = ["OpenFileRange", "PeerServer", "PeerService"]

log = logging.getLogger(__name__)

THREADS = 16
"""Bytes are moved by the kernel: more threads than cores only where disks make them wait. A guess."""
BACKLOG = 1024
CONGESTION_NAME_BYTES = 16
NEWCOMER_THREADS = 4
"""For handshakes and hellos."""
ADDRESS_NEWCOMERS_MAX = 2
NEWCOMER_SLICE_S = 0.002
ACCEPT_SLICE_S = 0.002
GREETING_S = 10.0
"""For handshake and hello as a whole."""
REQUEST_S = 60.0
"""For a request as a whole, from its first byte."""
BUFFERED_BYTES_MAX = 32 << 20
"""Of all requests that are not whole yet."""
WRITE_WAIT_MS = 100
"""How long a thread waits itself for room in a socket: on a fast link that is cheaper than to hand over."""
STALL_S = 30.0
"""A peer that reads nothing, or breaks off in the middle of a request, for so long is cut off."""
IDLE_S = 300.0
TICK_S = 1.0


class ConnectionState(enum.Enum):
    RUNNING = 1
    WAITS_FOR_SOCKET = 2
    WAITS_FOR_DESK = 3


class ServerConnection:
    """peer: its address and port. until_s: when the wait for its socket becomes too long."""

    def __init__(
        self, channel: Channel, peer: str, address: str, talk: Callable[[Channel], PeerProtocol]
    ) -> None:
        self.channel = channel
        self.peer = peer
        self.address = count_address(address)
        self.talk = talk(channel)
        self.steps = self.talk.run()
        self.state = ConnectionState.WAITS_FOR_SOCKET
        self.greeting_until_s = time.monotonic() + GREETING_S
        self.until_s = self.greeting_until_s
        self.proven = False
        self.holds = False
        self.awaited: Future[Any] | None = None
        self._request_until_s = 0.0
        self._pace = TransferPace()
        self._parked_s = 0.0
        self._parked_bytes = 0

    def park(self, need: Need, *, stall_s: float, idle_s: float) -> None:
        """Sets until when it may wait. HungUpError for a peer that says or takes too little in
        too long."""
        now_s = self._parked_s = time.monotonic()
        if need is Need.WRITE:
            self._pace.moved(self.channel.sent_bytes - self._parked_bytes)
            self._parked_bytes = self.channel.sent_bytes
            if not self._pace.left_s:
                raise PeerGoneError("it takes its answer too slowly")
            stall_s = min(stall_s, self._pace.left_s)
        if not self.proven:
            self.until_s = self.greeting_until_s
        elif need is Need.REQUEST:
            self.until_s, self._request_until_s = now_s + idle_s, 0.0
        elif need is Need.READ:
            self._request_until_s = self._request_until_s or now_s + REQUEST_S
            self.until_s = min(now_s + stall_s, self._request_until_s)
        else:
            self.until_s = now_s + stall_s
        if now_s >= self.until_s:
            raise PeerGoneError("what it says is not whole in time")

    def unpark(self) -> None:
        self._pace.waited(time.monotonic() - self._parked_s)


def keep_fair(sock: socket.socket) -> None:
    """Many transfers share a link: where the system's TCP is BBR, which starves some of them then for seconds
    (decision 0008), this socket has CUBIC instead, if the kernel has it and allows it."""
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_NAME_BYTES).startswith(b"bbr"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")


class PeerServer:
    """me: who this node is. cluster: its name; nodes of others are refused. loop: the desk's. tls: what
    asks for the peer's certificate and reads it, None for plain TCP."""

    def __init__(
        self,
        me: Callable[[], PeerWelcome],
        cluster: str,
        desk: PeerService,
        *,
        loop: asyncio.AbstractEventLoop,
        tls: MutualTls | None = None,
        protocols: tuple[int, int] = SPOKEN,
        stall_s: float = STALL_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._calls = LoopBridge(desk, loop)
        self._tls = tls
        self._protocols = protocols
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._connections: dict[int, ServerConnection] = {}
        self._stopping = False
        self._accepting = False
        self._listening: socket.socket | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="peer-serve")
        self._newcomers: FairPool[str] = FairPool(
            ThreadPoolExecutor(NEWCOMER_THREADS, thread_name_prefix="peer-greet"),
            share=ADDRESS_NEWCOMERS_MAX,
        )
        self._admission: Admission[ServerConnection] = Admission(self._displace)
        self._buffered: Buffered[ServerConnection] = Buffered(BUFFERED_BYTES_MAX)
        self._refusals = Refusals(log, "peers")
        self._later: FairQueue[str, ServerConnection] = FairQueue()
        self._door = threading.Thread(target=self._wait_for_all, name="peer-door", daemon=True)

    def start(self, host: str, port: int) -> str:
        """Peers are answered on return; "host:port" where. port 0: any. UsageError when it can't listen there."""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            self._pool.shutdown()
            self._newcomers.shutdown(wait=True)
            raise UsageError(
                f"peers at {host}:{port}", why=error.strerror or str(error), hint="set listen = HOST:PORT"
            ) from error
        keep_fair(listening)  # what is accepted has it from here
        listening.setblocking(False)
        self._listening = listening
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._accept_again()
        self._door.start()
        bound = listening.getsockname()
        return f"[{bound[0]}]:{bound[1]}" if family == socket.AF_INET6 else f"{bound[0]}:{bound[1]}"

    def stop(self) -> None:
        """Transfers under way are cut off; no thread and no descriptor is left on return. Blocks for a moment: not
        for the loop's thread, which may be needed to answer."""
        if self._listening is None:
            return
        self._stopping = True
        os.eventfd_write(self._bell, 1)
        self._door.join()
        for connection in self._all():
            self._cut(connection)
        self._pool.shutdown(wait=True)
        self._newcomers.shutdown(wait=True)
        for connection in self._all():  # those that waited, and whose next step the pool no longer took
            self._end(connection, PeerGoneError("the node stops"))
        self._listening.close()
        self._listening = None
        self._epoll.close()
        os.close(self._bell)

    def connections(self) -> int:
        return len(self._connections)

    # ------------------------------------------------------------ the door's thread

    def _wait_for_all(self) -> None:
        next_tick = 0.0
        while not self._stopping:
            woken = [
                number
                for number, _ in self._epoll.poll(
                    0 if self._later else TICK_S if self._connections or not self._accepting else None
                )
            ]
            self._wake(woken)
            if self._listening is not None and self._listening.fileno() in woken:
                self._accept()  # last: a new connection may get the number of one that ended
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._tick(now)

    def _wake(self, woken: list[int]) -> None:
        """Those that were greeted first; of the others each address in turn, for a moment only, and then in the next
        turn. The bell and the listening socket are no connections."""
        for number in woken:
            connection = self._connections.get(number)
            if connection is None:
                continue
            if connection.proven:
                self._woken(connection)
            else:
                self._later.add(connection.address, connection)
        until_s = time.monotonic() + NEWCOMER_SLICE_S
        while self._later:
            self._woken(self._later.next())
            if time.monotonic() >= until_s:
                return

    def _accept(self) -> None:
        assert self._listening is not None
        until_s = time.monotonic() + ACCEPT_SLICE_S
        while time.monotonic() < until_s:
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: later, or this would spin
                log.warning("connection of a peer not accepted error=%s", error)
                self._epoll.unregister(self._listening)
                self._accepting = False
                return
            if self._admission.arrive(str(address[0])):
                self._welcome(sock, str(address[0]), int(address[1]))
            else:
                self._refusals.add("too many new connections a second", address=str(address[0]))
                reset(sock)

    def _welcome(self, sock: socket.socket, address: str, port: int) -> None:
        """It waits for what the peer says."""
        try:
            channel = Channel(sock, self._tls)
        except OSError:  # gone already
            sock.close()
            return
        connection = ServerConnection(
            channel, f"{address}:{port}", address, lambda one: self._talk(one, address)
        )
        if not self._admission.enter(connection):
            self._refusals.add("too many connections", address=address)
            channel.close()
            return
        with self._lock:
            self._connections[channel.number] = connection
            self._epoll.register(channel.number, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _talk(self, channel: Channel, address: str) -> PeerProtocol:
        return PeerProtocol(
            channel,
            self._calls,
            me=self._me,
            cluster=self._cluster,
            protocols=self._protocols,
            refused=lambda why, who: self._refusals.add(why, address=address, who=who),
        )

    def _displace(self, connection: ServerConnection) -> None:
        why = "said no hello while newer connections came"
        self._refusals.add(why, address=connection.address)
        with self._lock:
            waits = connection.state is ConnectionState.WAITS_FOR_SOCKET
            if waits:
                connection.state = ConnectionState.RUNNING
        if waits:
            self._end(connection, PeerGoneError(why), at_once=True)
        else:
            connection.channel.shut()

    def _woken(self, connection: ServerConnection) -> None:
        with self._lock:
            if self._connections.get(connection.channel.number) is not connection:
                return
            awaited = connection.awaited if connection.state is ConnectionState.WAITS_FOR_DESK else None
            run = connection.state is ConnectionState.WAITS_FOR_SOCKET
            if run:
                connection.state = ConnectionState.RUNNING
        if run:
            connection.unpark()
            if connection.proven:
                self._pool.submit(self._run, connection)
            else:
                self._newcomers.submit(connection.address, lambda: self._run(connection))
        elif awaited is not None:
            awaited.cancel()  # the peer left: what it asked for need not be done

    def _tick(self, now: float) -> None:
        if not self._accepting:
            self._accept_again()
        for connection in self._all():
            if connection.state is ConnectionState.WAITS_FOR_SOCKET and now >= connection.until_s:
                connection.channel.shut()  # wakes it, and it finds its socket ended

    def _accept_again(self) -> None:
        assert self._listening is not None
        self._epoll.register(self._listening, select.EPOLLIN)
        self._accepting = True

    # ------------------------------------------------------------ the pools' threads

    def _run(self, connection: ServerConnection) -> None:
        """Until the conversation waits or ends."""
        try:
            while not self._stopping:
                need = next(connection.steps)
                if connection.talk.greeted and not connection.proven:
                    self._prove(connection)
                if isinstance(need, Future):
                    if not need.done():
                        return self._wait_for_desk(connection, need)
                elif need is not Need.WRITE or not _has_room(connection.channel.number):
                    return self._wait_for_socket(connection, need)
            self._end(connection, PeerGoneError("the node stops"))
        except StopIteration:
            self._end(connection, None)
        except (PeerGoneError, OSError, HeadraceError, StrangerError) as error:
            self._note(connection, error)
            self._end(connection, error)
        except Exception as error:
            log.exception("connection of a peer failed peer=%s", connection.peer)
            self._end(connection, error)

    def _note(self, connection: ServerConnection, error: Exception) -> None:
        """Who is refused goes into the log; who was served before and left does not."""
        why = ""
        if isinstance(error, StrangerError) or (isinstance(error, HeadraceError) and not connection.proven):
            why = str(error)
        elif isinstance(error, ssl.SSLError) and not connection.proven:
            why = reason_of(error)
        if why:
            self._refusals.add(why, address=connection.peer)

    def _wait_for_socket(self, connection: ServerConnection, need: Need) -> None:
        connection.park(need, stall_s=self._stall_s, idle_s=self._idle_s)
        self._hold(connection)
        events = select.EPOLLOUT if need is Need.WRITE else select.EPOLLIN
        with self._lock:
            connection.state = ConnectionState.WAITS_FOR_SOCKET
            self._epoll.modify(connection.channel.number, events | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _prove(self, connection: ServerConnection) -> None:
        connection.proven = True
        self._admission.prove(connection)

    def _hold(self, connection: ServerConnection) -> None:
        size_bytes = connection.channel.received_bytes
        if not size_bytes and not connection.holds:
            return
        connection.holds = size_bytes > 0
        for oldest in self._buffered.hold(connection, size_bytes):
            self._refusals.add("its request came too slowly", address=oldest.peer)
            oldest.channel.shut()

    def _wait_for_desk(self, connection: ServerConnection, awaited: Future[Any]) -> None:
        with self._lock:
            connection.state, connection.awaited = ConnectionState.WAITS_FOR_DESK, awaited
            self._epoll.modify(connection.channel.number, select.EPOLLRDHUP | select.EPOLLONESHOT)
        awaited.add_done_callback(lambda _: self._answered(connection))

    def _answered(self, connection: ServerConnection) -> None:
        """By the desk; on the loop, or wherever it was cancelled."""
        with self._lock:
            connection.state, connection.awaited = ConnectionState.RUNNING, None
        with contextlib.suppress(RuntimeError):  # the pool is shut: stop() ends the connection
            self._pool.submit(self._run, connection)

    def _end(self, connection: ServerConnection, error: Exception | None, *, at_once: bool = False) -> None:
        with self._lock:
            if self._connections.get(connection.channel.number) is connection:
                del self._connections[connection.channel.number]
        self._admission.leave(connection)
        if connection.holds:
            self._buffered.hold(connection, 0)
        log.debug("connection of a peer ended peer=%s why=%s", connection.peer, error)
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


def _has_room(number: int) -> bool:
    """Whether bytes can be written, after a short wait at most."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(WRITE_WAIT_MS))
