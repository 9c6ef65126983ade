"""Wait in a test for what another task, thread or process brings about: by its condition, never for a fixed time."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable

from headrace.base.errors import HeadraceError

LIMIT_S = 60.0
"""Seconds by the machine's clock, also on a virtual loop. Generous, because it only ends tests that fail."""
POLL_S, POLL_S_MAX = 0.005, 0.5


async def until(condition: Callable[[], object | Awaitable[object]], limit_s: float = LIMIT_S) -> None:
    """Poll a condition, or a coroutine function of one, until it holds. Raise TimeoutError after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    while True:
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {limit_s} s in vain")
        await asyncio.sleep(POLL_S)


def wait_for(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Poll a condition until it holds. Raise TimeoutError after `limit_s`. Polls that cost much are rarer."""
    began_s = time.monotonic()
    deadline_s = began_s + limit_s
    while not condition():
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise TimeoutError(f"waited {limit_s} s in vain")
        time.sleep(min(max(POLL_S, 2 * (now_s - began_s)), POLL_S_MAX))
        began_s = time.monotonic()


def outcome_of(call: Callable[[], object], limit_s: float = LIMIT_S) -> list[object]:
    """Run a call in a thread. Return its result or its HeadraceError, or nothing if it hangs."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(call())
        except HeadraceError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    return outcome
