"""Run a test whose time passes at once when every task waits for it.

`run_virtual` runs a coroutine on an event loop with a clock of its own. asyncio's waits and base/clock.py go by it.
The clock stands still while tasks run, and jumps to the next timer when none can run. So an hour costs nothing, and
times are exact.

While something outside the loop may answer, the loop waits for it in real time, like any other: work that
run_in_executor gave to a thread, also if its caller was cancelled meanwhile, or a registered socket. Work that reaches
threads otherwise, as obstore's, isn't seen: its time-outs come at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import selectors
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, TypeVar, TypeVarTuple

from headrace.base.clock import CLOCK

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


class _VirtualSelector(selectors.DefaultSelector):
    """Waits only if somebody outside can end the wait. in_threads: calls that threads run for the loop. skipped_s: the
    waits that passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = time.monotonic()
        self.in_threads = 0
        self.skipped_s: list[float] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or (timeout is not None and timeout <= 0):
            return events
        if (
            timeout is None or self.in_threads or len(self.get_map()) > 1
        ):  # the loop itself has one, for wake-ups
            began_s = time.monotonic()
            events = super().select(timeout)
            self.now_s += time.monotonic() - began_s
        else:
            self.now_s += timeout
            self.skipped_s.append(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with the clock of its selector."""

    def __init__(self) -> None:
        self.waits = _VirtualSelector()
        super().__init__(self.waits)
        self._threads: ThreadPoolExecutor | None = None

    def time(self) -> float:
        return self.waits.now_s

    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        context: contextvars.Context | None = None,
        **options: Any,
    ) -> asyncio.Task[Result]:
        context = contextvars.copy_context() if context is None else context
        context.run(CLOCK.set, self.time)
        return super().create_task(coro, context=context, **options)

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Arguments], Result],
        *args: *Arguments,
    ) -> asyncio.Future[Result]:
        if executor is None:
            executor = self._own_threads()
        context = contextvars.copy_context()
        work = executor.submit(lambda: context.run(func, *args))
        self.waits.in_threads += 1
        future = asyncio.wrap_future(work, loop=self)
        work.add_done_callback(self._on_end)  # after the future's own: the loop gets the result first
        return future

    def _own_threads(self) -> Executor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(thread_name_prefix="asyncio")
            self.set_default_executor(self._threads)
        return self._threads

    def _on_end(self, _: Future[Any]) -> None:
        """Note the end of a call. Its thread may run on long after the caller was cancelled, and after the loop."""
        with contextlib.suppress(RuntimeError):  # the loop was closed
            self.call_soon_threadsafe(self._returned)

    def _returned(self) -> None:
        self.waits.in_threads -= 1

    async def shutdown_default_executor(self, *limits: float | None) -> None:
        self.waits.in_threads += 1  # a thread joins the executor's
        try:
            await super().shutdown_default_executor(*limits)
        finally:
            self.waits.in_threads -= 1


def run_virtual(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a virtual loop, and return what it does."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


def running_loop() -> VirtualLoop:
    """Return the virtual loop of the calling task. RuntimeError: its loop isn't virtual."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("time passes by itself on this loop: wait for a condition")
    return loop


async def pass_time(seconds: float) -> None:
    """Let virtual time pass: what is due until then has run on return. RuntimeError: the loop isn't virtual."""
    running_loop()
    await asyncio.sleep(seconds)


def skipped_s() -> list[float]:
    """Return the waits of the calling task's loop that passed at once, in seconds. The caller may clear the list."""
    return running_loop().waits.skipped_s
