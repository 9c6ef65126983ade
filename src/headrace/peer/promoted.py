"""Send a background request again, as one of a reader, once a reader waits for its bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.promotion import Promotion
from headrace.base.tasks import OwnedTasks

Result = TypeVar("Result")

BACKGROUND_SHARE = 0.5
"""The share of a request's time after which it is sent again, though no reader waits: a peer with many readers may
never come to it. The rest of the time is for the second request."""


async def run_until_promoted(
    request: Awaitable[Result], promotion: Promotion, deadline: Deadline, *, is_arriving: Callable[[], bool]
) -> Result | None:
    """Run a background request, and return its result. Return None after having cancelled it if it is to be sent
    again: it was promoted before its bytes began to arrive, or half of its time has passed. Raises the errors of the
    request."""
    promoted = asyncio.Event()
    promotion.notify(promoted.set)
    limit_s = BACKGROUND_SHARE * deadline.left_s()
    try:
        async with OwnedTasks(HeadraceError) as tasks:
            running, waiting = tasks.start(request), tasks.start(promoted.wait())
            await asyncio.wait({running, waiting}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if promoted.is_set() and is_arriving():
                await asyncio.wait({running}, timeout=limit_s)
            return running.result() if running.done() else None
    finally:
        promotion.notify(None)
