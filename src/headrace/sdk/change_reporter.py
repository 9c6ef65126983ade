"""Telling the node what was written here: in order, in batches, from one thread, again until it has heard.

What is not told because this process dies, the node finds by looking over the upper layer.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time

from headrace.base.errors import CancelledByUserError, HeadraceError
from headrace.sdk.connection import RECONNECT_PAUSE_S, Connections
from headrace.wire.messages import Changed

log = logging.getLogger(__name__)

BATCH = 4096
PAUSE_S = 0.05
"""Between two messages: the makers of many small files have better use for the processor."""


class ChangeReporter:
    """source: random; which client tells."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.source = int.from_bytes(os.urandom(8), "little") >> 2 | 1
        self._told: queue.SimpleQueue[Changed | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def add(self, paths: list[bytes], *, begun: bool = False) -> None:
        """begun: they are about to be written."""
        self._told.put(Changed(paths=[], begun=paths) if begun else Changed(paths=paths))
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, daemon=True, name=f"changes-{os.getpid()}"
                    )
                    self._thread.start()

    def close(self, *, wait_s: float = 0.0) -> None:
        """wait_s: so long at most until the node has heard all."""
        self._told.put(None)
        if self._thread is not None and wait_s:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            first = self._told.get()
            if first is None:
                return
            paths, begun, last = list(first.paths), list(first.begun), False
            while len(paths) < BATCH and not self._told.empty():
                more = self._told.get()
                if more is None:
                    last = True
                    break
                paths += more.paths
                begun += more.begun
            self._tell(Changed(list(dict.fromkeys(paths)), self.source, list(dict.fromkeys(begun))))
            if last:
                return
            time.sleep(PAUSE_S)

    def _tell(self, what: Changed) -> None:
        while True:
            try:
                self._connections.ask(what)
                return
            except CancelledByUserError:
                return
            except HeadraceError as error:
                log.info("the node was not told of changes, again error=%s", error)
                time.sleep(RECONNECT_PAUSE_S)
