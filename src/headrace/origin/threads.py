"""Run an origin's blocking calls in threads of its own. A hanging origin (a dead NAS, a silent server) then can't
block the rest of the process."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, OriginUnavailableError

log = logging.getLogger(__name__)

THREADS_MAX = 32
"""Most threads; further calls queue. A guess: a network file system needs tens of reads in flight, not hundreds."""

ABANDON_WITHIN_S = 5.0
"""Most seconds to wait for an abandoned call. A working disk copies the current chunk in much less."""

ALL_THREADS_MAX = 8 * THREADS_MAX
"""Most threads with those that hang in abandoned calls."""

Result = TypeVar("Result")


class Threads:
    """Runs calls in a pool of threads, which start when they are needed.

    on_stuck: called when all threads of the pool hang in abandoned calls, and others take their place; for an origin
    whose calls may hang for good. None: they return when the origin does."""

    def __init__(self, *, on_stuck: Callable[[], None] | None = None) -> None:
        self._pool = _Pool()
        self._stuck: list[_Pool] = []
        self._closed = False
        self._on_stuck = on_stuck

    async def call(self, call: Callable[[], Result], target: str, deadline: Deadline) -> Result:
        """Return or raise what the call does. Raise DeadlineExceededError if it does not complete before the
        deadline. A thread that hangs is abandoned; a cancelled call that no thread has begun is never made."""
        self._prepare(target, deadline)
        counted = _CountedCall(call, self._pool)
        limit = asyncio.timeout(deadline.timeout_s())
        try:
            async with limit:
                return await asyncio.get_running_loop().run_in_executor(self._pool.executor, counted)
        except TimeoutError:
            if not limit.expired():
                raise  # raised by the call itself: ETIMEDOUT
            raise DeadlineExceededError(target, why="no answer before the deadline") from None
        finally:
            counted.abandon()

    async def finish(
        self, call: Callable[[], Result], abandon: Callable[[], None], target: str, deadline: Deadline
    ) -> Result:
        """Run a call as `call` does, but never abandon a running one silently. If it is cancelled or late, `abandon`
        (which must not block) tells it so, and the caller waits for it, at most ABANDON_WITHIN_S. A late call that
        completes nevertheless returns its result."""
        self._prepare(target, deadline)
        counted = _CountedCall(call, self._pool)
        begun = self._pool.executor.submit(counted)
        done = asyncio.wrap_future(begun)
        try:
            await asyncio.wait({done}, timeout=deadline.timeout_s())
        finally:
            if not done.done() and not begun.cancel():
                abandon()
                await asyncio.wait({done}, timeout=ABANDON_WITHIN_S)
            counted.abandon()
            if done.done() and not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not report it
        if done.done() and not begun.cancelled():
            return done.result()
        if self._closed:
            raise OriginUnavailableError(target, why="the origin was closed")
        raise DeadlineExceededError(target, why="no answer before the deadline")

    def _prepare(self, target: str, deadline: Deadline) -> None:
        deadline.check(target)
        if self._closed:
            raise OriginUnavailableError(target, why="the origin was closed")
        if self._on_stuck is not None and self._leave_stuck_pool():
            log.warning("all threads of an origin hang, others take their place origin=%s", target)
            self._on_stuck()

    def _leave_stuck_pool(self) -> bool:
        """Take another pool if all threads of this one hang. Calls that wait for one of its threads end by their
        deadlines."""
        self._stuck = [pool for pool in self._stuck if pool.lost]
        threads = sum(pool.lost for pool in self._stuck) + 2 * THREADS_MAX
        if self._pool.lost < THREADS_MAX or threads > ALL_THREADS_MAX:
            return False
        self._pool.executor.shutdown(wait=False)
        self._stuck.append(self._pool)
        self._pool = _Pool()
        return True

    def close(self) -> None:
        """Close the pool without waiting. May be called twice."""
        self._closed = True
        self._pool.executor.shutdown(wait=False, cancel_futures=True)


class _Pool:
    """A pool of threads. lost: threads that hang in calls that nobody awaits any more."""

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="origin")
        self.lost = 0
        self.lock = threading.Lock()


class _CountedCall(Generic[Result]):
    """A call for a thread of a pool, which counts the thread as lost while it runs and nobody awaits it."""

    def __init__(self, call: Callable[[], Result], pool: _Pool) -> None:
        self._call = call
        self._pool = pool
        self._is_running = self._is_abandoned = False

    def __call__(self) -> Result:
        self._change(running=True)
        try:
            return self._call()
        finally:
            self._change(running=False)

    def abandon(self) -> None:
        """Note that nobody awaits the call any more. It may have ended."""
        self._change(abandoned=True)

    def _change(self, *, running: bool | None = None, abandoned: bool = False) -> None:
        with self._pool.lock:
            self._pool.lost -= self._is_running and self._is_abandoned
            self._is_abandoned |= abandoned
            self._is_running = self._is_running if running is None else running
            self._pool.lost += self._is_running and self._is_abandoned
