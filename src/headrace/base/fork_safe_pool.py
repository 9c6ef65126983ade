"""Run calls in threads that start with the first call, also in a child after a fork, which has none of its parent."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class ForkSafePool:
    """Holds a pool of threads for this process. It may be pickled. There is no lock, which a fork could leave locked:
    a second pool does no harm. name: of the threads."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __reduce__(self) -> tuple[type[ForkSafePool], tuple[int, str]]:
        return ForkSafePool, (self._threads, self._name)

    def executor(self) -> ThreadPoolExecutor:
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            from concurrent.futures import ThreadPoolExecutor  # most processes need no threads

            pool = self._pool = os.getpid(), ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
        return pool[1]

    def close(self, *, wait: bool = True) -> None:
        """End the threads after the running calls; wait for those. A later call starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and pool[0] == os.getpid():
            pool[1].shutdown(wait=wait)
