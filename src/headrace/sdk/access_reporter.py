"""Telling the node which files were used, for its eviction: in batches, from one thread, lost without harm.

`touch` is on the hot way of an open: an append and a comparison. The thread begins with the first touch, also in a
child after a fork, and waits without waking while nothing is touched.
"""

from __future__ import annotations

import logging
import threading

from headrace.base.errors import HeadraceError
from headrace.sdk.connection import Connections
from headrace.wire.messages import Touch

log = logging.getLogger(__name__)

BATCH = 4096
INTERVAL_S = 1.0
WAITING_MAX = 100_000
"""While the node does not answer."""


class AccessReporter:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._ids: list[int] = []
        self._thread: threading.Thread | None = None
        self._reset()

    def touch(self, id: int) -> None:
        ids = self._ids
        ids.append(id)
        count = len(ids)
        if count == 1 or count == BATCH:
            self._wake(count)
        elif count > WAITING_MAX:
            self._ids = []

    def close(self) -> None:
        """What was not sent yet is sent, if the node is there."""
        self._closed = True
        self._some.set()
        self._many.set()

    def reset_after_fork(self) -> None:
        self._ids = []
        self._reset()

    def _reset(self) -> None:
        self._some, self._many = threading.Event(), threading.Event()
        self._closed = False

    def _wake(self, count: int) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True, name="touches")
            self._thread.start()
        (self._some if count == 1 else self._many).set()

    def _run(self) -> None:
        while not self._closed:
            self._some.wait()
            self._some.clear()
            self._many.wait(INTERVAL_S)
            self._many.clear()
            ids, self._ids = self._ids, []
            if ids:
                self._send(ids)

    def _send(self, ids: list[int]) -> None:
        try:
            self._connections.ask(Touch(ids=ids), patience_s=0)
        except HeadraceError as error:
            log.debug("touches lost count=%d error=%s", len(ids), error)
