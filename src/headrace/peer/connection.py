"""One connection to a peer, blocking; used by one thread at a time, and cut by any.

The only file that speaks to sockets here: what they raise leaves it as PeerError. No call waits beyond the deadline
that was set last. In the middle of a sentence a peer may be silent for STALL_S, if it lives: that is asked meanwhile.
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
from headrace.wire.messages import Failure, Message
from headrace.wire.peer_messages import PeerAnswer, PeerHello, PeerWelcome

CONNECT_S_MAX = 1.3
"""A host that is there answers within a round trip; a SYN that was lost is sent again after one second."""
SILENCE_S = 0.4
"""After so long without a byte it is asked whether the peer lives."""
STALL_S = 10.0
DEAD_MS = 2000
"""A connection is ended on which nothing that was sent has been acknowledged for so long: its way is dead, though
others to the same peer may not be. The peer as a whole is found out sooner."""
PROBED_AFTER_S = 1
RECEIVE_BYTES = 64 << 10
"""Taken at once where messages are awaited. With small files that is most of a file: a call to the kernel for each
header and each body would give the interpreter's lock away seven times a file, and it is long in coming back."""
_TIMEVAL = struct.Struct("ll")
_REFUSALS = Refusals(logging.getLogger(__name__), "peers, asked by this node")

Given = ParamSpec("Given")
Moved = TypeVar("Moved")


def _lives() -> None:
    pass


class PeerConnection:
    """who: for messages: the peer and its address. answered: something came since the connection was last taken.
    until_s: when the peer's certificate ends, by the wall clock."""

    def __init__(self, sock: socket.socket, who: str, address: str, *, until_s: float) -> None:
        self.who = who
        self.address = address
        self.idle_since_s = 0.0
        self._until_s = until_s
        self.answered = False
        self._sock = sock
        self._tls = isinstance(sock, ssl.SSLSocket)
        self._deadline = Deadline.never()
        self._check_alive: Callable[[], None] = _lives
        self._waits_s = -1.0
        self._ahead = memoryview(b"")  # received, and not yet asked for
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
        """Connected and greeted. node: the id that answers there, by its certificate and by what it says; "": any.
        PeerError; ProtocolError or another one that the peer says."""
        limit = Deadline.after(min(CONNECT_S_MAX, deadline.left_s()))
        sock, named, until_s = _connect(address, node, who, limit=limit, tls=tls)
        link = cls(sock, who, address, until_s=until_s)
        try:
            link.lend(limit)
            link.send(hello)
            answer = link.receive()
            if isinstance(answer, Failure):
                raise peer_frame.error_of(answer)
            if not isinstance(answer, PeerWelcome):
                raise link.broken("it does not greet")
            if not hello.protocols[0] <= answer.protocol <= hello.protocols[1]:
                raise link.broken(f"it greets with protocol {answer.protocol}")
            if named and answer.node != named:
                raise link.broken(f"its certificate is that of {named}, and it says to be {answer.node}")
            link.welcome = answer
        except BaseException:
            link.close()
            raise
        return link

    def broken(self, why: str) -> PeerError:
        return PeerError(f"node {self.who}", why=why)

    def fileno(self) -> int:
        return self._sock.fileno()

    def lend(self, deadline: Deadline, check_alive: Callable[[], None] = _lives) -> None:
        """For one request. check_alive: called by the thread that waits; PeerError when the peer does not live."""
        self._deadline = deadline
        self._check_alive = check_alive

    def send(self, message: Message) -> None:
        body = memoryview(peer_frame.encode(message))
        while body:
            body = body[self._move(self._sock.send, body) :]

    def receive(self) -> PeerAnswer:
        """The next message. Its Block's bytes, if it is one, are next: receive_into."""
        try:
            length = peer_frame.body_length(self._take(peer_frame.HEADER_BYTES))
            return peer_frame.decode_answer(self._take(length))
        except ProtocolError as error:
            raise self.broken(f"it sends nonsense: {error}") from error

    def _take(self, count: int) -> bytes:
        if count > RECEIVE_BYTES:
            whole = bytearray(count)
            self.receive_into(memoryview(whole))
            return bytes(whole)
        while len(self._ahead) < count:
            part = self._move(self._sock.recv, RECEIVE_BYTES)
            if not part:
                raise self.broken("it closed the connection")
            self.answered = True
            self._ahead = memoryview(bytes(self._ahead) + part)
        body, self._ahead = self._ahead[:count], self._ahead[count:]
        return bytes(body)

    def receive_into(self, view: memoryview) -> None:
        """Fills it. Plain sockets take a whole block with one call to the kernel."""
        count = min(len(view), len(self._ahead))
        view[:count], self._ahead, view = self._ahead[:count], self._ahead[count:], view[count:]
        flags = 0 if self._tls else socket.MSG_WAITALL
        while view:
            received = self._move(self._sock.recv_into, view, 0, flags)
            if received == 0:
                raise self.broken("it closed the connection")
            self.answered = True
            view = view[received:]

    def waits(self, milliseconds: int) -> bool:
        """Whether nothing comes within that time."""
        if self._ahead or (isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()):
            return False
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        return not poll.poll(milliseconds)

    def waited(self) -> None:
        """After a loop waited for it: libuv makes what it watches non-blocking, and leaves it so."""
        if not self._tls:
            self._sock.setblocking(True)

    def stale(self) -> bool:
        """Of one that is idle, and should have nothing to say."""
        return time.time() >= self._until_s or not self.waits(0)

    def abort(self) -> None:
        """From any thread: whoever waits for it finds it ended. It must be closed all the same."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.close()

    def _move(self, call: Callable[Given, Moved], *given: Given.args, **more: Given.kwargs) -> Moved:
        """Bytes, one way or the other. Patient with a peer that lives."""
        end_s = time.monotonic() + STALL_S
        while True:
            left_s = min(end_s - time.monotonic(), self._deadline.left_s())
            if left_s <= 0:
                raise PeerError(f"node {self.who}", why="it is silent", silent=True)
            try:
                self._limit(min(left_s, SILENCE_S))
                return call(*given, **more)
            except OSError as error:
                if not _is_timeout(error):
                    raise self.broken(error.strerror or str(error)) from error
            self._check_alive()

    def _limit(self, left_s: float) -> None:
        if self._tls:
            self._sock.settimeout(left_s)
        elif not 0 <= self._waits_s - left_s < 0.1:  # a system call; near enough is good enough
            value = _TIMEVAL.pack(int(left_s), int(left_s % 1 * 1e6) or 1)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
            self._waits_s = left_s


def _is_timeout(error: OSError) -> bool:
    """Of this call; not of the connection, which the kernel ends with ETIMEDOUT."""
    return isinstance(error, TimeoutError | BlockingIOError) and error.errno != errno.ETIMEDOUT


def _connect(
    address: str, node: str, who: str, *, limit: Deadline, tls: MutualTls | None
) -> tuple[socket.socket, str, float]:
    """The connection, the id in the peer's certificate, and until when that is good; "" and for ever without TLS."""
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
        text = error.strerror if isinstance(error, OSError) else None
        if isinstance(error, StrangerError | ssl.SSLCertVerificationError):
            text = str(error) if isinstance(error, StrangerError) else reason_of(error)
            _REFUSALS.add(text, address=address)
        what = f"node {who} can't be reached"
        if isinstance(error, TimeoutError):
            raise PeerError(what, why="no connection in time", silent=True) from error
        raise PeerError(what, why=text or str(error)) from error
