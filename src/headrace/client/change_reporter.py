"""Report changed paths to the node: in order, in batches, from one thread, and repeatedly until the node answers.

If this process dies first, the node finds the unreported changes by a scan of the upper layer.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time

from headrace.base.errors import CancelledByUserError, HeadraceError
from headrace.client.connection import RECONNECT_PAUSE_S, Connections
from headrace.wire.messages import Changed

log = logging.getLogger(__name__)

BATCH = 4096
PAUSE_S = 0.05
"""Seconds between two messages; the pause leaves the processor to writers of many small files."""


class ChangeReporter:
    """Queues changed paths and sends them to the node. source: a random number that identifies this client."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.source = int.from_bytes(os.urandom(8), "little") >> 2 | 1
        self._queue: queue.SimpleQueue[Changed | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def add(self, paths: list[bytes], *, begun: bool = False) -> None:
        """Queue paths. begun: they are about to be written."""
        self._queue.put(Changed(paths=[], begun=paths) if begun else Changed(paths=paths))
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, daemon=True, name=f"changes-{os.getpid()}"
                    )
                    self._thread.start()

    def close(self, *, wait_s: float = 0.0) -> None:
        """Stop the thread after all queued paths. wait_s: the longest time to wait until the node has them all."""
        self._queue.put(None)
        if self._thread is not None and wait_s:
            self._thread.join(wait_s)

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            paths, begun, is_last = list(first.paths), list(first.begun), False
            while len(paths) < BATCH and not self._queue.empty():
                more = self._queue.get()
                if more is None:
                    is_last = True
                    break
                paths += more.paths
                begun += more.begun
            self._send(Changed(list(dict.fromkeys(paths)), self.source, list(dict.fromkeys(begun))))
            if is_last:
                return
            time.sleep(PAUSE_S)

    def _send(self, change: Changed) -> None:
        while True:
            try:
                self._connections.ask(change)
                return
            except CancelledByUserError:
                return
            except HeadraceError as error:
                log.info("changes were not reported to the node, retrying error=%s", error)
                time.sleep(RECONNECT_PAUSE_S)
