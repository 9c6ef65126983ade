"""Wait until files of a seal have left a memory tier. The mover of tiers copies them to a disk."""

from __future__ import annotations

import asyncio

from headrace.base.clock import monotonic_s
from headrace.base.errors import NoSpaceError, StoreError
from headrace.base.model import FileId
from headrace.base.tiers import MEMORY
from headrace.jobs.missing_files import is_whole
from headrace.store.store import Store

STUCK_S = 600.0
"""Seconds in which the mover moves some file, even a large one while programs read. After that it can't."""
CHECK_INTERVAL_S = 0.1


class LeavingFiles:
    """The files of one seal that leave memory. Once one waited for nothing, the others don't wait."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stuck_after: int | None = None  # so many moves

    async def wait_for(self, id: FileId) -> None:
        """Return when the cache has a file on a disk. Raise NoSpaceError if no disk has room, or if it is not moved."""
        store = self._store
        cached = store.index.cached(id)
        if cached is None or store.volumes[cached.volume].tier != MEMORY:
            raise NoSpaceError("seal", why="no disk of the cache has room for the file")
        if not store.moves.is_on:
            raise NoSpaceError(
                "seal",
                why="the file lies in a memory tier, and moves between tiers are off",
                hint="set tier_move_bytes_s",
            )
        count, counted_s = self._moved, monotonic_s()
        store.sealed.leave_memory(id)
        while not is_whole(store, id):
            cached = store.index.cached(id)
            if cached is None or cached.superseded:
                raise StoreError("seal", why="the file changed, or was freed, while it was sealed")
            if self._moved != count:
                count, counted_s = self._moved, monotonic_s()
            if self._stuck_after == count or monotonic_s() - counted_s > STUCK_S:
                self._stuck_after = count
                raise NoSpaceError(
                    "seal", why="the file lies in a memory tier, and no disk of the cache takes it now"
                )
            await asyncio.sleep(CHECK_INTERVAL_S)

    @property
    def _moved(self) -> int:
        return self._store.moves.counts.files_replaced
