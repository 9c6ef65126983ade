"""What is done for many who ask: each has his turn, however much one of them asks for.

One queue for all would be the flood's, and whoever else comes would wait at its end. Here the many of one address, or
of one user, wait for one another and for nobody else.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Asker = TypeVar("Asker", bound=Hashable)
Item = TypeVar("Item")


class FairQueue(Generic[Asker, Item]):
    """Gives the items of those who ask in turn. For one thread."""

    def __init__(self) -> None:
        self._items: dict[Asker, deque[Item]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, asker: Asker, item: Item) -> None:
        self._items.setdefault(asker, deque()).append(item)

    def next(self) -> Item:
        """Of who waited longest for his turn; there has to be one."""
        asker = next(iter(self._items))
        items = self._items.pop(asker)
        item = items.popleft()
        if items:
            self._items[asker] = items
        return item


class FairPool(Generic[Asker]):
    """Threads of which each who asks has `share` at most. Thread-safe. pool: belongs to this from now on; in its own
    queue there is at one time so much of each, too."""

    def __init__(self, pool: ThreadPoolExecutor, *, share: int) -> None:
        self._pool = pool
        self._share = share
        self._lock = threading.Lock()
        self._running: dict[Asker, int] = {}
        self._queued: dict[Asker, deque[Callable[[], None]]] = {}

    def submit(self, asker: Asker, work: Callable[[], None]) -> None:
        """RuntimeError after the shutdown."""
        with self._lock:
            if self._running.get(asker, 0) >= self._share:
                self._queued.setdefault(asker, deque()).append(work)
                return
            self._running[asker] = self._running.get(asker, 0) + 1
        self._pool.submit(self._run, asker, work)

    def shutdown(self, *, wait: bool) -> None:
        """What has not begun is left."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _run(self, asker: Asker, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            following: Callable[[], None] | None = None
            with self._lock:
                queued = self._queued.get(asker)
                if queued:
                    following = queued.popleft()
                    if not queued:
                        del self._queued[asker]
                else:
                    self._running[asker] -= 1
                    if not self._running[asker]:
                        del self._running[asker]
            if following is not None:
                with contextlib.suppress(RuntimeError):  # shut down: what has not begun is left
                    self._pool.submit(self._run, asker, following)
