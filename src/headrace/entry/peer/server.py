"""The peers' door: other nodes ask for ranges of files and for listings, over TCP or TLS.

One thread (`peer-door`) waits for all connections at once and accepts new ones; a small pool (`peer-serve`) does what
can be done now: parse, ask the desk, sendfile. A connection that waits (for a request, for room in its socket, for the
desk) has no thread: its conversation is a generator that goes on later. A connection belongs to one of them at a time:
to a thread of the pool while RUNNING, to the door while it waits; `_lock` guards the change.
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
from headrace.entry.peer.channel import Channel, HungUpError, Need, Steps
from headrace.entry.peer.conversation import Conversation
from headrace.entry.peer.desk import Desk, DeskCalls, Piece
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.identity.refusals import Refusals, reason_of
from headrace.wire.peer_frame import SPOKEN
from headrace.wire.peer_messages import PeerWelcome

__all__ = ["Desk", "PeerServer", "Piece"]

log = logging.getLogger(__name__)

THREADS = 16
"""Bytes are moved by the kernel: more threads than cores only where disks make them wait. A guess."""
BACKLOG = 1024
CONGESTION_NAME_BYTES = 16
CONNECTIONS_MAX = 8192
WRITE_WAIT_MS = 100
"""How long a thread waits itself for room in a socket: on a fast link that is cheaper than to hand over."""
STALL_S = 30.0
"""A peer that reads nothing, or breaks off in the middle of a request, for so long is cut off."""
IDLE_S = 300.0
TICK_S = 1.0


class State(enum.Enum):
    RUNNING = 1
    WAITS_FOR_SOCKET = 2
    WAITS_FOR_DESK = 3


class Connection:
    """until_s: when the wait for its socket becomes too long."""

    def __init__(self, channel: Channel, steps: Steps[None], peer: str) -> None:
        self.channel = channel
        self.steps = steps
        self.peer = peer
        self.state = State.RUNNING
        self.until_s = 0.0
        self.awaited: Future[Any] | None = None


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
        desk: Desk,
        *,
        loop: asyncio.AbstractEventLoop,
        tls: MutualTls | None = None,
        protocols: tuple[int, int] = SPOKEN,
        stall_s: float = STALL_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._me = me
        self._cluster = cluster
        self._calls = DeskCalls(desk, loop)
        self._tls = tls
        self._refusals = Refusals("peers")
        self._protocols = protocols
        self._stall_s = stall_s
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._stopping = False
        self._accepting = False
        self._listening: socket.socket | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="peer-serve")
        self._door = threading.Thread(target=self._wait_for_all, name="peer-door", daemon=True)

    def start(self, host: str, port: int) -> str:
        """Peers are answered on return; "host:port" where. port 0: any. UsageError when it can't listen there."""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            self._pool.shutdown()
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
        for connection in self._all():  # those that waited, and whose next step the pool no longer took
            self._end(connection, HungUpError("the node stops"))
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
                    TICK_S if self._connections or not self._accepting else None
                )
            ]
            for number in woken:
                self._woken(number)  # the bell and the listening socket are no connections
            if self._listening is not None and self._listening.fileno() in woken:
                self._accept()  # last: a new connection may get the number of one that ended
            now = time.monotonic()
            if now >= next_tick:
                next_tick = now + TICK_S
                self._tick(now)

    def _accept(self) -> None:
        assert self._listening is not None
        while True:
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # out of descriptors: later, or this would spin
                log.warning("connection of a peer not accepted error=%s", error)
                self._epoll.unregister(self._listening)
                self._accepting = False
                return
            self._welcome(sock, f"{address[0]}:{address[1]}")

    def _welcome(self, sock: socket.socket, peer: str) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            log.warning("connection of a peer refused peer=%s connections=%d", peer, len(self._connections))
            sock.close()
            return
        try:
            channel = Channel(sock, self._tls, address=peer)
        except OSError:  # gone already
            sock.close()
            return
        talk = Conversation(
            channel, self._calls, me=self._me, cluster=self._cluster, protocols=self._protocols
        )
        connection = Connection(channel, talk.run(), peer)
        with self._lock:
            self._connections[channel.number] = connection
        self._epoll.register(channel.number, select.EPOLLONESHOT)
        self._pool.submit(self._run, connection)

    def _woken(self, number: int) -> None:
        with self._lock:
            connection = self._connections.get(number)
            if connection is None:
                return
            awaited = connection.awaited if connection.state is State.WAITS_FOR_DESK else None
            run = connection.state is State.WAITS_FOR_SOCKET
            if run:
                connection.state = State.RUNNING
        if run:
            self._pool.submit(self._run, connection)
        elif awaited is not None:
            awaited.cancel()  # the peer left: what it asked for need not be done

    def _tick(self, now: float) -> None:
        if not self._accepting:
            self._accept_again()
        for connection in self._all():
            if connection.state is State.WAITS_FOR_SOCKET and now >= connection.until_s:
                connection.channel.shut()  # wakes it, and it finds its socket ended

    def _accept_again(self) -> None:
        assert self._listening is not None
        self._epoll.register(self._listening, select.EPOLLIN)
        self._accepting = True

    # ------------------------------------------------------------ the pool's threads

    def _run(self, connection: Connection) -> None:
        """Until the conversation waits or ends."""
        try:
            while not self._stopping:
                need = next(connection.steps)
                if isinstance(need, Future):
                    if not need.done():
                        return self._wait_for_desk(connection, need)
                elif need is not Need.WRITE or not _has_room(connection.channel.number):
                    return self._wait_for_socket(connection, need)
            self._end(connection, HungUpError("the node stops"))
        except StopIteration:
            self._end(connection, None)
        except (HungUpError, OSError, HeadraceError, StrangerError) as error:
            self._end(connection, error)
        except Exception as error:
            log.exception("connection of a peer failed peer=%s", connection.peer)
            self._end(connection, error)

    def _wait_for_socket(self, connection: Connection, need: Need) -> None:
        limit_s = self._idle_s if need is Need.REQUEST else self._stall_s
        connection.until_s = time.monotonic() + limit_s
        events = select.EPOLLOUT if need is Need.WRITE else select.EPOLLIN
        with self._lock:
            connection.state = State.WAITS_FOR_SOCKET
            self._epoll.modify(connection.channel.number, events | select.EPOLLRDHUP | select.EPOLLONESHOT)

    def _wait_for_desk(self, connection: Connection, awaited: Future[Any]) -> None:
        with self._lock:
            connection.state, connection.awaited = State.WAITS_FOR_DESK, awaited
            self._epoll.modify(connection.channel.number, select.EPOLLRDHUP | select.EPOLLONESHOT)
        awaited.add_done_callback(lambda _: self._answered(connection))

    def _answered(self, connection: Connection) -> None:
        """By the desk; on the loop, or wherever it was cancelled."""
        with self._lock:
            connection.state, connection.awaited = State.RUNNING, None
        with contextlib.suppress(RuntimeError):  # the pool is shut: stop() ends the connection
            self._pool.submit(self._run, connection)

    def _end(self, connection: Connection, error: Exception | None) -> None:
        with self._lock:
            if self._connections.get(connection.channel.number) is connection:
                del self._connections[connection.channel.number]
        if isinstance(error, StrangerError):
            self._refusals.note(connection.peer, str(error))
        elif isinstance(error, ssl.SSLError) and not isinstance(
            error, ssl.SSLEOFError | ssl.SSLZeroReturnError
        ):
            self._refusals.note(connection.peer, reason_of(error))
        else:
            log.debug("connection of a peer ended peer=%s why=%s", connection.peer, error)
        connection.steps.close()
        connection.channel.close()

    def _cut(self, connection: Connection) -> None:
        connection.channel.shut()
        with self._lock:
            awaited = connection.awaited
        if awaited is not None:
            awaited.cancel()

    def _all(self) -> list[Connection]:
        with self._lock:
            return list(self._connections.values())


def _has_room(number: int) -> bool:
    """Whether bytes can be written, after a short wait at most."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return bool(poll.poll(WRITE_WAIT_MS))
