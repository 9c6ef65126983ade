"""Own asyncio tasks: an owner starts them, ends them, and sees their failures. No other module creates tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Iterable
from typing import Any, Self, TypeVar

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class OwnedTasks:
    """The tasks of one owner, which closes them; `async with` closes them at the end of the block. A failure is logged
    with its trace, unless it is `expected`: those who await the task get that one. again_s: cancel again after this
    time, where a library loses cancellations; wait_for of Python 3.11 does when the awaited event happens at that
    moment."""

    def __init__(
        self,
        expected: type[Exception] | tuple[type[Exception], ...] = (),
        *,
        again_s: float | None = None,
    ) -> None:
        self._expected = expected
        self._again_s = again_s
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __bool__(self) -> bool:
        """Return whether a task is running. Those that have ended do not count, also before their callbacks run."""
        return not all(task.done() for task in self._tasks)

    def start(self, work: Awaitable[Result]) -> asyncio.Task[Result]:
        task: asyncio.Task[Result] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)
        return task

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and return when they have ended."""
        pending = set(self._tasks)
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=self._again_s)

    async def wait(self) -> None:
        """Return when the tasks that run now have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, self._expected):
            name = getattr(task.get_coro(), "__qualname__", task.get_name())
            log.error("a background task failed task=%s", name, exc_info=error)


async def all_of(works: Iterable[Awaitable[Result]]) -> list[Result]:
    """Run all at once and return their results. The first failure ends the others, and is raised when they have
    ended."""
    async with OwnedTasks(Exception) as tasks:
        return await asyncio.gather(*map(tasks.start, works))


async def ended(work: asyncio.Future[Result]) -> Result:
    """Return the result of work that cannot be cancelled, such as that of a thread. A cancelled caller waits until it
    has ended, so that what the caller holds meanwhile is not released too early."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with contextlib.suppress(asyncio.CancelledError):  # raised below
                await asyncio.wait([work])
        if not work.cancelled():
            work.exception()  # nobody awaits it any more, so asyncio would report it at the end
        raise


def being_cancelled() -> bool:
    """Return whether somebody cancels the current task. Otherwise a CancelledError comes from a library that ended its
    own call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
