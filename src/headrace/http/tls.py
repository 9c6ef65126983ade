"""A door's connections by TLS: the same as `connection.py`, with OpenSSL between socket and bytes.

The kernel can't send a file's pages as they are then: bytes are read, encrypted outside of the interpreter's lock, and
sent. A renewed certificate is taken for new connections as soon as both files are there.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial

from headrace.base.errors import UsageError
from headrace.base.refusals import reason_of
from headrace.base.reloaded import Reloaded
from headrace.base.secret_file import load_key
from headrace.http.connection import RECEIVE_BYTES, HttpServerConnection
from headrace.http.errors import HungUpError
from headrace.http.messages import Response
from headrace.identity.names import StrangerError

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

    def connection(self, sock: socket.socket, address: str) -> TlsConnection:
        """Of a new client, which has said nothing yet."""
        return TlsConnection(sock, address, self)

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """The handshake is still to be made. OSError where the client is gone."""
        return self._context().wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def admit(self, sock: ssl.SSLSocket) -> float:
        """Return until when the client is served, after the handshake. HungUpError where he is not."""
        try:
            return math.inf if self._admit is None else self._admit(sock)
        except StrangerError as error:
            raise HungUpError(str(error)) from error


def server_tls(certificate: str, key: str, setting: str, *, authority: str = "") -> ServerTls | None:
    """authority: PEM file of who must have signed the certificates of clients; "": they need none. None where no
    certificate is set. UsageError."""
    if not certificate:
        return None
    files = [file for file in (certificate, key, authority) if file]
    try:
        build = partial(
            _context, certificate, key, authority, f"setting {setting.replace('certificate', 'key')}"
        )
        return ServerTls(Reloaded(files, build, name=setting).get)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"setting {setting} = {certificate!r}, and its key {key!r}",
            why=error.strerror or str(error),
            hint="PEM files: the certificate with its chain, and its key without a password",
        ) from error


class TlsConnection(HttpServerConnection):
    """OpenSSL's part is made when the client has begun to speak: who is silent costs little."""

    sock: ssl.SSLSocket
    secure = True

    def __init__(self, sock: socket.socket, address: str, tls: ServerTls) -> None:
        super().__init__(sock, address)
        self._tls = tls
        self._until_s = math.inf

    def shake_hands(self) -> bool:
        """One step, which never waits; False: `events` have to come before the next. HungUpError, also for a client
        that is not to be served."""
        try:
            if not isinstance(self.sock, ssl.SSLSocket):
                self.sock = self._tls.wrap(self.sock)
            self.sock.do_handshake()
        except ssl.SSLWantReadError:
            self.events = select.EPOLLIN
            return False
        except ssl.SSLWantWriteError:
            self.events = select.EPOLLOUT
            return False
        except OSError as error:
            raise HungUpError((isinstance(error, ssl.SSLError) and reason_of(error)) or str(error)) from error
        self._until_s = self._tls.admit(self.sock)
        self.certificate = _name_of(self.sock.getpeercert())
        return True

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
        self.begin(response, head)
        return False

    def _send_file(self, fd: int, end: int) -> bool:
        while self.at < end:
            self.buffer_out = os.pread(fd, min(FILE_STEP_BYTES, end - self.at), self.at)
            if not self.buffer_out:
                raise HungUpError("the file was cut short while it was sent")
            self.at += len(self.buffer_out)
            if not self._push(more=True):
                return False
        return True

    def _push(self, *, more: bool) -> bool:
        while self.buffer_out:
            try:
                self.buffer_out = self.buffer_out[self.sock.send(self.buffer_out) :]
            except ssl.SSLWantWriteError:
                if not self._has_room(select.POLLOUT):
                    return False
            except ssl.SSLWantReadError:
                if not self._has_room(select.POLLIN):
                    return False
            except OSError as error:
                raise HungUpError(str(error)) from error
        return True


def _name_of(certificate: object) -> str:
    """Of the client: the first name for which its certificate is, else its common name."""
    if not isinstance(certificate, dict) or not certificate:
        return ""
    names = [value for _, value in certificate.get("subjectAltName", ())]
    names += [value for rdn in certificate.get("subject", ()) for key, value in rdn if key == "commonName"]
    return str(names[0]) if names else "certificate"


def _context(certificate: str, key: str, authority: str, subject: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    load_key(context, certificate, key, subject)
    if authority:
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
