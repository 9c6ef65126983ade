"""Accept connections in a thread that waits by epoll: for the gateways and for the peers' port."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Iterator

from headrace.base.refusals import Refusals
from headrace.http.admission import Admission, Connection, reset

log = logging.getLogger(__name__)

SLICE_S = 0.002
"""Seconds for which new connections are accepted before the waiting thread polls again."""


class Acceptor:
    """Accepts connections of a listening socket that does not block, and resets those of an address that opens too
    many a second. It pauses when the process has no descriptor left, or the waiting thread would spin. Only the waiting
    thread uses it. name: the server's name, for the log."""

    def __init__(
        self,
        listener: socket.socket,
        epoll: select.epoll,
        admission: Admission[Connection],
        refusals: Refusals,
        *,
        name: str,
    ) -> None:
        self._listener = listener
        self._epoll = epoll
        self._admission = admission
        self._refusals = refusals
        self._name = name
        self.is_paused = True
        self.resume()

    def fileno(self) -> int:
        return self._listener.fileno()

    def resume(self) -> None:
        """Accept again after a pause."""
        if self.is_paused:
            self._epoll.register(self._listener, select.EPOLLIN)
            self.is_paused = False

    def accept(self) -> Iterator[tuple[socket.socket, str, int]]:
        """Yield the connections that wait, with host and port of the client, for one time slice; epoll reports the
        rest again. A client of a unix socket has no host, and port 0."""
        deadline_s = time.monotonic() + SLICE_S
        while time.monotonic() < deadline_s:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("a connection was not accepted server=%s error=%s", self._name, error)
                self._pause()
                return
            host, port = (str(address[0]), int(address[1])) if isinstance(address, tuple) else ("", 0)
            if self._admission.arrive(host):
                yield sock, host, port
            else:
                self._refusals.add("too many new connections a second", address=host)
                reset(sock)

    def close(self) -> None:
        if not self.is_paused:
            self._pause()
        self._listener.close()

    def _pause(self) -> None:
        self._epoll.unregister(self._listener)
        self.is_paused = True
