"""One at a time at each path. On the node's loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLock:
    """`path in turns`: somebody is at it."""

    def __init__(self) -> None:
        self._taken: dict[bytes, asyncio.Event] = {}

    def __contains__(self, path: bytes) -> bool:
        return path in self._taken

    @asynccontextmanager
    async def at(self, path: bytes) -> AsyncIterator[None]:
        """Alone at the path within."""
        while (taken := self._taken.get(path)) is not None:
            await taken.wait()
        self._taken[path] = asyncio.Event()
        try:
            yield
        finally:
            self._taken.pop(path).set()
