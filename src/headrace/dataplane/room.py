"""Wait for space in the cache: an evicted file occupies its space until its last reader closes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import NoSpaceError
from headrace.store.store import Store
from headrace.store.volume import LET_GO_S

PAUSE_S, PAUSE_S_MAX = 0.002, 0.05

Result = TypeVar("Result")


async def with_room(store: Store, work: Callable[[], Awaitable[Result]]) -> Result:
    """Run the work. Repeat it after NoSpaceError while evicted files still wait for their readers; then raise it."""
    pause_s, until_s = PAUSE_S, time.monotonic() + 2 * LET_GO_S
    while True:
        try:
            return await work()
        except NoSpaceError:
            if not store.space.room_is_coming or time.monotonic() > until_s:
                raise
        await asyncio.sleep(pause_s)
        pause_s = min(PAUSE_S_MAX, 2 * pause_s)
