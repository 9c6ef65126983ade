"""Serve programs of other users of this host, on a unix socket that everybody may connect to.

The socket is beside the run directory, which no other user can enter. A connection belongs to one user, as the
kernel reported when it began, and has one request in progress. Everything that a user can occupy is limited:
connections, requests that wait for bytes, and descriptors in flight, which are sent again only when the previous
ones were received.

Requests are answered on the node's loop, because an answer costs less than a handover to a thread. So that a user
who sends requests without end delays nobody, users take turns, and the broker gets only a slice of the loop's time:
docs/decisions/0064.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import logging
import os
import select
import socket
import stat
import struct
import termios
import time
from collections import Counter

from headrace.base.errors import ProtocolError, UsageError
from headrace.base.fair_queue import FairQueue
from headrace.base.private_folder import make_parents
from headrace.base.tasks import OwnedTasks
from headrace.base.trusted_owner import check_above
from headrace.entry.broker.access import User, user_of
from headrace.entry.broker.service import BrokerService, Reply
from headrace.wire.broker_messages import REQUEST_BYTES_MAX, Request, decode_request, encode

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 1024
CONNECTIONS_OF_A_USER_MAX = 256
WAITING_OF_A_USER_MAX = 32
"""Requests that wait for the origin; further requests wait for these."""
SLICE_S = 0.002
REST_S = 0.001
"""Seconds between two slices of unfinished work, in which the loop does other work."""
PAUSE_S = 1.0
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 16


class Broker:
    """Accepts connections and answers their requests."""

    def __init__(self, service: BrokerService) -> None:
        self._service = service
        self.tasks = OwnedTasks()
        self._listener: socket.socket | None = None
        self._connections: dict[int, _Connection] = {}
        self._connections_by_user: Counter[int] = Counter()
        self._readable: FairQueue[int, _Connection] = FairQueue()
        self._waiting: dict[int, asyncio.Semaphore] = {}
        self._path = ""

    def start(self, path: str) -> None:
        """Listen on the socket. Raise UsageError when other users can change the directory, or OSError."""
        directory = os.path.dirname(path)
        _make_public(directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listener = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        )
        try:
            listener.bind(path)
            os.chmod(path, 0o666)
            listener.listen(_BACKLOG)
        except BaseException:
            listener.close()
            raise
        self._listener, self._path = listener, path
        self._loop = asyncio.get_running_loop()
        self._epoll = select.epoll()
        self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), self._on_ready)

    async def stop(self) -> None:
        if self._listener is None:
            return
        self._loop.remove_reader(self._epoll.fileno())
        self._listener.close()
        self._listener = None
        connections = list(self._connections.values())
        for connection in connections:
            connection.close()
        self._epoll.close()
        await self.tasks.close()
        self._service.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _on_ready(self) -> None:
        """Accept new connections and serve each user in turn, for one slice of the loop's time."""
        started_s = time.monotonic()
        listener, has_more = self._listener, False
        if listener is None:
            return
        for fd, _ in self._epoll.poll(0):
            if (connection := self._connections.get(fd)) is not None:
                if not connection.queued:
                    connection.queued = True
                    self._readable.add(connection.user.uid, connection)
            elif fd == listener.fileno():
                has_more = self._accept(listener)
        while self._readable:
            self._readable.next().on_readable()
            if time.monotonic() - started_s >= SLICE_S:
                has_more = True
                break
        if has_more:
            self._rest()

    def _rest(self) -> None:
        epoll_fd = self._epoll.fileno()
        self._loop.remove_reader(epoll_fd)

        def resume() -> None:
            if self._listener is not None:
                self._loop.add_reader(epoll_fd, self._on_ready)
                self._on_ready()

        self._loop.call_later(REST_S, resume)

    def _accept(self, listener: socket.socket) -> bool:
        """Accept connections; return whether more may be waiting."""
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listener.accept()
            except BlockingIOError:
                return False
            except OSError as error:
                self._pause(listener, error)
                return False
            accepted.setblocking(False)
            try:
                user = user_of(accepted)
            except OSError as error:
                log.warning("a connection of another user was refused error=%s", error)
                accepted.close()
                continue
            if not self._has_room(user):
                accepted.close()
                continue
            self._connections_by_user[user.uid] += 1
            self._connections[accepted.fileno()] = _Connection(self, accepted, user)
            self._epoll.register(accepted.fileno(), select.EPOLLIN)
        return True

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment. Mostly no descriptor is left, and the waiting connection would wake the loop
        without end."""
        log.warning("connections of other users can't be accepted now error=%s", error)
        self._epoll.unregister(listener.fileno())

        def resume() -> None:
            if listener.fileno() >= 0:
                self._epoll.register(listener.fileno(), select.EPOLLIN)

        self._loop.call_later(PAUSE_S, resume)

    def _has_room(self, user: User) -> bool:
        """Return whether the user may have another connection. When there is no room, close the oldest connection of
        the user who has most, unless this user would have as many."""
        count = self._connections_by_user[user.uid]
        if count >= CONNECTIONS_OF_A_USER_MAX:
            return False
        if len(self._connections) < CONNECTIONS_MAX:
            return True
        heaviest, most = self._connections_by_user.most_common(1)[0]
        if most <= count + 1:
            return False
        self._oldest_of(heaviest).close()
        return True

    def _oldest_of(self, uid: int) -> _Connection:
        return next(connection for connection in self._connections.values() if connection.user.uid == uid)

    def answer_now(self, request: Request, user: User) -> Reply | None:
        return self._service.answer_now(request, user)

    async def answer(self, request: Request, user: User) -> Reply:
        slots = self._waiting.setdefault(user.uid, asyncio.Semaphore(WAITING_OF_A_USER_MAX))
        async with slots:
            return await self._service.answer(request, user)

    def forget(self, connection: _Connection, fd: int) -> None:
        del self._connections[fd]
        uid = connection.user.uid
        self._connections_by_user[uid] -= 1
        if not self._connections_by_user[uid]:
            del self._connections_by_user[uid]
            self._waiting.pop(uid, None)


class _Connection:
    """Serves one connection. queued: it waits for its user's turn."""

    def __init__(self, broker: Broker, peer: socket.socket, user: User) -> None:
        self.user = user
        self.task: asyncio.Task[None] | None = None
        self.queued = False
        self._broker = broker
        self._socket = peer
        self._loop = asyncio.get_running_loop()

    def on_readable(self) -> None:
        """Handle one packet. Other connections have their turn before the next."""
        self.queued = False
        if self._socket.fileno() < 0:
            return
        try:
            body, _, flags, _ = self._socket.recvmsg(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not body:
            self.close()  # the client disconnected
            return
        try:
            if flags & socket.MSG_TRUNC or flags & socket.MSG_CTRUNC:
                raise ProtocolError("a request is too long, or carries descriptors")
            if self.task is not None or self._unread_bytes():
                raise ProtocolError("a request before the last one was answered")
            request = decode_request(body)
        except ProtocolError as error:
            log.info("a connection of another user was closed uid=%d error=%s", self.user.uid, error)
            self.close()
            return
        try:
            reply = self._broker.answer_now(request, self.user)
        except Exception:
            log.exception("request failed kind=%s", type(request).__name__)
            self.close()
            return
        if reply is not None:
            self._send(reply)
        else:
            self.task = self._broker.tasks.start(self._answer_later(request))

    async def _answer_later(self, request: Request) -> None:
        try:
            reply = await self._broker.answer(request, self.user)
        except Exception:
            log.exception("request failed kind=%s", type(request).__name__)
            self.task = None
            self.close()
            return
        self.task = None
        self._send(reply)

    def _send(self, reply: Reply) -> None:
        """Send an answer. Close the connection when the client does not read its answers."""
        try:
            if self._socket.fileno() < 0:
                return
            ancillary = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", reply.fds))] if reply.fds else []
            )
            self._socket.sendmsg([encode(reply.answer)], ancillary, socket.MSG_NOSIGNAL)
        except OSError:
            self.close()
        finally:
            reply.close()

    def _unread_bytes(self) -> int:
        return int(struct.unpack("@i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])

    def close(self) -> None:
        if (fd := self._socket.fileno()) < 0:
            return
        self._socket.close()
        if self.task is not None:
            self.task.cancel()
        self._broker.forget(self, fd)


def _make_public(directory: str) -> None:
    """Create a directory that everybody may read and only this user may change. Raise UsageError when it is another
    user's."""
    make_parents(directory)
    check_above(directory)
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise UsageError(
                f"folder {directory}", why=f"it belongs to user {status.st_uid}", hint="remove it"
            )
        if stat.S_IMODE(status.st_mode) != 0o755:
            os.fchmod(fd, 0o755)
    finally:
        os.close(fd)
