"""Keep the connections of a server: who may stay, which ones wait for the client, and until when."""

from __future__ import annotations

import select
import socket
import threading

from headrace.base.refusals import Refusals
from headrace.http.admission import Admission, Buffered
from headrace.http.connection import ConnectionPhase, HttpServerConnection

LINGERING_MAX = 256
"""Most ending connections whose input is still received and dropped, so that the client sees the reason. Further ones
are closed at once."""
IN_PROGRESS = (ConnectionPhase.BODY, ConnectionPhase.ANSWER)


class ConnectionTable:
    """Holds the connections of one server. Thread-safe. A connection either waits, watched by `epoll` on behalf of the
    waiting thread, or belongs to the thread that claimed it. `waiting` has those that wait, by descriptor."""

    def __init__(self, refusals: Refusals) -> None:
        self.epoll = select.epoll()
        self.waiting: dict[int, HttpServerConnection] = {}
        self.admission: Admission[HttpServerConnection] = Admission(self.displace)
        self._buffered: tuple[Buffered[HttpServerConnection], ...] = (Buffered(), Buffered())
        """Bytes of clients that have not authenticated, and of those that have: the first don't displace the others."""
        self._refusals = refusals
        self._lock = threading.Lock()
        self._lingering = 0
        self._is_stopping = False

    def stop(self) -> None:
        """Let no connection wait for another request from now on."""
        self._is_stopping = True

    def all_waiting(self) -> list[HttpServerConnection]:
        with self._lock:
            return list(self.waiting.values())

    def enter(self, connection: HttpServerConnection) -> bool:
        """Admit a new connection; close it and return False when there are too many."""
        if self.admission.enter(connection):
            return True
        self._refusals.add("too many connections", address=connection.client)
        connection.close()
        return False

    def displace(self, connection: HttpServerConnection) -> None:
        """Close a connection in favour of a newer one. A thread that serves it sees its socket ended."""
        self._refusals.add(
            "it did not authenticate while newer connections arrived", address=connection.client
        )
        if self.claim(connection):
            self._leave(connection)
            connection.close(at_once=True)
        else:
            connection.shut()

    def mark_authenticated(self, connection: HttpServerConnection) -> None:
        self._forget_buffered(connection)
        connection.is_authenticated = True
        self.admission.mark_authenticated(connection)

    # ------------------------------------------------------------ waiting

    def park(
        self,
        connection: HttpServerConnection,
        phase: ConnectionPhase,
        limit_s: float,
        events: int = select.EPOLLIN,
    ) -> None:
        """Let a connection wait for its client, for at most that time."""
        connection.park(phase, events, limit_s)
        self.add(connection)

    def add(self, connection: HttpServerConnection) -> None:
        """Hand a parked connection to the waiting thread."""
        with self._lock:
            if not self._is_stopping or connection.phase in IN_PROGRESS:
                self.waiting[connection.fd] = connection
                self.epoll.register(connection.fd, connection.events)
                return
        self.drop(connection)

    def claim(self, connection: HttpServerConnection) -> bool:
        """Take a connection from the waiting thread. Return False when that thread does not have it."""
        with self._lock:
            if self.waiting.get(connection.fd) is not connection:
                return False
            del self.waiting[connection.fd]
            self.epoll.unregister(connection.fd)
        self._forget_buffered(connection)
        return True

    def account_buffered(self, connection: HttpServerConnection) -> None:
        """Record the bytes of its incomplete request. Drop the oldest such connections when all of its kind have too
        many."""
        connection.is_buffered = bool(connection.buffer)
        buffered = self._buffered[connection.is_authenticated]
        for oldest in buffered.hold(connection, len(connection.buffer)):
            self._refusals.add("its request came too slowly", address=oldest.client)
            self.drop_waiting(oldest)

    def _forget_buffered(self, connection: HttpServerConnection) -> None:
        if connection.is_buffered:
            connection.is_buffered = False
            self._buffered[connection.is_authenticated].hold(connection, 0)

    # ------------------------------------------------------------ ending

    def drop(self, connection: HttpServerConnection) -> None:
        """Close a connection that waits, or that the calling thread claimed."""
        self.claim(connection)
        self._leave(connection)
        connection.close()

    def drop_waiting(self, connection: HttpServerConnection) -> None:
        """Close a connection unless a thread works for it."""
        if self.claim(connection):
            self.drop(connection)

    def linger(self, connection: HttpServerConnection, limit_s: float) -> None:
        """End a connection whose client may still be sending. If it were closed at once, the client's bytes would make
        the kernel discard the answer. So the waiting thread drops those bytes for a moment."""
        with self._lock:
            connection.is_lingering = self._lingering < LINGERING_MAX
            self._lingering += connection.is_lingering
        if connection.is_lingering and connection.shut(socket.SHUT_WR):
            self.park(connection, ConnectionPhase.END, limit_s)
        else:
            self.drop(connection)

    def _leave(self, connection: HttpServerConnection) -> None:
        self.admission.leave(connection)
        if connection.is_lingering:
            connection.is_lingering = False
            with self._lock:
                self._lingering -= 1
