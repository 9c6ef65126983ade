"""Shares namespaces in a process: one for each node, or each list of addresses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from headrace.vfs.vfs import Vfs

Reached = TypeVar("Reached", bound=Vfs)


class VfsRegistry(Generic[Reached]):
    """Keeps one namespace for each key. Thread-safe, also in a child after a fork."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Reached] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._reset_after_fork)

    def reach(self, key: Hashable, make: Callable[[], Reached]) -> Reached:
        """Return the namespace of the key. A closed one is replaced by a new one."""
        with self._lock:
            known = self.by_key.get(key)
            if known is None or known.closed:
                known = self.by_key[key] = make()
            return known

    def close(self) -> None:
        """Close all connections and descriptors. A later call makes new ones."""
        with self._lock:
            for reached in self.by_key.values():
                reached.close()
            self.by_key.clear()

    def _reset_after_fork(self) -> None:
        self._lock = threading.Lock()
