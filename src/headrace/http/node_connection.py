"""Connect to a node's REST API: blocking, one request at a time, by Python's own HTTP client.

If a node is silent for a while, another connection probes whether it is alive. A node that waits for a slow origin
gets more time. A node that is down is detected in seconds.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.identity.mutual import MutualTls
from headrace.identity.names import StrangerError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT_S = 3.0
SILENCE_S = 3.0
ALIVE_LIMIT_S = 2.0
STALL_S = 30.0
"""Seconds without a byte, in the middle of a body, after which the call fails."""


class HttpResponse:
    """Reads a response. The caller reads the whole body before the next request."""

    def __init__(self, response: http.client.HTTPResponse, who: str) -> None:
        self.status = response.status
        self._response = response
        self._who = who

    def header(self, name: str) -> str:
        return self._response.getheader(name) or ""

    def read(self) -> bytes:
        with translating_http_errors(self._who):
            return self._response.read()

    def read_at_most(self, limit_bytes: int) -> bytes | None:
        """Read the whole body; return None if it is longer. Then the connection can't be used any more. Raises
        NodeUnavailableError where the response breaks off before."""
        with translating_http_errors(self._who):
            body = self._response.read(limit_bytes + 1)
            if len(body) > limit_bytes or self._response.read(1):
                return None
            if self._response.length:  # http.client reports that of a read without a size only
                raise NodeUnavailableError(self._who, why="its answer broke off")
            return body

    def read_exactly(self, count: int) -> bytes:
        """Read a body of this length. Raises NodeUnavailableError where the response has another one."""
        with translating_http_errors(self._who):
            body = self._response.read(count)
            if len(body) != count:
                raise NodeUnavailableError(self._who, why="its answer broke off")
            self._end()
        return body

    def read_into(self, target: memoryview) -> None:
        """Fill the target with the body. Raises NodeUnavailableError where the response breaks off before."""
        offset = 0
        with translating_http_errors(self._who):
            while offset < len(target):
                count = self._response.readinto(target[offset:])
                if not count:
                    raise NodeUnavailableError(self._who, why="its answer broke off")
                offset += count
            self._end()

    def _end(self) -> None:
        """Free the connection for the next request, after all bytes were read."""
        if self._response.read(1):
            raise NodeUnavailableError(self._who, why="its answer is longer than expected")


@dataclass(frozen=True, slots=True)
class Address:
    """Names a node's API. tls: for https; with a node's identity, or by names of hosts. option: of the mount that has
    the certificates; "": settings have them."""

    url: str
    tls: MutualTls | ssl.SSLContext | None
    option: str = ""

    @property
    def who(self) -> str:
        return f"node at {self.url}"


class HttpConnection:
    """Sends requests to one address. is_node_alive: called while the node is silent; False ends the request."""

    def __init__(self, address: Address, is_node_alive: Callable[[], bool]) -> None:
        self.address = address
        self.pid = os.getpid()
        self.used = False
        """True after the first request. The node may have closed the connection since."""
        self._patience = _Patience(address.who, is_node_alive)
        self._http = _connection(address)
        self._http.response_class = functools.partial(_response_from, self._patience)  # type: ignore[assignment]
        with translating_http_errors(address.who, address.option):
            self._http.connect()
        self._sock = self._http.sock

    def ask(
        self, method: str, target: str, headers: dict[str, str], body: bytes | IO[bytes] | None = None
    ) -> HttpResponse:
        """Send a request and return the response. After NodeUnavailableError it is unknown whether the node ran the
        request."""
        with translating_http_errors(self.address.who, self.address.option):
            try:
                self._http.request(method, target, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
                response = self._refusal()
            else:
                response = self._await_response()
        self.used = True
        return HttpResponse(response, self.address.who)

    def _refusal(self) -> http.client.HTTPResponse:
        """Return the response of a node that closed the connection while it was sent a body: it refuses a request
        without all of its bytes. Raises an error of the connection if there is none."""
        response = self._http.getresponse()
        if response.status < 400:
            raise ConnectionResetError("it closed the connection")
        return response

    def _await_response(self) -> http.client.HTTPResponse:
        """Wait for the head of the response, as long as the node is alive."""
        self._sock = sock = self._http.sock  # it connects again after an answer that closed the connection
        sock.settimeout(SILENCE_S)
        self._patience.awaits_head = True
        try:
            return self._http.getresponse()
        finally:
            self._patience.awaits_head = False
            with contextlib.suppress(OSError):  # it is closed
                sock.settimeout(STALL_S)

    @property
    def is_open(self) -> bool:
        """Return whether the last answer left the connection open."""
        return self._http.sock is not None

    def abort(self) -> None:
        """End the request that another thread is making: that thread gets NodeUnavailableError."""
        with contextlib.suppress(OSError):  # it was closed meanwhile
            socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self._http.close()


class _Patience:
    """Decides whether a call waits on for a node that is silent. awaits_head: nothing of its answer is there yet."""

    def __init__(self, who: str, is_node_alive: Callable[[], bool]) -> None:
        self.awaits_head = False
        self._who = who
        self._is_node_alive = is_node_alive

    def check(self) -> None:
        """Return if the call waits on after the timeout of its socket."""
        if not self.awaits_head:
            raise TimeoutError("it sent nothing more")
        if not self._is_node_alive():
            raise NodeUnavailableError(self._who, why="it stopped answering")


def _response_from(patience: _Patience, sock: socket.socket, **options: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_PatientFile(sock, patience), **options)  # type: ignore[arg-type]


class _PatientFile:
    """Opens a socket as a file for http.client. A socket of TLS may be readable without any byte of an answer, for
    example after a ticket of its session, so a poll can't tell whether the node is silent."""

    def __init__(self, sock: socket.socket, patience: _Patience) -> None:
        self._sock = sock
        self._patience = patience

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(_PatientReader(self._sock, self._patience))


class _PatientReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, patience: _Patience) -> None:
        super().__init__()
        self._sock = sock
        self._patience = patience
        self._opened = sock.makefile("rb", buffering=0)  # the socket stays open as long as this

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        while True:
            try:
                return self._sock.recv_into(buffer)
            except TimeoutError:
                self._patience.check()

    def close(self) -> None:
        self._opened.close()
        super().close()


class translating_http_errors:
    """Translates errors of sockets and of HTTP to errors of Headrace. option: as in Address."""

    def __init__(self, who: str, option: str = "") -> None:
        self._who = who
        self._option = f"the option {option}" if option else ""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ssl.SSLCertVerificationError):
            raise NodeUnavailableError(
                self._who,
                why=f"its certificate is not accepted: {error.verify_message}",
                hint=f"see {self._option or 'tls_authority'}",
            ) from None
        if isinstance(error, StrangerError):
            hint = f"see {self._option or 'tls_certificate'}"
            raise NodeUnavailableError(self._who, why=str(error), hint=hint) from None
        if isinstance(error, (OSError, http.client.HTTPException)) and not isinstance(
            error, NodeUnavailableError
        ):
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NodeUnavailableError(self._who, why=why) from None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("node", timeout=STALL_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(STALL_S)
        self.sock.connect(self._path)


class _TcpConnection(http.client.HTTPConnection):
    def __init__(self, host: str, port: int, tls: MutualTls | ssl.SSLContext | None) -> None:
        super().__init__(host, port, timeout=CONNECT_S)
        self._tls = tls

    def connect(self) -> None:
        super().connect()
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)
        self.sock.settimeout(STALL_S)


def _connection(address: Address) -> http.client.HTTPConnection:
    if address.url.startswith("unix:"):
        return _UnixConnection(address.url.removeprefix("unix:"))
    parts = urlsplit(address.url)
    try:
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UsageError(address.url, why=str(error)) from None
    return _TcpConnection(host, port, address.tls)


def is_alive(address: Address) -> bool:
    """Return whether a node answers at an address within a moment."""
    connection = _connection(address)
    try:
        connection.connect()
        connection.sock.settimeout(ALIVE_LIMIT_S)
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException, StrangerError):
        return False
    finally:
        connection.close()
