"""Send the bytes of one put to an object store, in one request or in parts, within a memory limit.

Cancelling obstore's call does not abort a multipart upload: its parts would remain at the store, invisible and
charged for. Instead its source of parts fails, and obstore then aborts the upload. Only a store that does not answer
within ABORT_WITHIN_S keeps its parts (S3 and GCS have lifecycle rules for them; Azure deletes them after a week).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError
from headrace.base.tasks import OwnedTasks
from headrace.origin.origin import Body, PutSource
from headrace.origin.threads import Threads

if TYPE_CHECKING:
    from obstore import Attributes as Metadata
    from obstore import PutMode, PutResult
    from obstore.store import ObjectStore

ABORT_WITHIN_S = 10.0
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """Holds the limits of uploads.

    - `single_max_bytes`: up to this size a put is one request, for which the store itself enforces the condition.
    - `part_min_bytes`: at least 5 MiB on S3.
    - `parts_max`: 10,000 on S3 and GCS.
    - `in_flight_max`: parts sent at the same time.
    - `memory_max_bytes`: held by all uploads of an origin together; an upload with larger parts takes all of it.
    """

    single_max_bytes: int = 64 * _MIB
    part_min_bytes: int = 16 * _MIB
    parts_max: int = 10_000
    in_flight_max: int = 8
    memory_max_bytes: int = 256 * _MIB

    def part_bytes(self, size_bytes: int) -> int:
        least = -(-size_bytes // self.parts_max)
        return max(self.part_min_bytes, -(-least // _MIB) * _MIB)

    def in_flight(self, part_bytes: int) -> int:
        """Return the number of parts in flight. One more is being read, and one waits in obstore."""
        return max(1, min(self.in_flight_max, self.memory_max_bytes // part_bytes - 2))


class ByteBudget:
    """Limits the memory of uploads. Requests are granted in their order."""

    def __init__(self, bytes_max: int) -> None:
        self._free = self._total = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @contextlib.asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        size = min(size_bytes, self._total)
        if self._waiting or size > self._free:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, waiter))
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._release(size)
                else:
                    with contextlib.suppress(
                        ValueError
                    ):  # a holder that left in this turn may have removed it
                        self._waiting.remove((size, waiter))
                    self._release(0)
                raise
        else:
            self._free -= size
        try:
            yield
        finally:
            self._release(size)

    def _release(self, size: int) -> None:
        self._free += size
        while self._waiting and self._waiting[0][0] <= self._free:
            size, waiter = self._waiting.popleft()
            if not waiter.cancelled():
                self._free -= size
                waiter.set_result(None)


class _StoppedError(Exception):
    """Raised by the source of parts when the put is abandoned."""


Tags = dict[str, str] | None


class Upload:
    """Sends one put. `threads` read its source. Raises the errors of obstore unchanged."""

    def __init__(
        self, source: PutSource, sizes: Sizes, threads: Threads, target: str, deadline: Deadline
    ) -> None:
        self._source = source
        self._sizes = sizes
        self._threads = threads
        self._target = target
        self._deadline = deadline
        self._stopped = False
        self._part_bytes = sizes.part_bytes(source.size_bytes)
        self.is_single = source.size_bytes <= sizes.single_max_bytes

    @property
    def memory_bytes(self) -> int:
        if self.is_single:
            return self._source.size_bytes
        return (self._sizes.in_flight(self._part_bytes) + 2) * self._part_bytes

    async def send(
        self, store: ObjectStore, path: str, metadata: Metadata, tags: Tags, mode: PutMode
    ) -> PutResult:
        """Send the file in one request, with the condition of `mode`."""
        body: Body | None = getattr(self._source, "content", None)  # saves a small file the thread
        if body is None:
            body = await self._read(0, self._source.size_bytes) if self._source.size_bytes else b""
        return await obstore.put_async(
            store, path, body, attributes=metadata, tags=tags, mode=mode, use_multipart=False
        )

    async def send_parts(
        self,
        store: ObjectStore,
        path: str,
        metadata: Metadata,
        tags: Tags,
        before_end: Callable[[], Awaitable[None]],
    ) -> PutResult:
        """Send the file in parts. `before_end` is called after the last part was read and before the object appears. If
        it raises, the upload is aborted."""
        async with OwnedTasks(Exception) as tasks:
            call = tasks.start(
                obstore.put_async(
                    store,
                    path,
                    self._parts(before_end),
                    attributes=metadata,
                    tags=tags,
                    use_multipart=True,
                    chunk_size=self._part_bytes,
                    max_concurrency=self._sizes.in_flight(self._part_bytes),
                )
            )
            try:
                await asyncio.wait({call}, timeout=self._deadline.timeout_s())
            finally:
                if (
                    not call.done()
                ):  # the source stops it, so that the upload is aborted; then it is cancelled
                    self._stopped = True
                    await asyncio.wait({call}, timeout=ABORT_WITHIN_S)
        if call.cancelled() or isinstance(call.exception(), _StoppedError):
            raise DeadlineExceededError(self._target, why="the upload did not complete before the deadline")
        return call.result()

    async def _parts(self, before_end: Callable[[], Awaitable[None]]) -> AsyncGenerator[Body, None]:
        size, step = self._source.size_bytes, self._part_bytes
        for start in range(0, size, step):
            self._check()
            body = await self._read(start, min(size, start + step))
            self._check()
            yield body
        await before_end()
        self._check()

    def _check(self) -> None:
        if self._stopped:
            raise _StoppedError

    async def _read(self, start: int, end: int) -> Body:
        """Read bytes in a thread. An abandoned read is still awaited, because its file may be closed afterwards."""
        return await self._threads.finish(
            lambda: self._source.pread(start, end), lambda: None, self._target, self._deadline
        )
