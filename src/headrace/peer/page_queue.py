"""Pass the pages of a listing from the thread that receives them to the event loop. The thread waits while the loop has
PAGES_MAX of them: a directory may have millions of names, and a peer may send more than the loop can store."""

from __future__ import annotations

import asyncio
import threading

from headrace.base.errors import HeadraceError
from headrace.wire.peer_messages import Names

PAGES_MAX = 4
"""Pages that were received and not taken. The loop takes a few milliseconds for one, without a pause between two."""

Delivered = Names | HeadraceError | None


class PageQueue:
    """The pages of one listing; at the end an error, or None."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pages: asyncio.Queue[Delivered] = asyncio.Queue()
        self._room = threading.Semaphore(PAGES_MAX)
        self._is_closed = False

    def deliver(self, page: Delivered) -> None:
        """Add a page, in the thread that receives. Blocks until there is room, or until `close`."""
        if isinstance(page, Names) and not self._is_closed:
            self._room.acquire()
        if not self._is_closed:
            self._loop.call_soon_threadsafe(self._pages.put_nowait, page)

    def end(self, failure: HeadraceError | None) -> None:
        """Add the end, on the loop."""
        self._pages.put_nowait(failure)

    async def take(self) -> Delivered:
        """Return the next page, or the end."""
        page = await self._pages.get()
        self._room.release()
        return page

    def close(self) -> None:
        """Take no more pages. The thread does not wait any longer."""
        self._is_closed = True
        self._room.release()
