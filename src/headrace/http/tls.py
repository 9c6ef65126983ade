"""A door's connections by TLS: the same as `connection.py`, with OpenSSL between socket and bytes.

The kernel can't send a file's pages as they are then: bytes are read, encrypted outside of the interpreter's lock, and
sent. A renewed certificate is taken for new connections as soon as both files are there.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import ssl
import time

from headrace.base.errors import UsageError
from headrace.http.connection import RECEIVE_BYTES, Connection
from headrace.http.errors import HungUpError
from headrace.http.messages import Response

log = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
LOOK_EVERY_S = 1.0
FILE_STEP_BYTES = 256 << 10
ALPN = ["http/1.1"]


class ServerTls:
    """certificate: PEM file, with the chain; key: PEM file. authority: PEM file of who must have signed the
    certificates of clients; "": they need none. UsageError for files that are none."""

    def __init__(self, certificate: str, key: str, setting: str, *, authority: str = "") -> None:
        self._files = certificate, key, *([authority] if authority else [])
        self._stamp = _stamp(self._files)
        self._looked_s = time.monotonic()
        try:
            self._context = _context(self._files)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"setting {setting} = {certificate!r}, and its key {key!r}",
                why=error.strerror or str(error),
                hint="PEM files: the certificate with its chain, and its key without a password",
            ) from error

    def connection(self, sock: socket.socket) -> TlsConnection:
        """Of a new client; the handshake is still to be made. OSError where it is gone."""
        self._look()
        sock.setblocking(False)
        return TlsConnection(
            self._context.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
            )
        )

    def _look(self) -> None:
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        stamp = _stamp(self._files)
        if stamp == self._stamp:
            return
        try:
            self._context = _context(self._files)
        except (
            OSError,
            ssl.SSLError,
        ) as error:  # half of a renewal: the old one is good until the rest is there
            log.warning("certificate not taken file=%s error=%s", self._files[0], error)
        else:
            self._stamp = stamp
            log.info("certificate taken anew file=%s", self._files[0])


def server_tls(certificate: str, key: str, setting: str) -> ServerTls | None:
    """None where no certificate is set. UsageError."""
    return ServerTls(certificate, key, setting) if certificate else None


class TlsConnection(Connection):
    sock: ssl.SSLSocket
    secure = True

    def shake_hands(self) -> None:
        """Waits. HungUpError."""
        until_s = time.monotonic() + HANDSHAKE_S
        while True:
            try:
                self.sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            except OSError as error:
                raise HungUpError(str(error)) from error
            self._wait(event, max(0.0, until_s - time.monotonic()) * 1000)

    def receive_now(self, count: int) -> bytes | None:
        """All of what was decrypted: what OpenSSL keeps, no epoll tells of."""
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


def _context(files: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    context.load_cert_chain(
        files[0], files[1], password=lambda: ""
    )  # a key with a password is refused, and not asked for
    if len(files) > 2:
        context.load_verify_locations(files[2])
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _stamp(files: tuple[str, ...]) -> list[tuple[int, int, int]]:
    found = []
    for name in files:
        try:
            seen = os.stat(name)
        except OSError:
            continue
        found.append((seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return found
