"""The door for programs of other users of this host: a unix socket that anybody may connect to.

It lies beside the run folder, which nobody else can enter. A connection is one user's, as the kernel said when it
began, and has one request under way. All that a user can take is bounded: connections, requests that wait for bytes,
and descriptors on their way, which are given again only when the last ones were taken.

Requests are answered in the node's loop, as an answer costs less than to hand it over. So that who asks without end
makes nobody wait, each user has his turn, and the broker a slice of the loop's time: docs/decisions/0064.
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
from headrace.base.trusted_owner import check_above
from headrace.entry.broker.access import User, user_of
from headrace.entry.broker.service import BrokerService, Reply
from headrace.wire.broker_messages import REQUEST_BYTES_MAX, Request, decode_request, encode

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 1024
CONNECTIONS_OF_A_USER_MAX = 256
WAITING_OF_A_USER_MAX = 32
"""Requests that wait for the origin; more wait for these."""
SLICE_S = 0.002
REST_S = 0.001
"""After a slice in which it did not get done: the loop's other work goes on meanwhile."""
PAUSE_S = 1.0
_BACKLOG = 128
_ACCEPTED_AT_ONCE = 16


class Broker:
    def __init__(self, desk: BrokerService) -> None:
        self._desk = desk
        self._listener: socket.socket | None = None
        self._connections: dict[int, _Connection] = {}
        self._of_users: Counter[int] = Counter()
        self._readable: FairQueue[int, _Connection] = FairQueue()
        self._waiting: dict[int, asyncio.Semaphore] = {}
        self._path = ""

    def start(self, path: str) -> None:
        """Listens on return. UsageError where the folder is not ours alone to change; OSError."""
        folder = os.path.dirname(path)
        _make_public(folder)
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
        tasks = [connection.task for connection in connections if connection.task is not None]
        for connection in connections:
            connection.close()
        self._epoll.close()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._desk.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _on_ready(self) -> None:
        """A slice of the loop's time: new connections, and each user in turn."""
        begun_s = time.monotonic()
        listener, crowded = self._listener, False
        if listener is None:
            return
        for number, _ in self._epoll.poll(0):
            if (connection := self._connections.get(number)) is not None:
                if not connection.queued:
                    connection.queued = True
                    self._readable.add(connection.user.uid, connection)
            elif number == listener.fileno():
                crowded = self._accept(listener)
        while self._readable:
            self._readable.next().on_readable()
            if time.monotonic() - begun_s >= SLICE_S:
                crowded = True
                break
        if crowded:
            self._rest()

    def _rest(self) -> None:
        number = self._epoll.fileno()
        self._loop.remove_reader(number)

        def go_on() -> None:
            if self._listener is not None:
                self._loop.add_reader(number, self._on_ready)
                self._on_ready()

        self._loop.call_later(REST_S, go_on)

    def _accept(self, listener: socket.socket) -> bool:
        """Return whether more may be waiting."""
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
                log.warning("a connection is refused error=%s", error)
                accepted.close()
                continue
            if not self._has_room(user):
                accepted.close()
                continue
            self._of_users[user.uid] += 1
            self._connections[accepted.fileno()] = _Connection(self, accepted, user)
            self._epoll.register(accepted.fileno(), select.EPOLLIN)
        return True

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """No descriptor is left, as a rule: whoever waits would be found there again at once, without end."""
        log.warning("no connection can be taken, tried again soon error=%s", error)
        self._epoll.unregister(listener.fileno())

        def go_on() -> None:
            if listener.fileno() >= 0:
                self._epoll.register(listener.fileno(), select.EPOLLIN)

        self._loop.call_later(PAUSE_S, go_on)

    def _has_room(self, user: User) -> bool:
        """Made by who has most connections, where there is none left for others."""
        count = self._of_users[user.uid]
        if count >= CONNECTIONS_OF_A_USER_MAX:
            return False
        if len(self._connections) < CONNECTIONS_MAX:
            return True
        heaviest, most = self._of_users.most_common(1)[0]
        if most <= count + 1:
            return False
        self._oldest_of(heaviest).close()
        return True

    def _oldest_of(self, uid: int) -> _Connection:
        return next(connection for connection in self._connections.values() if connection.user.uid == uid)

    def answer_now(self, request: Request, user: User) -> Reply | None:
        return self._desk.answer_now(request, user)

    async def answer(self, request: Request, user: User) -> Reply:
        turn = self._waiting.setdefault(user.uid, asyncio.Semaphore(WAITING_OF_A_USER_MAX))
        async with turn:
            return await self._desk.answer(request, user)

    def forget(self, connection: _Connection, number: int) -> None:
        del self._connections[number]
        uid = connection.user.uid
        self._of_users[uid] -= 1
        if not self._of_users[uid]:
            del self._of_users[uid]
            self._waiting.pop(uid, None)


class _Connection:
    """queued: its user's turn is awaited."""

    def __init__(self, broker: Broker, peer: socket.socket, user: User) -> None:
        self.user = user
        self.task: asyncio.Task[None] | None = None
        self.queued = False
        self._broker = broker
        self._socket = peer
        self._loop = asyncio.get_running_loop()

    def on_readable(self) -> None:
        """One packet: others have their turn before the next."""
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
            self.close()  # it left
            return
        try:
            if flags & socket.MSG_TRUNC or flags & socket.MSG_CTRUNC:
                raise ProtocolError("request too long, or with descriptors")
            if self.task is not None or self._unread_bytes():
                raise ProtocolError("a request before the last one was answered")
            request = decode_request(body)
        except ProtocolError as error:
            log.info("connection of another user dropped uid=%d error=%s", self.user.uid, error)
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
            self.task = self._loop.create_task(self._answer_later(request))

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
        """Whoever does not take its answers has none."""
        try:
            if self._socket.fileno() < 0:
                return
            rights = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", reply.fds))] if reply.fds else []
            )
            self._socket.sendmsg([encode(reply.answer)], rights, socket.MSG_NOSIGNAL)
        except OSError:
            self.close()
        finally:
            reply.close()

    def _unread_bytes(self) -> int:
        return int(struct.unpack("@i", fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])

    def close(self) -> None:
        if (number := self._socket.fileno()) < 0:
            return
        self._socket.close()
        if self.task is not None:
            self.task.cancel()
        self._broker.forget(self, number)


def _make_public(folder: str) -> None:
    """A directory that everybody may look into, and only this user may change."""
    os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
    check_above(folder)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o755)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise UsageError(f"folder {folder}", why=f"it belongs to user {status.st_uid}", hint="remove it")
        if stat.S_IMODE(status.st_mode) != 0o755:
            os.fchmod(fd, 0o755)
    finally:
        os.close(fd)
