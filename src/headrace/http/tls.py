"""A door's connections by TLS: the same as `connection.py`, with OpenSSL between socket and bytes.

The kernel can't send a file's pages as they are then: bytes are read, encrypted outside of the interpreter's lock, and
sent. A renewed certificate is taken for new connections as soon as both files are there.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import ssl
import time
from collections.abc import Callable

from headrace.base.errors import UsageError
from headrace.base.reloaded import Reloaded
from headrace.http.connection import RECEIVE_BYTES, Connection
from headrace.http.errors import HungUpError
from headrace.http.messages import Response
from headrace.identity.names import StrangerError
from headrace.identity.refusals import Refusals, reason_of

HANDSHAKE_S = 10.0
FILE_STEP_BYTES = 256 << 10
ALPN = ["http/1.1"]


class ServerTls:
    """context: for the next connection. admit: reads the client's certificate after the handshake: until when it
    is good, by the wall clock; StrangerError where he is not to be served. None: clients show none."""

    def __init__(
        self, context: Callable[[], ssl.SSLContext], *, admit: Callable[[ssl.SSLSocket], float] | None = None
    ) -> None:
        self._context = context
        self._admit = admit
        self._refusals = Refusals("the gateway")

    def connection(self, sock: socket.socket) -> TlsConnection:
        """Of a new client; the handshake is still to be made. OSError where it is gone."""
        sock.setblocking(False)
        return TlsConnection(
            self._context().wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            ),
            self,
        )

    def greet(self, sock: ssl.SSLSocket, address: str) -> float:
        """After the handshake: until when the client is served. HungUpError where he is not."""
        if self._admit is None:
            return math.inf
        try:
            return self._admit(sock)
        except StrangerError as error:
            self._refusals.note(address, str(error))
            raise HungUpError(str(error)) from error

    def failed(self, error: ssl.SSLError, address: str) -> None:
        """The handshake did, and not because the client left. Where no certificate is asked for, anybody may knock."""
        if self._admit is not None and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            self._refusals.note(address, reason_of(error))


def server_tls(certificate: str, key: str, setting: str, *, authority: str = "") -> ServerTls | None:
    """authority: PEM file of who must have signed the certificates of clients; "": they need none. None where no
    certificate is set. UsageError."""
    if not certificate:
        return None
    files = [file for file in (certificate, key, authority) if file]
    try:
        return ServerTls(Reloaded(files, lambda: _context(certificate, key, authority), name=setting).get)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"setting {setting} = {certificate!r}, and its key {key!r}",
            why=error.strerror or str(error),
            hint="PEM files: the certificate with its chain, and its key without a password",
        ) from error


class TlsConnection(Connection):
    sock: ssl.SSLSocket
    secure = True

    def __init__(self, sock: ssl.SSLSocket, server: ServerTls) -> None:
        super().__init__(sock)
        self._server = server
        self._until_s = math.inf

    def shake_hands(self) -> None:
        """Waits. HungUpError, also for a client that is not to be served."""
        until_s = time.monotonic() + HANDSHAKE_S
        while True:
            try:
                self.sock.do_handshake()
                self._until_s = self._server.greet(self.sock, self._address())
                return
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            except OSError as error:
                if isinstance(error, ssl.SSLError):
                    self._server.failed(error, self._address())
                raise HungUpError(str(error)) from error
            self._wait(event, max(0.0, until_s - time.monotonic()) * 1000)

    def _address(self) -> str:
        with contextlib.suppress(OSError, IndexError, TypeError):
            host, port = self.sock.getpeername()[:2]
            return f"{host}:{port}"
        return ""

    def receive_now(self, count: int) -> bytes | None:
        """All of what was decrypted: what OpenSSL keeps, no epoll tells of. The end, once the client's certificate has
        ended."""
        if time.time() >= self._until_s:
            return b""
        try:
            return self.sock.recv(max(count, RECEIVE_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError:
            return b""

    def receive(self, count: int) -> bytes:
        while True:
            try:
                piece = self.sock.recv(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
                continue
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
                continue
            except OSError as error:
                raise HungUpError(str(error)) from error
            if not piece:
                raise HungUpError("the client closed the connection")
            self.buffer += piece[count:]
            return piece[:count]

    def send_now(self, response: Response, head: bytes, small_bytes: int) -> bool:
        """Never: encrypting is for a thread."""
        self.buffer_out, self.at = head, response.start
        if response.content is None or response.bodiless:
            self.buffer_out, self.at = head if response.bodiless else head + response.body, response.end
        return False

    def _send_file(self, fd: int, end: int) -> None:
        while self.at < end:
            data = os.pread(fd, min(FILE_STEP_BYTES, end - self.at), self.at)
            if not data:
                raise HungUpError("the file was cut short while it was sent")
            self.send_all(data)
            self.at += len(data)

    def send_all(self, data: bytes, *, more: bool = False) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except ssl.SSLWantWriteError:
                self._wait(select.POLLOUT)
            except ssl.SSLWantReadError:
                self._wait(select.POLLIN)
            except OSError as error:
                raise HungUpError(str(error)) from error


def _context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    context.load_cert_chain(
        certificate, key, password=lambda: ""
    )  # a key with a password is refused, and not asked for
    if authority:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
