"""One flush for many threads, one of which is interrupted."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.overlay import durable_writes
from headrace.overlay.durable_writes import DurableWrites

LIMIT_S = 60.0


class WatchedFuture(Future[None]):
    """Notes that a thread waits for it. waits: set when one does."""

    waits = threading.Event()

    def result(self, timeout: float | None = None) -> None:
        self.waits.set()
        return super().result(timeout)


class InterruptedLock:
    """A lock whose first owner gets Ctrl-C while it waits, after another thread has joined its flush."""

    def __init__(self, durable: DurableWrites, threads: ThreadPoolExecutor) -> None:
        self._durable = durable
        self._threads = threads
        self._lock = threading.Lock()
        self.follower: Future[None] | None = None

    def __enter__(self) -> None:
        if self.follower is None:
            self.follower = self._threads.submit(self._durable.flush)
            assert WatchedFuture.waits.wait(LIMIT_S)
            raise KeyboardInterrupt
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture
def durable(tmp_path: Path) -> DurableWrites:
    return DurableWrites(os.fsencode(tmp_path), lambda: True)


def test_an_interrupt_while_a_thread_waits_for_the_flush_before_ends_its_own(
    durable: DurableWrites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_writes, "Future", WatchedFuture)
    monkeypatch.setattr(WatchedFuture, "waits", threading.Event())
    with ThreadPoolExecutor(2) as threads:
        lock: Any = InterruptedLock(durable, threads)
        durable._flushing = lock
        with pytest.raises(KeyboardInterrupt):
            durable.flush()
        later = threads.submit(durable.flush)
        try:
            with pytest.raises(InterruptedError):
                lock.follower.result(LIMIT_S)
            later.result(LIMIT_S)
        finally:  # no thread of a failed test hangs
            if durable._next is not None and not durable._next.done():
                durable._next.set_result(None)
