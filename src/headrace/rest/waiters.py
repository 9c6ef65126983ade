"""Limit how many requests wait for an event at a time, as each occupies a thread of the API."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAITING_MAX = 64
"""Requests that may wait at a time for changes, as many for jobs, and as many for a check of the node. The API has 256
threads (`http`)."""


class Waiters:
    """Counts the requests that wait. Further ones are answered at once, with what there is. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0

    @contextmanager
    def waiting_s(self, wait_s: float) -> Iterator[float]:
        """Count a request that may wait. Provide the seconds for which it does: `wait_s`, or 0 beyond the limit."""
        if wait_s <= 0:
            yield 0.0
            return
        with self._lock:
            may_wait = self.count < WAITING_MAX
            self.count += may_wait
        try:
            yield wait_s if may_wait else 0.0
        finally:
            with self._lock:
                self.count -= may_wait
