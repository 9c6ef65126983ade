"""Run an origin's blocking calls in threads of its own. A hanging origin (a dead NAS, a silent server) then can't
block the rest of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, OriginUnavailableError

THREADS_MAX = 32
"""Most threads; further calls queue. A guess: a network file system needs tens of reads in flight, not hundreds."""

ABANDON_WITHIN_S = 5.0
"""Most seconds to wait for an abandoned call. A working disk copies the current chunk in much less."""

Result = TypeVar("Result")


class Threads:
    """Runs calls in a pool of threads, which start when they are needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="origin")
        self._closed = False

    async def call(self, call: Callable[[], Result], target: str, deadline: Deadline) -> Result:
        """Return or raise what the call does. Raise DeadlineExceededError if it does not complete before the
        deadline. A thread that hangs is abandoned; a cancelled call that no thread has begun is never made."""
        deadline.check(target)
        if self._closed:
            raise OriginUnavailableError(target, why="the origin was closed")
        limit = asyncio.timeout(deadline.timeout_s())
        try:
            async with limit:
                return await asyncio.get_running_loop().run_in_executor(self._pool, call)
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the call itself: ETIMEDOUT
            raise DeadlineExceededError(target, why="no answer before the deadline") from None

    async def finish(
        self, call: Callable[[], Result], abandon: Callable[[], None], target: str, deadline: Deadline
    ) -> Result:
        """Run a call as `call` does, but never abandon a running one silently. If it is cancelled or late, `abandon`
        (which must not block) tells it so, and the caller waits for it, at most ABANDON_WITHIN_S. A late call that
        completes nevertheless returns its result."""
        deadline.check(target)
        if self._closed:
            raise OriginUnavailableError(target, why="the origin was closed")
        begun = self._pool.submit(call)
        done = asyncio.wrap_future(begun)
        try:
            await asyncio.wait({done}, timeout=deadline.timeout_s())
        finally:
            if not done.done() and not begun.cancel():
                abandon()
                await asyncio.wait({done}, timeout=ABANDON_WITHIN_S)
            if done.done() and not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not report it
        if done.done() and not begun.cancelled():
            return done.result()
        if self._closed:
            raise OriginUnavailableError(target, why="the origin was closed")
        raise DeadlineExceededError(target, why="no answer before the deadline")

    def close(self) -> None:
        """Close the pool without waiting. May be called twice."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)
