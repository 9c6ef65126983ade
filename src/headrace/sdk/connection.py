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
from collections.abc import Iterator

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    CancelledByUserError,
    DeadlineExceededError,
    NodeUnavailableError,
    ProtocolError,
)
from headrace.sdk.cancel import Cancel
from headrace.wire import frame
from headrace.wire.messages import PROTOCOL, Answer, Failure, Hello, Message, Welcome

RECONNECT_PAUSE_S = 0.05


class Connection:
    """welcome: what the node said of itself. Not thread-safe."""

    def __init__(self, socket_path: str, *, role: str) -> None:
        self.pid = os.getpid()
        self._path = socket_path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(socket_path)
        except OSError as error:
            self._socket.close()
            raise self._gone(error.strerror or str(error)) from error
        answer = self.ask(Hello(protocol=PROTOCOL, pid=self.pid, role=role), deadline=Deadline.after(10))
        if not isinstance(answer, Welcome):
            raise ProtocolError("the node did not welcome us", why=type(answer).__name__)
        self.welcome = answer

    def ask(
        self, request: Message, *, deadline: Deadline | None = None, cancel: Cancel | None = None
    ) -> Answer:
        """The answer; a Failure is raised as the error it carries. A deadline or cancel that strikes closes the
        connection, because the answer may still come."""
        self.send(request)
        return self.receive(deadline=deadline, cancel=cancel)

    def stream(self, request: Message) -> Iterator[Answer]:
        """Answers until one that says it is the last (JobState.done) or, for events, until the node goes."""
        self.send(request)
        while True:
            answer = self.receive()
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
        header = self._exactly(frame.HEADER_BYTES, deadline, cancel)
        answer = frame.decode_answer(self._exactly(frame.body_length(header), deadline, cancel))
        if isinstance(answer, Failure):
            raise frame.error_of(answer)
        return answer

    def close(self) -> None:
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
    """A pool. patience_s: how long `ask` waits for a node that is away (being restarted) before it gives up."""

    def __init__(self, socket_path: str, *, role: str, patience_s: float) -> None:
        self._path = socket_path
        self._role = role
        self._patience_s = patience_s
        self._free: list[Connection] = []
        self._lock = threading.Lock()

    def ask(self, request: Message, *, cancel: Cancel | None = None) -> Answer:
        """Like Connection.ask; asks again, on a new connection, while the node is away: every request of ours may
        be repeated without harm."""
        give_up = Deadline.after(self._patience_s)
        while True:
            try:
                connection = self.take()
                answer = connection.ask(request, cancel=cancel)
            except NodeUnavailableError:
                if give_up.passed():
                    raise
                if cancel is not None and cancel.is_set():
                    raise CancelledByUserError("call broken off") from None
                time.sleep(RECONNECT_PAUSE_S)
                continue
            self.give(connection)
            return answer

    def take(self) -> Connection:
        """A connection of the caller's own; a new one where none is free."""
        with self._lock:
            while self._free:
                connection = self._free.pop()
                if connection.pid == os.getpid():
                    return connection
        return Connection(self._path, role=self._role)

    def close(self) -> None:
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()

    def give(self, connection: Connection) -> None:
        """Back into the pool; only one that has no answer outstanding."""
        with self._lock:
            self._free.append(connection)
