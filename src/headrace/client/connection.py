"""Send requests to the node over its unix socket: blocking, one request at a time, safe after a fork.

`Connection` is one socket. `Connections` is a pool of them for a process with many threads; it also waits for a node
that is restarting. When a connection closes during a request, the node cancels the request.
"""

from __future__ import annotations

import functools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from headrace.base.cancel import Cancel
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    CancelledByUserError,
    DeadlineExceededError,
    HeadraceError,
    NodeUnavailableError,
    NotAllowedError,
    ProtocolError,
    UsageError,
)
from headrace.base.peer_process import peer_of
from headrace.base.trusted_owner import is_trusted
from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import PROTOCOL, Answer, Failure, Hello, Welcome

RECONNECT_PAUSE_S = 0.05
WELCOME_LIMIT_S = 10.0
SILENCE_S = 30.0
"""Seconds without an answer after which a call checks that the node still welcomes others. A node that waits for a slow
origin does; one that is stopped, or whose loop hangs, does not."""


IsAlive = Callable[[], bool]


def connect_within(
    connecting: socket.socket, path: str, deadline: Deadline, cancel: Cancel | None = None
) -> None:
    """Connect a blocking unix socket. Wait while the queue of the listener is full: its process accepts no connection
    then. Raises OSError, NodeUnavailableError after the deadline, and CancelledByUserError."""
    connecting.setblocking(False)
    while True:
        try:
            connecting.connect(path)
            break
        except BlockingIOError:
            if deadline.passed():
                raise NodeUnavailableError(
                    f"no node answers at {path}", why="its queue of new connections is full"
                ) from None
        pause_s = min(RECONNECT_PAUSE_S, deadline.left_s())
        if cancel is None:
            time.sleep(pause_s)
        elif cancel.wait(pause_s):
            raise CancelledByUserError("call cancelled")
    connecting.setblocking(True)


class Connection:
    """Carries one request at a time to the node. welcome: the node's description of itself. deadline: of the welcome,
    after WELCOME_LIMIT_S if none is given. Not thread-safe."""

    def __init__(
        self,
        socket_path: str,
        *,
        role: str,
        deadline: Deadline | None = None,
        cancel: Cancel | None = None,
    ) -> None:
        self.pid = os.getpid()
        self.usable = True  # it is open, and no answer is outstanding
        self.used = False  # returned to the pool at least once: its node may have ended since
        self._path, self._role = socket_path, role
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        deadline = deadline or Deadline.after(WELCOME_LIMIT_S)
        try:
            connect_within(self._socket, socket_path, deadline, cancel)
            owner_uid = peer_of(self._socket).uid
        except OSError as error:
            self._socket.close()
            raise self._unavailable(error.strerror or str(error)) from error
        except HeadraceError:
            self._socket.close()
            raise
        if not is_trusted(owner_uid):
            self._socket.close()
            raise NotAllowedError(
                f"node at {socket_path}",
                why=f"user {owner_uid} runs it, and only a node of this user or of root is trusted",
                hint="run this program as that user",
            )
        hello = Hello(protocol=PROTOCOL, pid=self.pid, role=role)
        try:
            answer = self.ask(hello, deadline=deadline, cancel=cancel)
        except DeadlineExceededError as error:
            raise self._unavailable("it accepts connections, but answers none") from error
        if not isinstance(answer, Welcome):
            raise ProtocolError(
                "the node did not accept the connection", why=f"it answered {type(answer).__name__}"
            )
        self.welcome = answer

    def ask(
        self,
        request: Message,
        *,
        deadline: Deadline | None = None,
        cancel: Cancel | None = None,
        is_alive: IsAlive | None = None,
    ) -> Answer:
        """Send a request and return the answer; raise a Failure as the error it carries. When the deadline passes, the
        call is cancelled or `is_alive` returns False, close the connection, because the answer may still arrive.
        is_alive: called each time when the node was silent for SILENCE_S; after False, raise NodeUnavailableError. A
        call without all three asks whether the node welcomes others."""
        if deadline is None and cancel is None and is_alive is None:
            is_alive = functools.partial(is_welcoming, self._path, role=self._role)
        self.usable = False
        self.send(request)
        answer = self._receive(deadline, cancel, is_alive)
        self.usable = True
        if isinstance(answer, Failure):
            raise frame.error_of(answer)
        return answer

    def stream(
        self, request: Message, *, cancel: Cancel | None = None, is_alive: IsAlive | None = None
    ) -> Iterator[Answer]:
        """Yield answers until the one that is marked as the last (JobState.done) or, for events, until the node
        closes the connection. cancel, is_alive: as for `ask`."""
        self.usable = False
        self.send(request)
        while True:
            answer = self.receive(cancel=cancel, is_alive=is_alive)
            self.usable = bool(getattr(answer, "done", False))
            yield answer
            if getattr(answer, "done", False):
                return

    def send(self, request: Message) -> None:
        try:
            message = frame.encode(request)
        except UnicodeEncodeError as error:
            raise UsageError(
                ascii(error.object),
                why="it is not UTF-8, and requests name paths as text",
                hint="name a directory above it",
            ) from error
        try:
            self._socket.sendall(message)
        except OSError as error:
            self.close()
            raise self._unavailable(str(error)) from error

    def receive(
        self,
        *,
        deadline: Deadline | None = None,
        cancel: Cancel | None = None,
        is_alive: IsAlive | None = None,
    ) -> Answer:
        answer = self._receive(deadline, cancel, is_alive)
        if isinstance(answer, Failure):
            raise frame.error_of(answer)
        return answer

    def _receive(self, deadline: Deadline | None, cancel: Cancel | None, is_alive: IsAlive | None) -> Answer:
        wait = functools.partial(self._wait_readable, deadline, cancel, is_alive)
        is_watched = not (deadline is None and cancel is None and is_alive is None)
        header = self._receive_exactly(frame.HEADER_BYTES, wait if is_watched else None)
        body = self._receive_exactly(frame.body_length(header), wait if is_watched else None)
        return frame.decode_answer(body)

    def end_request(self) -> None:
        """Have the node cancel the request that runs. It closes the connection when the request has ended; its answers
        until then are received. A handler of a signal may call this."""
        with suppress(OSError):  # the node closed it already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.usable = False
        self._socket.close()

    def _receive_exactly(self, count: int, wait: Callable[[], None] | None) -> bytes:
        parts: list[bytes] = []
        while count:
            if wait is not None:
                wait()
            try:
                part = self._socket.recv(count)
            except OSError as error:
                self.close()
                raise self._unavailable(str(error)) from error
            if not part:
                self.close()
                raise self._unavailable("it closed the connection")
            parts.append(part)
            count -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _wait_readable(
        self, deadline: Deadline | None, cancel: Cancel | None, is_alive: IsAlive | None
    ) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        if cancel is not None:
            poll.register(cancel.fileno(), select.POLLIN)
        while True:
            left_s = deadline.left_s() if deadline is not None else float("inf")
            wait_s = left_s if is_alive is None else min(left_s, SILENCE_S)
            ready = poll.poll(None if wait_s == float("inf") else wait_s * 1000)
            if cancel is not None and cancel.is_set():
                self.close()
                raise CancelledByUserError("call cancelled")
            if ready:
                return
            if is_alive is None or (deadline is not None and deadline.passed()):
                self.close()
                raise DeadlineExceededError("no answer from the node", why="none arrived within the deadline")
            if not is_alive():
                self.close()
                raise self._unavailable("it stopped answering")

    def _unavailable(self, why: str) -> NodeUnavailableError:
        return NodeUnavailableError(
            f"no node answers at {self._path}",
            why=why,
            hint="start one with `headrace up` or `headrace node run`",
        )


def is_welcoming(socket_path: str, *, role: str, cancel: Cancel | None = None) -> bool:
    """Return whether a node welcomes a new connection. A node that is stopped, or whose loop hangs, does not. True if
    this process has no descriptor for a connection."""
    try:
        Connection(socket_path, role=role, cancel=cancel).close()
    except NodeUnavailableError:
        return False
    except OSError as error:
        if isinstance(error, HeadraceError):
            raise
    return True


class Connections:
    """Pools connections. patience_s: seconds that `ask` retries while the node is restarting. on_welcome: called with
    the node's description of itself on each new connection."""

    def __init__(
        self,
        socket_path: str,
        *,
        role: str,
        patience_s: float,
        on_welcome: Callable[[Welcome], None],
    ) -> None:
        self.path = socket_path
        self._role = role
        self._patience_s = patience_s
        self._on_welcome = on_welcome
        self._free: list[Connection] = []
        self._closed = False
        self._lock = threading.Lock()

    def ask(
        self, request: Message, *, cancel: Cancel | None = None, patience_s: float | None = None
    ) -> Answer:
        """Send a request as Connection.ask does. Retry on a new connection while the node is away: every request of a
        client is idempotent."""
        deadline = Deadline.after(self._patience_s if patience_s is None else patience_s)
        while True:
            if cancel is not None and cancel.is_set():
                raise CancelledByUserError("call cancelled")
            connection: Connection | None = None
            try:
                connection = self.acquire(cancel)
                return connection.ask(request, cancel=cancel, is_alive=lambda: self.is_alive(cancel))
            except NodeUnavailableError:
                if connection is not None and connection.used:
                    self._close_free()
                    continue  # its node ended, so the whole pool is dead; a new node may answer
                if deadline.passed():
                    raise
                time.sleep(RECONNECT_PAUSE_S)
            finally:
                if connection is not None:
                    self._finish(connection)

    def _finish(self, connection: Connection) -> None:
        """Return a connection to the pool, or close it if an answer is outstanding."""
        if connection.usable:
            self.release(connection)
        else:
            connection.close()

    def is_alive(self, cancel: Cancel | None = None) -> bool:
        return is_welcoming(self.path, role=self._role, cancel=cancel)

    def acquire(self, cancel: Cancel | None = None) -> Connection:
        """Return a connection for the caller's exclusive use, a new one if none is free."""
        with self._lock:
            while self._free:
                connection = self._free.pop()
                if connection.pid == os.getpid():
                    return connection
        return self._connect(cancel)

    def connect_patiently(self) -> Connection:
        """Return a new connection, which the caller closes. Wait while the node is away: for a request that must not
        be repeated once it was sent."""
        deadline = Deadline.after(self._patience_s)
        while True:
            try:
                return self._connect(None)
            except NodeUnavailableError:
                if deadline.passed():
                    raise
            time.sleep(RECONNECT_PAUSE_S)

    def _connect(self, cancel: Cancel | None) -> Connection:
        connection = Connection(self.path, role=self._role, cancel=cancel)
        self._on_welcome(connection.welcome)
        return connection

    def close(self) -> None:
        """Close the pool. A connection that is in use is closed when it is released."""
        self._closed = True
        self._close_free()

    def _close_free(self) -> None:
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()

    def reset_after_fork(self) -> None:
        """Replace the lock and the pool in a child: a thread of the parent may hold the lock, and the sockets belong
        to the parent."""
        self._lock = threading.Lock()
        self._free = []

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool. It must have no outstanding answer."""
        connection.used = True
        with self._lock:
            if self._closed:
                connection.close()
            else:
                self._free.append(connection)
