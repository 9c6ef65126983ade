"""Shares namespaces in a process: one for each node, or each list of addresses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from headrace.vfs.vfs import Vfs

Reached = TypeVar("Reached", bound=Vfs)


class VfsRegistry(Generic[Reached]):
    """Keeps one namespace for each key. Thread-safe, also in a child after a fork. A node that does not answer delays
    only calls for its own namespace."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Reached] = {}
        self._reset_locks()
        os.register_at_fork(after_in_child=self._reset_locks)

    def reach(self, key: Hashable, make: Callable[[], Reached]) -> Reached:
        """Return the namespace of the key. A closed one is replaced by a new one. `make` may block, and is called by
        one thread at a time for each key."""
        with self._lock:
            known = self.by_key.get(key)
            if known is not None and not known.closed:
                return known
            making = self._making.setdefault(key, threading.Lock())
        with making:
            with self._lock:
                known = self.by_key.get(key)
            if known is None or known.closed:
                known = make()
                with self._lock:
                    self.by_key[key] = known
            return known

    def close(self) -> None:
        """Close all connections and descriptors. A later call makes new ones."""
        with self._lock:
            all_reached = list(self.by_key.values())
            self.by_key.clear()
        for reached in all_reached:
            reached.close()

    def _reset_locks(self) -> None:
        """Replace the locks in a child: threads that it does not have may hold those of its parent."""
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        """Held while the namespace of a key is made."""
