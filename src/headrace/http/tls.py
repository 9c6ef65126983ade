"""TLS of a server's connection, with the calls of a plain socket that `connection.py` makes. It never blocks.

The handshake is done by the first `recv`. No bytes of the client are kept back here as long as `recv` is asked for a
record's worth, 16 KiB: so epoll on the descriptor says when there is more.
"""

from __future__ import annotations

import os
import socket
import ssl

SEND_BYTES = 256 << 10


class TlsSocket:
    """sock: belongs to this from now on. OSError where the connection is gone already."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        sock.setblocking(False)
        self._tls = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)

    def recv(self, count: int) -> bytes:
        """BlockingIOError; OSError, also for who has no certificate that is taken."""
        try:
            return self._tls.recv(count)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send(self, data: bytes | memoryview, flags: int = 0) -> int:
        """flags mean nothing here."""
        try:
            return self._tls.send(data)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None

    def send_from(self, fd: int, at: int, count: int) -> int:
        """As sendfile(2)."""
        data = os.pread(fd, min(count, SEND_BYTES), at)
        return self.send(data) if data else 0

    def fileno(self) -> int:
        return self._tls.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001 - as of a socket
        self._tls.setblocking(flag)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self._tls.setsockopt(level, name, value)

    def shutdown(self, how: int) -> None:
        self._tls.shutdown(how)

    def close(self) -> None:
        self._tls.close()
