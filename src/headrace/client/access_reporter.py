"""Report file accesses to the node, for eviction and predictions. One thread sends them in batches; lost reports do no
harm.

`touch` is on the hot path of an open: it costs an append and a comparison. The thread starts with the first touch,
also in a child after a fork. It sleeps without waking up while nothing is touched. It also finds out which job each
process belongs to that opened a file.
"""

from __future__ import annotations

import logging
import os
import threading

from headrace.base.errors import HeadraceError
from headrace.client.connection import Connections
from headrace.client.job_numbers import job_numbers
from headrace.wire.messages import TOUCHED_MAX, Touch

log = logging.getLogger(__name__)

BATCH = 4096
INTERVAL_S = 1.0
WAITING_MAX = TOUCHED_MAX
"""Ids that are kept while the node does not answer; with one more, all are dropped."""


class AccessReporter:
    """Collects the ids of opened files and sends them to the node about once a second. is_job: the process reads for
    one user, so that the node may predict its opens; a gateway serves many."""

    def __init__(self, connections: Connections, *, is_job: bool = True) -> None:
        self._connections = connections
        self._is_job = is_job
        self._opens: list[tuple[int, int]] = []
        self._thread: threading.Thread | None = None
        self._reset()

    def touch(self, id: int, pid: int = 0) -> None:
        """Note that a file was opened. pid: of the process or thread that did it, as a session sees it; 0: this one,
        or not known."""
        opens = self._opens
        opens.append((id, pid))
        count = len(opens)
        if count == 1 or count == BATCH:
            self._wake(count)
        elif count > WAITING_MAX:
            self._opens = []

    def close(self) -> None:
        """Let the thread send the remaining ids, if the node answers, and end. Does not wait for it."""
        self._closed = True
        self._has_ids.set()
        self._has_batch.set()

    def reset_after_fork(self) -> None:
        self._opens = []
        self._reset()

    def _reset(self) -> None:
        self._has_ids, self._has_batch = threading.Event(), threading.Event()
        self._closed = False
        self._process = int.from_bytes(os.urandom(6)) if self._is_job else 0

    def _wake(self, count: int) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, daemon=True, name="touches")
            self._thread.start()
        (self._has_ids if count == 1 else self._has_batch).set()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._has_ids.wait()
            self._has_ids.clear()
            self._has_batch.wait(INTERVAL_S)
            self._has_batch.clear()
            is_last = self._closed  # looked up before the ids are taken, so that none is left behind
            opens, self._opens = self._opens, []
            if opens:
                self._send(opens)

    def _send(self, opens: list[tuple[int, int]]) -> None:
        numbers = job_numbers({pid for _, pid in opens}) if self._is_job else {}
        streams = (numbers[pid] for _, pid in opens) if any(numbers.values()) else ()
        touch = Touch(ids=[id for id, _ in opens], process=self._process, streams=tuple(streams))
        try:
            self._connections.ask(touch, patience_s=0)
        except HeadraceError as error:
            log.debug("accesses were not reported count=%d error=%s", len(opens), error)
