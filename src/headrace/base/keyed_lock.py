"""Lock paths, each for one task at a time. For the node's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLock:
    """Locks by path. `path in locks` is true while a task holds the lock of the path."""

    def __init__(self) -> None:
        self._held: dict[bytes, asyncio.Event] = {}

    def __contains__(self, path: bytes) -> bool:
        return path in self._held

    @asynccontextmanager
    async def at(self, path: bytes) -> AsyncIterator[None]:
        """Hold the lock of a path within the context."""
        while (released := self._held.get(path)) is not None:
            await released.wait()
        self._held[path] = asyncio.Event()
        try:
            yield
        finally:
            self._held.pop(path).set()
