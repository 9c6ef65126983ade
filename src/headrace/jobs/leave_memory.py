"""Wait until the file of a seal has left a memory tier. The mover of tiers copies it to a disk."""

from __future__ import annotations

import asyncio

from headrace.base.clock import monotonic_s
from headrace.base.errors import NoSpaceError
from headrace.base.model import FileId
from headrace.base.tiers import MEMORY
from headrace.jobs.missing_files import is_whole
from headrace.store.store import Store

LEAVE_S = 600.0
"""Seconds that a file may take, as many are moved before it."""
CHECK_INTERVAL_S = 0.1


async def leave_memory(store: Store, id: FileId) -> None:
    """Return when the cache has a file on a disk. Raise NoSpaceError if no disk has room, or if it is not moved."""
    cached = store.index.cached(id)
    if cached is not None and store.volumes[cached.volume].tier == MEMORY:
        if not store.moves.is_on:
            raise NoSpaceError(
                "seal",
                why="the file lies in a memory tier, and moves between tiers are off",
                hint="set tier_move_bytes_s",
            )
        store.sealed.leave_memory(id)
        until_s = monotonic_s() + LEAVE_S
        while monotonic_s() < until_s:
            await asyncio.sleep(CHECK_INTERVAL_S)
            if is_whole(store, id):
                return
    raise NoSpaceError("seal", why="no disk of the cache has room for the file")
