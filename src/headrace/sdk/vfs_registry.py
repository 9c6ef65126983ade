"""One of each for all of a process: paths to one node, or to one list of addresses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar


class _Closed(Protocol):
    @property
    def closed(self) -> bool: ...


class _Reached(Protocol):
    @property
    def client(self) -> _Closed: ...

    def close(self) -> None: ...


Reached = TypeVar("Reached", bound=_Reached)


class VfsRegistry(Generic[Reached]):
    """Thread-safe, also in a child after a fork."""

    def __init__(self) -> None:
        self.made: dict[Hashable, Reached] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def reach(self, key: Hashable, make: Callable[[], Reached]) -> Reached:
        """Return what was made for the key, unless it was closed since: then a new one."""
        with self._lock:
            known = self.made.get(key)
            if known is None or known.client.closed:
                known = self.made[key] = make()
            return known

    def close(self) -> None:
        """All connections and descriptors; who calls again makes new ones."""
        with self._lock:
            for reached in self.made.values():
                reached.close()
            self.made.clear()

    def _reset_after_fork(self) -> None:
        self._lock = threading.Lock()
