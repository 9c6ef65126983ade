"""An object store whose every answer is late: a relay before it, for bytes."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from urllib.parse import urlsplit

from headrace.lab import network, processes, services


class Relay:
    """Relays to `upstream`, on all addresses. Each answer waits delay_s."""

    def __init__(self, upstream: tuple[str, int], delay_s: float) -> None:
        self._upstream = upstream
        self._delay_s = delay_s
        self._listening = socket.create_server(("", 0), backlog=1024)
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._upstream)
                asked = threading.Event()
                for given in ((near, far, asked.set), (far, near, partial(self._wait, asked))):
                    threading.Thread(target=_move, args=given, daemon=True).start()

    def _wait(self, asked: threading.Event) -> None:
        if asked.is_set():
            asked.clear()
            time.sleep(self._delay_s)


def _move(source: socket.socket, sink: socket.socket, before_each: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while body := source.recv(1 << 16):
            before_each()
            sink.sendall(body)
    for sock in (source, sink):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def slow_store(
    folder: str, lab_folder: str, delay_s: float
) -> Iterator[tuple[services.ObjectStore, services.ObjectStore]]:
    """Yield the store itself, and as the nodes of a lab in that folder see it."""
    try:
        store = services.start_object_store(folder, "127.0.0.1")
        endpoint = urlsplit(store.options["endpoint"])
        relay = Relay(("127.0.0.1", endpoint.port or 80), delay_s)
        try:
            net = network.choose(lab_folder, 0)[0]
            try:
                net.make()
                late = {**store.options, "endpoint": f"http://{net.gateway}:{relay.port}"}
                yield store, services.ObjectStore(store.url, late)
            finally:
                net.remove()
        finally:
            relay.close()
    finally:
        processes.kill(folder)
        if os.path.isdir(folder):
            services.clear_object_store(folder)
