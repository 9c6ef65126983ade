"""A link to a server that can be cut, as a network partition does: bytes wait until it is whole again."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TcpLink:
    """Forwards connections to a server. address: to use in the server's place."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.bytes_down = 0
        """Bytes from the server so far."""
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._counting = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        self._is_whole.clear()

    def heal(self) -> None:
        self._is_whole.set()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self.heal()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in [self._listening, *self._sockets]:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                down, _ = self._listening.accept()
            except OSError:
                return
            host, port = self._upstream.split(":")
            try:
                up = socket.create_connection((host, int(port)))
            except OSError:
                down.close()
                continue
            self._sockets += [down, up]
            for source, target in ((down, up), (up, down)):
                thread = threading.Thread(target=self._forward, args=(source, target, source is up))
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, target: socket.socket, is_down: bool) -> None:
        with contextlib.suppress(OSError):
            while body := source.recv(65536):
                self._is_whole.wait()
                if is_down:
                    with self._counting:
                        self.bytes_down += len(body)
                target.sendall(body)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def tcp_link(upstream: str) -> Iterator[TcpLink]:
    link = TcpLink(upstream)
    try:
        yield link
    finally:
        link.close()
