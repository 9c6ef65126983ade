"""Provide `headrace.connect_async()`: the calls of `sdk/cache.py` for a program with an event loop, which they never
block.

Each call runs in a thread of the `AsyncCache`. A cancelled call runs to its end in that thread, and its result is
dropped. A child may use its parent's `AsyncCache` after a fork.
"""

from __future__ import annotations

import asyncio
import builtins
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar

from headrace.base.fork_safe_pool import ForkSafePool
from headrace.client.node_client import PATIENCE_S
from headrace.sdk.bulk_read import ReadResult, Wanted
from headrace.sdk.cache import Cache, Stat, connect
from headrace.wire.messages import JobState
from headrace.wire.seal_messages import SealRow

THREADS = 32
PAGE = 64
"""The results of an iterator that one call in a thread fetches; they are then buffered for the caller."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def connect_async(
    nodes: str | None = None,
    *,
    cache: str | None = None,
    socket: str | None = None,
    patience_s: float = PATIENCE_S,
) -> AsyncCache:
    """Connect as `connect` does, without blocking the event loop."""
    return AsyncCache(
        await asyncio.to_thread(connect, nodes, cache=cache, socket=socket, patience_s=patience_s)
    )


class AsyncCache:
    """Provides the calls of a `Cache` as coroutines. cache: the same namespace for callers that may block."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._pool = ForkSafePool(THREADS, "headrace-async")

    async def __aenter__(self) -> AsyncCache:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.close)
        self.cache.close()

    async def read(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._do(self.cache.read, path, start, end)

    async def map(self, path: str) -> memoryview:
        return await self._do(self.cache.map, path)

    def read_many(
        self,
        wanted: Iterable[Wanted],
        *,
        ordered: bool = True,
        on_error: Literal["raise", "return"] = "raise",
    ) -> AsyncIterator[ReadResult]:
        return self._each(lambda: self.cache.read_many(wanted, ordered=ordered, on_error=on_error))

    async def are_cached(self, paths: Iterable[str]) -> builtins.list[bool]:
        return await self._do(self.cache.are_cached, paths)

    async def stat(self, path: str) -> Stat:
        return await self._do(self.cache.stat, path)

    async def exists(self, path: str) -> bool:
        return await self._do(self.cache.exists, path)

    def list(self, path: str = "/") -> AsyncIterator[Stat]:
        return self._each(lambda: self.cache.list(path))

    def walk(self, path: str = "/") -> AsyncIterator[tuple[str, builtins.list[str], builtins.list[str]]]:
        return self._each(lambda: self.cache.walk(path))

    def glob(self, pattern: str) -> AsyncIterator[str]:
        return self._each(lambda: self.cache.glob(pattern))

    async def put(self, path: str, data: bytes | bytearray | memoryview) -> None:
        await self._do(self.cache.put, path, data)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._do(self.cache.remove, path, recursive=recursive)

    async def make_directory(self, path: str) -> None:
        await self._do(self.cache.make_directory, path)

    async def rename(self, source: str, target: str) -> None:
        await self._do(self.cache.rename, source, target)

    async def load(self, path: str = "/", **options: Any) -> JobState:
        return await self._do(self.cache.load, path, **options)

    async def pin(self, path: str = "/", **options: Any) -> JobState:
        return await self._do(self.cache.pin, path, **options)

    async def persist(self, path: str = "/") -> JobState:
        return await self._do(self.cache.persist, path)

    async def seal(self, path: str, name: str | None = None, **options: Any) -> SealRow:
        return await self._do(self.cache.seal, path, name, **options)

    async def seals(self, *, from_origin: bool = False) -> builtins.list[SealRow]:
        return await self._do(self.cache.seals, from_origin=from_origin)

    async def status(self) -> dict[str, object]:
        return await self._do(self.cache.status)

    async def _do(
        self, call: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool.executor(), lambda: call(*arguments, **options))

    async def _each(self, begin: Callable[[], Iterator[Result]]) -> AsyncIterator[Result]:
        """Yield the items of a blocking iterator. Only one thread at a time runs it; it is closed when the caller
        stops early. A cancelled caller does not wait for that."""
        results = begin()
        page: Future[list[Result]] | None = None
        try:
            while True:
                page = self._pool.executor().submit(_page, results)
                items = await asyncio.wrap_future(page)
                if not items:
                    return
                for item in items:
                    yield item
        finally:
            if page is None or page.done():
                await self._do(_close, results)
            else:  # the call was cancelled, and its thread still runs the iterator
                page.add_done_callback(lambda _: _close(results))


def _page(results: Iterator[Result]) -> list[Result]:
    return list(itertools.islice(results, PAGE))


def _close(results: Iterator[Any]) -> None:
    """Close an iterator if it is a generator."""
    close = getattr(results, "close", None)
    if close is not None:
        close()
