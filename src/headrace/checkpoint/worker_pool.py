"""Some threads for one save or one restore.

Not `concurrent.futures`: its pools take no work once the interpreter is ending, and a save under way then goes on.
All threads begin at once, for the same reason. They end when `close` was called and the work is done.
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
    def __init__(self, threads: int, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}") for n in range(threads)]
        for thread in self._threads:
            thread.start()

    @property
    def size(self) -> int:
        return len(self._threads)

    def submit(self, call: Callable[P, R], *words: P.args, **named: P.kwargs) -> Future[R]:
        future: Future[R] = Future()

        def run() -> None:
            try:
                future.set_result(call(*words, **named))
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, Exception):
                    raise

        self._work.put(run)
        return future

    def _run(self) -> None:
        while (one := self._work.get()) is not None:
            one()

    def close(self) -> None:
        """Waits for what was submitted."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
