"""Share work fairly between requesters, however much one of them requests.

One queue for all would fill up with the requests of one client, and everybody else would wait at its end. Here the
requests of one address, or of one user, wait for each other and for nobody else.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

Requester = TypeVar("Requester", bound=Hashable)
Item = TypeVar("Item")


class FairQueue(Generic[Requester, Item]):
    """A queue that returns the items of its requesters in turn. For one thread."""

    def __init__(self) -> None:
        self._items: dict[Requester, deque[Item]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, requester: Requester, item: Item) -> None:
        self._items.setdefault(requester, deque()).append(item)

    def next(self) -> Item:
        """Remove and return the next item of the requester that waited longest; the queue must not be empty."""
        requester = next(iter(self._items))
        items = self._items.pop(requester)
        item = items.popleft()
        if items:
            self._items[requester] = items
        return item


class FairPool(Generic[Requester]):
    """Threads of which each requester uses at most `share`. Thread-safe. pool: owned by this object; its own queue has
    at most as many items of each requester."""

    def __init__(self, pool: ThreadPoolExecutor, *, share: int) -> None:
        self._pool = pool
        self._share = share
        self._lock = threading.Lock()
        self._running: dict[Requester, int] = {}
        self._queued: dict[Requester, deque[Callable[[], None]]] = {}

    def submit(self, requester: Requester, work: Callable[[], None]) -> None:
        """Queue work. Raises RuntimeError after the shutdown."""
        with self._lock:
            if self._running.get(requester, 0) >= self._share:
                self._queued.setdefault(requester, deque()).append(work)
                return
            self._running[requester] = self._running.get(requester, 0) + 1
        self._pool.submit(self._run, requester, work)

    def shutdown(self, *, wait: bool) -> None:
        """Stop the threads. Work that has not begun is dropped."""
        self._pool.shutdown(wait=wait, cancel_futures=True)

    def _run(self, requester: Requester, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            following: Callable[[], None] | None = None
            with self._lock:
                queued = self._queued.get(requester)
                if queued:
                    following = queued.popleft()
                    if not queued:
                        del self._queued[requester]
                else:
                    self._running[requester] -= 1
                    if not self._running[requester]:
                        del self._running[requester]
            if following is not None:
                with contextlib.suppress(RuntimeError):  # shut down: work that has not begun is dropped
                    self._pool.submit(self._run, requester, following)
