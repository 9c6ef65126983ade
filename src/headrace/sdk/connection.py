"""Talking with the node over its unix socket: blocking, one request at a time, safe after a fork.

`Connection` is one socket. `Connections` is a pool of them for a process with many threads; it also waits for a node
that is being restarted. Closing a connection while a request is under way cancels the request in the node.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    CancelledByUserError,
    DeadlineExceededError,
    NodeUnavailableError,
    NotAllowedError,
    ProtocolError,
)
from headrace.base.peer_process import peer_of
from headrace.base.trusted_owner import is_trusted
from headrace.sdk.cancel import Cancel
from headrace.wire import frame
from headrace.wire.messages import PROTOCOL, Answer, Failure, Hello, Message, Welcome

RECONNECT_PAUSE_S = 0.05


class Connection:
    """welcome: what the node said of itself. Not thread-safe."""

    def __init__(self, socket_path: str, *, role: str, cancel: Cancel | None = None) -> None:
        self.pid = os.getpid()
        self.usable = True  # no answer is outstanding, and it is open
        self.used = False  # before: its node may be gone
        self._path = socket_path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(socket_path)
            owner = peer_of(self._socket).uid
        except OSError as error:
            self._socket.close()
            raise self._gone(error.strerror or str(error)) from error
        if not is_trusted(owner):
            self._socket.close()
            raise NotAllowedError(
                f"node at {socket_path}",
                why=f"user {owner} runs it, and its index would be read as it is",
                hint="run this as that user",
            )
        hello = Hello(protocol=PROTOCOL, pid=self.pid, role=role)
        answer = self.ask(hello, deadline=Deadline.after(10), cancel=cancel)
        if not isinstance(answer, Welcome):
            raise ProtocolError("the node did not welcome us", why=type(answer).__name__)
        self.welcome = answer

    def ask(
        self, request: Message, *, deadline: Deadline | None = None, cancel: Cancel | None = None
    ) -> Answer:
        """The answer; a Failure is raised as the error it carries. A deadline or cancel that strikes closes the
        connection, because the answer may still come."""
        self.usable = False
        self.send(request)
        answer = self._receive(deadline, cancel)
        self.usable = True
        if isinstance(answer, Failure):
            raise frame.error_of(answer)
        return answer

    def stream(self, request: Message) -> Iterator[Answer]:
        """Answers until one that says it is the last (JobState.done) or, for events, until the node goes."""
        self.usable = False
        self.send(request)
        while True:
            answer = self.receive()
            self.usable = bool(getattr(answer, "done", False))
            yield answer
            if getattr(answer, "done", False):
                return

    def send(self, request: Message) -> None:
        try:
            self._socket.sendall(frame.encode(request))
        except OSError as error:
            self.close()
            raise self._gone(str(error)) from error

    def receive(self, *, deadline: Deadline | None = None, cancel: Cancel | None = None) -> Answer:
        answer = self._receive(deadline, cancel)
        if isinstance(answer, Failure):
            raise frame.error_of(answer)
        return answer

    def _receive(self, deadline: Deadline | None, cancel: Cancel | None) -> Answer:
        header = self._exactly(frame.HEADER_BYTES, deadline, cancel)
        return frame.decode_answer(self._exactly(frame.body_length(header), deadline, cancel))

    def close(self) -> None:
        self.usable = False
        self._socket.close()

    def _exactly(self, count: int, deadline: Deadline | None, cancel: Cancel | None) -> bytes:
        parts: list[bytes] = []
        while count:
            if deadline is not None or cancel is not None:
                self._wait_readable(deadline, cancel)
            try:
                part = self._socket.recv(count)
            except OSError as error:
                self.close()
                raise self._gone(str(error)) from error
            if not part:
                self.close()
                raise self._gone("it closed the connection")
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait_readable(self, deadline: Deadline | None, cancel: Cancel | None) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if cancel is not None:
            poll.register(cancel.fileno(), select.POLLIN)
        left_s = deadline.left_s() if deadline is not None else float("inf")
        ready = poll.poll(None if left_s == float("inf") else left_s * 1000)
        if cancel is not None and cancel.is_set():
            self.close()
            raise CancelledByUserError("call broken off")
        if not ready:
            self.close()
            raise DeadlineExceededError("no answer from the node", why="not within the time allowed")

    def _gone(self, why: str) -> NodeUnavailableError:
        return NodeUnavailableError(
            f"no node answers at {self._path}",
            why=why,
            hint="start one with `headrace up` or `headrace node run`",
        )


class Connections:
    """A pool. patience_s: how long `ask` waits for a node that is away (being restarted) before it gives up.
    on_welcome: told what the node says of itself on each new connection."""

    def __init__(
        self,
        socket_path: str,
        *,
        role: str,
        patience_s: float,
    ) -> None:
        self.path = socket_path
        self._role = role
        self._patience_s = patience_s
        self.on_welcome: Callable[[Welcome], None] = lambda _: None
        self._free: list[Connection] = []
        self._lock = threading.Lock()

    def ask(
        self, request: Message, *, cancel: Cancel | None = None, patience_s: float | None = None
    ) -> Answer:
        """Like Connection.ask; asks again, on a new connection, while the node is away: every request of ours may
        be repeated without harm."""
        give_up = Deadline.after(self._patience_s if patience_s is None else patience_s)
        while True:
            if cancel is not None and cancel.is_set():
                raise CancelledByUserError("call broken off")
            connection: Connection | None = None
            try:
                connection = self.take(cancel)
                return connection.ask(request, cancel=cancel)
            except NodeUnavailableError:
                if connection is not None and connection.used:
                    self.close()
                    continue  # of a node that is gone, as all in the pool are; a new one may be there
                if give_up.passed():
                    raise
                time.sleep(RECONNECT_PAUSE_S)
            finally:
                if connection is not None and connection.usable:
                    self.give(connection)

    def take(self, cancel: Cancel | None = None) -> Connection:
        """A connection of the caller's own; a new one where none is free."""
        with self._lock:
            while self._free:
                connection = self._free.pop()
                if connection.pid == os.getpid():
                    return connection
        connection = Connection(self.path, role=self._role, cancel=cancel)
        self.on_welcome(connection.welcome)
        return connection

    def close(self) -> None:
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()

    def reset_after_fork(self) -> None:
        """In a child: the lock may be held by a thread that is not there, the sockets are the parent's."""
        self._lock = threading.Lock()
        self._free = []

    def give(self, connection: Connection) -> None:
        """Back into the pool; only one that has no answer outstanding."""
        connection.used = True
        with self._lock:
            self._free.append(connection)
