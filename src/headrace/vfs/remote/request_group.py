"""End requests that several threads make to other hosts, when nobody waits for their answers any more."""

from __future__ import annotations

import threading

from headrace.base.errors import CancelledByUserError
from headrace.http.node_connection import HttpConnection


class RequestGroup:
    """The requests of one call. Thread-safe; each thread makes one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._links: dict[int, HttpConnection] = {}
        """Connections in use, by thread."""
        self._is_ended = False

    def check(self) -> None:
        """Raise CancelledByUserError if the requests were ended."""
        if self._is_ended:
            raise CancelledByUserError("request to another host", why="nobody waits for it any more")

    def hold(self, link: HttpConnection) -> None:
        """Note the connection that this thread uses. Raise CancelledByUserError if the requests were ended."""
        with self._lock:
            self.check()
            self._links[threading.get_ident()] = link

    def release(self) -> None:
        """Forget this thread's connection, before another request may use it."""
        with self._lock:
            self._links.pop(threading.get_ident(), None)

    def end(self) -> None:
        """Let all threads return soon: no further request begins, and the connections in use are cut off."""
        with self._lock:
            self._is_ended = True
            for link in self._links.values():
                link.abort()
