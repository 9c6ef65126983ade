"""Move the bytes of one peer connection without blocking: methods are generators that yield what they wait for.

The server that runs them (`server.py`) waits on their behalf, without a thread, and resumes them. One thread at a
time uses a channel.
"""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import ssl
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.http.admission import reset
from headrace.identity.mutual import MutualTls, PeerIdentity
from headrace.identity.names import NODE
from headrace.wire import peer_frame
from headrace.wire.message import Message
from headrace.wire.peer_messages import PeerRequest

RECEIVE_BYTES = 64 << 10
REQUEST_BYTES_MAX = 4 << 20
"""More than 256 files with paths of 4 KiB need."""
TLS_CHUNK_BYTES = 256 << 10


class Need(enum.Enum):
    """Names what a generator waits for. REQUEST: the next request, which may take long to come. READ: the rest of a
    message that has begun. WRITE: room in the socket."""

    REQUEST = 1
    READ = 2
    WRITE = 3


Result = TypeVar("Result")
Steps = Generator[Need | Future[Any], None, Result]


class PeerGoneError(Exception):
    """The peer disconnected, or must be disconnected. Only this package sees it; it ends the connection."""


class Channel:
    """Sends and receives the messages of one peer. tls: None for plain TCP."""

    def __init__(self, sock: socket.socket, tls: MutualTls | None) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # headers wait for their bytes by MSG_MORE
        self.sock = sock
        self.fd = sock.fileno()
        self._certificates = tls
        self._tls: ssl.SSLSocket | None = None
        self._received = bytearray()
        self._unsent = bytearray()
        self.sent_bytes = 0

    @property
    def received_bytes(self) -> int:
        """Return the bytes buffered of a request that is not complete yet."""
        return len(self._received)

    def handshake(self) -> Steps[PeerIdentity | None]:
        """Return the node named in the peer's certificate, or None without TLS. Raise StrangerError for a wrong
        certificate. The TLS state is created only when the peer has sent something, because OpenSSL's memory for
        silent peers would add up."""
        if self._certificates is None:
            return None
        self._tls = self._certificates.server().wrap_socket(
            self.sock, server_side=True, do_handshake_on_connect=False
        )
        self.sock = self._tls
        while True:
            try:
                self._tls.do_handshake()
                return self._certificates.member(self._tls, NODE)
            except ssl.SSLWantReadError:
                yield Need.READ
            except ssl.SSLWantWriteError:
                yield Need.WRITE

    def receive(self, *, bytes_max: int, ahead: bool = True) -> Steps[PeerRequest]:
        """Return the next request. Raise PeerGoneError at the end of the connection and for a longer request,
        ProtocolError for an invalid one. ahead: also read what follows; a peer that has not authenticated leaves
        that to the kernel's buffer."""
        yield from self._receive_until(peer_frame.HEADER_BYTES, first=Need.REQUEST, ahead=ahead)
        length = peer_frame.body_length(bytes(self._received[: peer_frame.HEADER_BYTES]))
        if length > bytes_max:
            raise PeerGoneError(f"a request of {length} bytes")
        end = peer_frame.HEADER_BYTES + length
        yield from self._receive_until(end, first=Need.READ, ahead=ahead)
        body = bytes(self._received[peer_frame.HEADER_BYTES : end])
        del self._received[:end]
        return peer_frame.decode_request(body)

    def put(self, message: Message) -> None:
        """Queue a message. It is sent with the next bytes, or by flush."""
        self._unsent += peer_frame.encode(message)

    def flush(self, *, more: bool = False) -> Steps[None]:
        """Send queued messages. more: bytes follow at once, so the kernel may hold back a packet that is not full."""
        body, self._unsent = self._unsent, bytearray()
        yield from self.send(body, more=more)

    def send(self, body: bytes | bytearray | memoryview, *, more: bool = False) -> Steps[None]:
        flags = socket.MSG_MORE if more and self._tls is None else 0
        view = memoryview(body)
        while view:
            try:
                sent = self.sock.send(view, flags)
                self.sent_bytes += sent
                view = view[sent:]
            except (BlockingIOError, ssl.SSLWantWriteError):
                yield Need.WRITE
            except ssl.SSLWantReadError:
                yield Need.READ

    def send_file(self, file: int, start: int, end: int) -> Steps[None]:
        """Send part of a file, by the kernel unless TLS is used. Raise PeerGoneError when the file ends early, and
        OSError of disk or socket."""
        if self._tls is not None:
            yield from self._send_read(file, start, end)
            return
        while start < end:
            try:
                sent = os.sendfile(self.fd, file, start, end - start)
            except BlockingIOError:
                yield Need.WRITE
                continue
            if sent == 0:
                raise PeerGoneError("a cache file is shorter than it should be")
            self.sent_bytes += sent
            start += sent

    def close(self, *, at_once: bool = False) -> None:
        """Close the connection. at_once: discard also what the kernel has not sent."""
        with contextlib.suppress(OSError):
            reset(self.sock) if at_once else self.sock.close()

    def shut(self) -> None:
        """End the connection, from any thread: a thread that waits for it sees it ended."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def _send_read(self, file: int, start: int, end: int) -> Steps[None]:
        while start < end:
            body = os.pread(file, min(TLS_CHUNK_BYTES, end - start), start)
            if not body:
                raise PeerGoneError("a cache file is shorter than it should be")
            yield from self.send(body)
            start += len(body)

    def _receive_until(self, length: int, *, first: Need, ahead: bool) -> Steps[None]:
        while (missing := length - len(self._received)) > 0:
            try:
                body = self.sock.recv(RECEIVE_BYTES if ahead else missing)
            except (BlockingIOError, ssl.SSLWantReadError):
                yield Need.READ if self._received else first
                continue
            except ssl.SSLWantWriteError:
                yield Need.WRITE
                continue
            if not body:
                raise PeerGoneError("the peer closed the connection")
            self._received += body
