"""Run the work of one save or one restore in a few threads.

The pools of `concurrent.futures` accept no work once the interpreter exits, but a save still continues then. For the
same reason all threads start at once. They end when `close` was called and the work is done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class WorkerPool:
    """Run calls in threads that also work while the interpreter exits."""

    def __init__(self, threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            for n in range(threads):
                thread = threading.Thread(target=self._run, name=f"{name}-{n}")
                thread.start()
                self._threads.append(thread)
        except (
            BaseException
        ):  # the system may refuse a thread; the others would keep the process from its end
            for _ in range(threads):
                self._work.put(None)
            raise

    @property
    def size(self) -> int:
        return len(self._threads)

    def submit(self, call: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> Future[R]:
        """Queue a call, and return its future."""
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(call(*arguments, **named))
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        self._work.put(run)
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def close(self) -> None:
        """Wait for the submitted work and end the threads."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
