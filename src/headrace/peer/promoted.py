"""Request what nobody waits for in the background, and again as a reader once one waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.promotion import Promotion
from headrace.base.tasks import OwnedTasks

Result = TypeVar("Result")
Answer = TypeVar("Answer", covariant=True)

BACKGROUND_SHARE = 0.5
"""The share of a request's time after which it is sent again, though no reader waits: a peer with many readers may
never come to it. The rest of the time is for the second request."""


class SendRequest(Protocol[Answer]):
    """Sends a request, in the background or as a reader's, and returns its answer."""

    def __call__(self, *, background: bool) -> Awaitable[Answer]: ...


def _is_never_arriving() -> bool:
    return False


async def request_by_urgency(
    send: SendRequest[Result],
    promotion: Promotion | None,
    deadline: Deadline,
    *,
    is_arriving: Callable[[], bool] = _is_never_arriving,
) -> Result:
    """Send a request, and return its result. Raises its errors.

    promotion: of a read for which no reader waits; None if one waits. is_arriving: whether bytes of the background
    request have arrived."""
    if promotion is not None and not promotion.is_promoted:
        result = await _run_until_promoted(
            send(background=True), promotion, deadline, is_arriving=is_arriving
        )
        if result is not None:
            return result
    return await send(background=False)


async def _run_until_promoted(
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
