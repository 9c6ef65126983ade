"""Serve connections over TLS: as `connection.py` does, with OpenSSL between socket and bytes.

The kernel can't send file pages over TLS. The server reads bytes, encrypts them without the GIL and sends them. A
renewed certificate is used for new connections as soon as both files are in place.
"""

from __future__ import annotations

import math
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
from headrace.http.errors import ClientLeftError, HungUpError
from headrace.http.messages import Response
from headrace.identity.names import StrangerError

ALPN = ["http/1.1"]


class ServerTls:
    """Creates TLS connections.

    context: returns the context for the next connection. admit: reads the client's certificate after the handshake and
    returns the Unix time at which it expires; it raises StrangerError for a client that must not be served. None:
    clients need no certificate.
    """

    def __init__(
        self, context: Callable[[], ssl.SSLContext], *, admit: Callable[[ssl.SSLSocket], float] | None = None
    ) -> None:
        self._context = context
        self._admit = admit

    def connection(self, sock: socket.socket, address: str) -> TlsConnection:
        """Return the connection of a new client, before its handshake."""
        return TlsConnection(sock, address, self)

    def wrap(self, sock: socket.socket) -> ssl.SSLSocket:
        """Return a TLS socket before its handshake. Raise OSError when the client disconnected."""
        return self._context().wrap_socket(
            sock, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=True
        )

    def admit(self, sock: ssl.SSLSocket) -> float:
        """Return the Unix time until which the client may be served. Raise HungUpError if it must not be served."""
        try:
            return math.inf if self._admit is None else self._admit(sock)
        except StrangerError as error:
            raise HungUpError(str(error)) from error


def server_tls(certificate: str, key: str, setting: str, *, authority: str = "") -> ServerTls | None:
    """Return the TLS of the settings, or None when no certificate is set. Raise UsageError. authority: PEM file of
    the authority that must have signed client certificates, with which their connections end; "": clients need none."""
    if not certificate:
        return None
    files = [file for file in (certificate, key, authority) if file]
    try:
        build = partial(
            _context, certificate, key, authority, f"setting {setting.replace('certificate', 'key')}"
        )
        return ServerTls(Reloaded(files, build, name=setting).get, admit=_expiry_of if authority else None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"setting {setting} = {certificate!r}, and its key {key!r}",
            why=error.strerror or str(error),
            hint="PEM files: the certificate with its chain, and its key without a password",
        ) from error


class TlsConnection(HttpServerConnection):
    """Is a connection over TLS. The TLS state is created when the client first sends something, so silent clients
    cost little."""

    sock: ssl.SSLSocket
    secure = True

    def __init__(self, sock: socket.socket, address: str, tls: ServerTls) -> None:
        super().__init__(sock, address)
        self._tls = tls
        self._served_until_s = math.inf

    def shake_hands(self) -> bool:
        """Run one step of the handshake without waiting. Return False when `events` must occur before the next step.
        Raise HungUpError, also for a client that must not be served, and ClientLeftError."""
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
        except ConnectionError as error:
            raise ClientLeftError(str(error)) from error
        except OSError as error:
            reason = reason_of(error) if isinstance(error, ssl.SSLError) else str(error)
            raise HungUpError(reason) if reason else ClientLeftError(str(error)) from error
        self._served_until_s = self._tls.admit(self.sock)
        self.certificate = _name_of(self.sock.getpeercert())
        return True

    def receive_now(self, count: int) -> bytes | None:
        """Return all decrypted bytes: epoll does not report what OpenSSL has buffered. Return b"", the end, once the
        client's certificate has expired."""
        if time.time() >= self._served_until_s:
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
        """Return False: encryption must run in a thread."""
        self.prepare(response, head)
        return False

    def _push(self, *, more: bool) -> bool:
        while self.unsent:
            try:
                self.unsent = self.unsent[self.sock.send(self.unsent) :]
            except ssl.SSLWantWriteError:
                if not self._is_ready(select.POLLOUT):
                    return False
            except ssl.SSLWantReadError:
                if not self._is_ready(select.POLLIN):
                    return False
            except OSError as error:
                raise HungUpError(str(error)) from error
        return True


def _expiry_of(sock: ssl.SSLSocket) -> float:
    """Return the Unix time at which the client's certificate expires, which OpenSSL has verified."""
    certificate = sock.getpeercert() or {}
    expiry = certificate.get("notAfter")
    return ssl.cert_time_to_seconds(expiry) if isinstance(expiry, str) else 0.0


def _name_of(certificate: object) -> str:
    """Return the first name in the client's certificate, or its common name."""
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
