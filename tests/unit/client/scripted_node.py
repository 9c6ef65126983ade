"""A node that answers over its real socket what a test tells it to, or nothing at all."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable

from headrace.wire import frame
from headrace.wire.message import Message
from headrace.wire.messages import Answer, Done, Hello, Welcome

PIECE_BYTES = 11
"""A socket may give a frame to its reader in pieces as short as these."""


class ScriptedNode:
    """Listens at a socket. `answer` returns the answers of a request: none for a node that hangs. `raw` are bytes that
    a connection gets in place of its next answer, before it is closed."""

    def __init__(self, path: str, welcome: Message) -> None:
        self.path = path
        self.welcome: Message | None = welcome  # None: it hangs
        self.requests: list[Message] = []
        self.answer: Callable[[Message], list[Answer]] = lambda request: [Done()]
        self.raw: bytes | None = None
        self.connections = 0
        self.left = threading.Semaphore(0)
        """Counts connections that the client closed."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    def start(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._run(self._accept, self._listener)

    def _run(self, work: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(argument,))
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = listener.accept()[0]
                self.connections += 1
                self._sockets.append(connection)
                self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                client_left = self._answer_all(connection)
            except OSError:  # it closed the connection in the middle of an answer
                client_left = True
            if client_left:
                self.left.release()

    def _answer_all(self, connection: socket.socket) -> bool:
        """Answer until the client closes the connection. Return False if this node ends it."""
        while header := _exactly(connection, frame.HEADER_BYTES):
            request = frame.decode_request(_exactly(connection, frame.body_length(header)))
            self.requests.append(request)
            answers = self._welcomes() if isinstance(request, Hello) else self.answer(request)
            if self.raw is not None and not isinstance(request, Hello):
                connection.sendall(self.raw)
                return False
            for answer in answers:
                _send_in_pieces(connection, frame.encode(answer))
        return True

    def _welcomes(self) -> list[Message]:
        return [] if self.welcome is None else [self.welcome]

    def asked(self, kind: type[Message]) -> list[Message]:
        """Return the requests of a kind, in their order."""
        return [request for request in self.requests if isinstance(request, kind)]

    def stop(self) -> None:
        """End as a process that is killed: the socket's path stays."""
        if self._listener is not None:
            _end(self._listener)
            self._threads[0].join(30)  # it accepts no further connection then
        for connection in self._sockets:
            _end(connection)
        for thread in self._threads:
            thread.join(30)
        self._listener, self._sockets, self._threads = None, [], []

    def restart(self, welcome: Welcome | None = None) -> None:
        self.stop()
        os.unlink(self.path)
        self.welcome = welcome or self.welcome
        self.start()


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _send_in_pieces(connection: socket.socket, data: bytes) -> None:
    for start in range(0, len(data), PIECE_BYTES):
        connection.sendall(data[start : start + PIECE_BYTES])


def _exactly(connection: socket.socket, count: int) -> bytes:
    """Return as many bytes, or none when the client has left."""
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            return b""
        data += part
    return data
