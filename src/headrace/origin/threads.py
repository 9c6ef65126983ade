"""Blocking calls of an origin, in threads of its own: one that hangs (a dead NAS, a silent server) can't keep the
rest of the process from theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, OriginUnavailableError

THREADS_MAX = 32
"""More wait in a queue. A guess: a network file system wants tens of reads in flight, not hundreds."""

GIVE_UP_WITHIN_S = 5.0
"""A disk that is alive copies the chunk that is under way in much less."""

Result = TypeVar("Result")


class Threads:
    """Made when first needed, and as many as needed up to the limit."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="origin")
        self._closed = False

    async def call(self, call: Callable[[], Result], what: str, deadline: Deadline) -> Result:
        """What the call returns or raises; DeadlineExceededError when it is not done by then. A thread that hangs is
        left to itself; a cancelled call that no thread had begun is never made."""
        deadline.check(what)
        if self._closed:
            raise OriginUnavailableError(what, why="the origin was closed")
        left_s = deadline.left_s()
        limit = asyncio.timeout(None if left_s == float("inf") else left_s)
        try:
            async with limit:
                return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except TimeoutError:
            if not limit.expired():
                raise  # the call's own: ETIMEDOUT
            raise DeadlineExceededError(what, why="no answer within the time allowed") from None

    async def finish(
        self, call: Callable[[], Result], give_up: Callable[[], None], what: str, deadline: Deadline
    ) -> Result:
        """As `call`; but one that is cancelled or late is told so by give_up (which must not block), and waited for,
        GIVE_UP_WITHIN_S at most, so that it does nothing behind its caller's back. A late one that came to its end
        nevertheless gives its result."""
        deadline.check(what)
        if self._closed:
            raise OriginUnavailableError(what, why="the origin was closed")
        begun = self._pool.submit(call)
        done = asyncio.wrap_future(begun)
        left_s = deadline.left_s()
        try:
            await asyncio.wait({done}, timeout=None if left_s == float("inf") else left_s)
        finally:
            if not done.done() and not begun.cancel():
                give_up()
                await asyncio.wait({done}, timeout=GIVE_UP_WITHIN_S)
            if done.done() and not done.cancelled():
                done.exception()  # asked for, so that none is complained of as never retrieved
        if done.done() and not begun.cancelled():
            return done.result()
        if self._closed:
            raise OriginUnavailableError(what, why="the origin was closed")
        raise DeadlineExceededError(what, why="no answer within the time allowed")

    def close(self) -> None:
        """Waits for nothing. May be called twice."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
