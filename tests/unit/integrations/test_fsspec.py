"""Calls for many files in threads. tests/integration/door has the file system with a node."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

import pytest
from fsspec.callbacks import DEFAULT_CALLBACK

from headrace.integrations.fsspec import THREADS, _FileThreads

WAIT_S = 60
pytestmark = pytest.mark.timeout(90)


class HeldCalls:
    """Calls that run until they may end. count: those that have begun."""

    def __init__(self, threads: _FileThreads) -> None:
        self._threads = threads
        self.may_end, self.all_run = threading.Event(), threading.Semaphore(0)
        self.count = 0
        self._lock = threading.Lock()

    def start(self, count: int) -> list[Future[None]]:
        """Begin calls, and return their futures when as many run as there are threads."""
        for _ in range(count):
            self._threads.do(self._run)
        for _ in range(min(count, THREADS)):
            assert self.all_run.acquire(timeout=WAIT_S)
        return list(self._threads._local.calls)

    def _run(self) -> None:
        with self._lock:
            self.count += 1
        self.all_run.release()
        assert self.may_end.wait(WAIT_S)

    def end_when_cancelled(self, calls: list[Future[None]]) -> None:
        """Let the calls end when the last of them is cancelled."""

        def end() -> None:
            pause = threading.Event()
            for _ in range(1000):
                if calls[-1].cancelled():
                    break
                pause.wait(0.01)
            self.may_end.set()

        threading.Thread(target=end).start()


@pytest.mark.parametrize("place", ["block", "wait"])
def test_ctrl_c_cancels_the_calls_that_wait_for_a_thread(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    threads = _FileThreads()
    held = HeldCalls(threads)
    waits = 0

    def interrupted_once(calls: Iterable[Future[Any]]) -> None:
        nonlocal waits
        waits += 1
        if place == "wait" and waits == 1:
            raise KeyboardInterrupt
        wait(calls)

    monkeypatch.setattr("headrace.integrations.fsspec.wait", interrupted_once)
    with pytest.raises(KeyboardInterrupt), threads.batch(DEFAULT_CALLBACK):
        calls = held.start(3 * THREADS)
        held.end_when_cancelled(calls)
        if place == "block":
            raise KeyboardInterrupt
    assert held.count == THREADS
    assert sum(call.cancelled() for call in calls) == 2 * THREADS
    assert all(call.done() for call in calls), "none runs any more"
    with threads.batch(DEFAULT_CALLBACK):
        held.start(2)
    assert held.count == THREADS + 2


def test_an_error_of_one_call_stops_no_other() -> None:
    threads = _FileThreads()
    ended: list[int] = []

    def run(number: int) -> None:
        ended.append(1 // number)

    with pytest.raises(ZeroDivisionError), threads.batch(DEFAULT_CALLBACK):
        for number in range(3 * THREADS):
            threads.do(partial(run, number))
    assert len(ended) == 3 * THREADS - 1
