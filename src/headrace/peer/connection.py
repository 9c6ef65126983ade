"""Exchange messages with one peer over a blocking socket. One thread at a time uses a connection; any thread may
abort it.

Only this file uses sockets in this package, and every socket error leaves it as PeerError. No call waits beyond the
deadline that was set last. In the middle of a message a peer may be silent for STALL_S, provided that it is alive,
which is checked meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import ssl
import struct
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError, ProtocolError
from headrace.base.refusals import Refusals, reason_of
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError
from headrace.wire import peer_frame
from headrace.wire.message import Message
from headrace.wire.messages import Failure
from headrace.wire.peer_messages import PeerAnswer, PeerHello, PeerWelcome

CONNECT_S_MAX = 1.3
"""Seconds to connect. A host that is up answers within a round trip; the kernel repeats a lost SYN after one second."""
SILENCE_S = 0.4
"""Seconds without a byte after which the node checks whether the peer is alive."""
STALL_S = 10.0
DEAD_MS = 2000
"""Milliseconds without an acknowledgement after which the kernel ends a connection: its route is dead, while
other connections to the same peer may work. A dead peer is detected sooner, by pings."""
PROBED_AFTER_S = 1
RECEIVE_BYTES = 64 << 10
"""Bytes per receive while messages are expected. With small files one receive gets most of a file. A system call for
each header and each body would release the GIL seven times per file, and acquiring it again takes long."""
_TIMEVAL = struct.Struct("ll")
_REFUSALS = Refusals(logging.getLogger(__name__), "outgoing peer connections")

Arguments = ParamSpec("Arguments")
Moved = TypeVar("Moved")


def _assume_alive() -> None:
    pass


class PeerConnection:
    """Represents an open connection to a peer. who: the peer and its address, for messages. answered: whether
    anything was received since the connection was last acquired. valid_until_s: when the peer's certificate expires,
    in wall-clock time."""

    def __init__(self, sock: socket.socket, who: str, address: str, *, valid_until_s: float) -> None:
        self.who = who
        self.address = address
        self.idle_since_s = 0.0
        self._valid_until_s = valid_until_s
        self.answered = False
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._deadline = Deadline.never()
        self._check_alive: Callable[[], None] = _assume_alive
        self._socket_timeout_s = -1.0
        self._buffered = memoryview(b"")  # received and not consumed yet
        self.welcome: PeerWelcome

    @classmethod
    def connect(
        cls,
        address: str,
        hello: PeerHello,
        *,
        node: str,
        who: str,
        tls: MutualTls | None,
        deadline: Deadline,
    ) -> PeerConnection:
        """Connect and exchange the hello and welcome messages. node: the id that the peer must have, in its
        certificate and in its welcome; "" accepts any. Raise PeerError, or ProtocolError or another error that the
        peer reports."""
        limit = Deadline.after(min(CONNECT_S_MAX, deadline.left_s()))
        sock, certified_id, valid_until_s = _connect(address, node, who, limit=limit, tls=tls)
        connection = cls(sock, who, address, valid_until_s=valid_until_s)
        try:
            connection.begin_request(limit)
            connection.send(hello)
            answer = connection.receive()
            if isinstance(answer, Failure):
                raise peer_frame.error_of(answer)
            if not isinstance(answer, PeerWelcome):
                raise connection.broken("it did not answer the hello with a welcome")
            if not hello.protocols[0] <= answer.protocol <= hello.protocols[1]:
                raise connection.broken(f"it chose protocol {answer.protocol}, which this node did not offer")
            if certified_id and answer.node != certified_id:
                raise connection.broken(
                    f"its certificate names node {certified_id}, its welcome node {answer.node}"
                )
            connection.welcome = answer
        except BaseException:
            connection.close()
            raise
        return connection

    def broken(self, why: str) -> PeerError:
        return PeerError(f"node {self.who}", why=why)

    def fileno(self) -> int:
        return self._sock.fileno()

    def begin_request(self, deadline: Deadline, check_alive: Callable[[], None] = _assume_alive) -> None:
        """Reserve the connection for one request. The thread that waits calls check_alive, which raises PeerError
        when the peer is dead."""
        self._deadline = deadline
        self._check_alive = check_alive

    def send(self, message: Message) -> None:
        body = memoryview(peer_frame.encode(message))
        while body:
            body = body[self._move(self._sock.send, body) :]

    def receive(self) -> PeerAnswer:
        """Return the next message. The bytes of a Block follow it: call receive_into."""
        try:
            length = peer_frame.body_length(self._take(peer_frame.HEADER_BYTES))
            return peer_frame.decode_answer(self._take(length))
        except ProtocolError as error:
            raise self.broken(f"it sent an invalid message: {error}") from error

    def _take(self, count: int) -> bytes:
        if count > RECEIVE_BYTES:
            buffer = bytearray(count)
            self.receive_into(memoryview(buffer))
            return bytes(buffer)
        while len(self._buffered) < count:
            part = self._move(self._sock.recv, RECEIVE_BYTES)
            if not part:
                raise self.broken("it closed the connection")
            self.answered = True
            self._buffered = memoryview(bytes(self._buffered) + part)
        body, self._buffered = self._buffered[:count], self._buffered[count:]
        return bytes(body)

    def receive_into(self, view: memoryview) -> None:
        """Fill the buffer. A plain socket receives a whole block in one system call."""
        count = min(len(view), len(self._buffered))
        view[:count], self._buffered, view = self._buffered[:count], self._buffered[count:], view[count:]
        flags = 0 if self._tls else socket.MSG_WAITALL
        while view:
            received = self._move(self._sock.recv_into, view, 0, flags)
            if received == 0:
                raise self.broken("it closed the connection")
            self.answered = True
            view = view[received:]

    def is_quiet(self, milliseconds: int) -> bool:
        """Return whether nothing arrives within that time."""
        if self._buffered or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            return False
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return not poll.poll(milliseconds)

    def restore_blocking(self) -> None:
        """Make the socket blocking again after the event loop watched it: libuv makes watched sockets non-blocking
        and leaves them so."""
        if not self._tls:
            self._sock.setblocking(True)

    def is_stale(self) -> bool:
        """Return whether an idle connection can't be reused: its certificate expired, or the peer sent something or
        closed it."""
        return time.time() >= self._valid_until_s or not self.is_quiet(0)

    def abort(self) -> None:
        """End the connection, from any thread: a thread that waits for it sees it ended. It must still be closed."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()

    def _move(
        self, call: Callable[Arguments, Moved], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Moved:
        """Send or receive bytes. Wait up to STALL_S for a peer that is alive."""
        end_s = time.monotonic() + STALL_S
        while True:
            left_s = min(end_s - time.monotonic(), self._deadline.left_s())
            if left_s <= 0:
                raise PeerError(
                    f"node {self.who}",
                    why=f"it sent and received nothing in {STALL_S:g} s or until the deadline",
                    silent=True,
                )
            try:
                self._limit(min(left_s, SILENCE_S))
                return call(*args, **kwargs)
            except OSError as error:
                if not _is_timeout(error):
                    raise self.broken(error.strerror or str(error)) from error
            self._check_alive()

    def _limit(self, left_s: float) -> None:
        if self._tls:
            self._sock.settimeout(left_s)
        elif not 0 <= self._socket_timeout_s - left_s < 0.1:  # a change costs a system call
            value = _TIMEVAL.pack(int(left_s), int(left_s % 1 * 1e6) or 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            self._socket_timeout_s = left_s


def _is_timeout(error: OSError) -> bool:
    """Return whether this call timed out. A connection that the kernel ended with ETIMEDOUT does not count."""
    return isinstance(error, TimeoutError | BlockingIOError) and error.errno != errno.ETIMEDOUT


def _connect(
    address: str, node: str, who: str, *, limit: Deadline, tls: MutualTls | None
) -> tuple[socket.socket, str, float]:
    """Return the socket, the id in the peer's certificate, and the time when the certificate expires. Without TLS
    the id is "" and the time infinite."""
    host, _, port = address.rpartition(":")
    sock: socket.socket | None = None
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=max(0.01, limit.left_s()))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBED_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBED_AFTER_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_MS)
        if tls is not None:
            sock.settimeout(max(0.01, limit.left_s()))
            secured, member = tls.dial(sock, node)
            return secured, member.identity.name, member.until_s
        sock.settimeout(None)
        return sock, "", float("inf")
    except (OSError, ValueError, StrangerError) as error:
        if sock is not None:
            sock.close()
        reason = error.strerror if isinstance(error, OSError) else None
        if isinstance(error, StrangerError | ssl.SSLCertVerificationError):
            reason = str(error) if isinstance(error, StrangerError) else reason_of(error)
            _REFUSALS.add(reason, address=address)
        failure = f"node {who} can't be reached"
        if isinstance(error, TimeoutError):
            raise PeerError(failure, why="no connection in time", silent=True) from error
        raise PeerError(failure, why=reason or str(error)) from error
