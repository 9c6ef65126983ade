"""The calls for a program with an event loop: cancelled iterations, and children after a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from headrace.sdk.cache_async import AsyncCache

WAIT_S = 60
pytestmark = pytest.mark.timeout(90)


class BlockedCache:
    """Lists one path, when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.closed = threading.Event(), threading.Event(), threading.Event()

    def list(self, path: str) -> Iterator[str]:
        try:
            self.begun.set()
            assert self.may_end.wait(WAIT_S)
            yield path
        finally:
            self.closed.set()

    def exists(self, path: str) -> bool:
        return path == "/"

    def close(self) -> None:
        self.closed.set()


async def of_first(paths: Any) -> str:
    async for path in paths:
        return str(path)
    return ""


async def test_a_cancelled_iteration_ends_at_once_and_its_iterator_later() -> None:
    blocked = BlockedCache()
    cache = AsyncCache(cast(Any, blocked))
    first = asyncio.create_task(of_first(cache.list("/")))
    assert await asyncio.to_thread(blocked.begun.wait, WAIT_S)
    first.cancel()
    try:
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not blocked.closed.is_set(), "its thread still runs it"
    finally:
        blocked.may_end.set()
    assert await asyncio.to_thread(blocked.closed.wait, WAIT_S)
    await cache.close()


async def test_an_iteration_that_is_left_early_closes_its_iterator() -> None:
    blocked = BlockedCache()
    blocked.may_end.set()
    cache = AsyncCache(cast(Any, blocked))
    paths = cast(Any, cache.list("/"))
    assert await anext(paths) == "/"
    await paths.aclose()
    assert blocked.closed.is_set()
    await cache.close()


def test_a_forked_child_has_threads_of_its_own() -> None:
    cache = AsyncCache(cast(Any, BlockedCache()))
    assert asyncio.run(cache.exists("/"))
    child = os.fork()
    if child == 0:
        signal.alarm(WAIT_S)  # ends a child that waits for threads of its parent
        os._exit(0 if asyncio.run(cache.exists("/")) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    asyncio.run(cache.close())
