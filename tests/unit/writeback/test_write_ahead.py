"""One flush of the disk for all who wait; whoever comes while one is under way waits for the next."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.base.errors import StoreError
from headrace.writeback.write_ahead import WriteAhead


class Flushes:
    """Each waits until it is let through."""

    def __init__(self) -> None:
        self.count = 0
        self.may_end = threading.Semaphore(0)
        self.begins = threading.Semaphore(0)
        self.error: OSError | None = None

    def __call__(self) -> None:
        self.count += 1
        self.begins.release()
        assert self.may_end.acquire(timeout=60)
        if self.error is not None:
            raise self.error

    async def begun(self) -> None:
        assert await asyncio.to_thread(self.begins.acquire, timeout=60)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


async def test_those_who_wait_share_a_flush_and_who_comes_later_has_another(
    threads: ThreadPoolExecutor,
) -> None:
    flushes = Flushes()
    ahead = WriteAhead(flushes, threads)
    first = [asyncio.ensure_future(ahead.flush()) for _ in range(3)]
    await flushes.begun()
    late = [asyncio.ensure_future(ahead.flush()) for _ in range(3)]
    flushes.may_end.release()
    await asyncio.gather(*first)
    assert not any(task.done() for task in late)
    flushes.may_end.release()
    await asyncio.gather(*late)
    assert flushes.count == 2
    await ahead.stop()


async def test_who_gives_up_takes_it_from_nobody_else(threads: ThreadPoolExecutor) -> None:
    flushes = Flushes()
    ahead = WriteAhead(flushes, threads)
    tasks = [asyncio.ensure_future(ahead.flush()) for _ in range(2)]
    await flushes.begun()
    tasks[0].cancel()
    flushes.may_end.release()
    await tasks[1]
    await ahead.stop()
    assert tasks[0].cancelled()
    assert flushes.count == 1


async def test_a_flush_that_fails_fails_for_all_who_waited_and_for_no_one_later(
    threads: ThreadPoolExecutor,
) -> None:
    flushes = Flushes()
    ahead = WriteAhead(flushes, threads)
    flushes.error = OSError(errno.EIO, "broken")
    tasks = [asyncio.ensure_future(ahead.flush()) for _ in range(2)]
    flushes.may_end.release()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [StoreError, StoreError]
    flushes.error = None
    flushes.may_end.release()
    await ahead.flush()
