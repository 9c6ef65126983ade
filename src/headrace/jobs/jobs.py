"""What an operator asks for a whole prefix: load, free, pin, unpin, sync, fsck.

A job is an async iterator of JobState: one at least every REPORT_INTERVAL_S, the last with done=True. Whoever stops
iterating cancels it; what is done stays done.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.model import Entry, FileId, Kind
from headrace.dataplane.read import ReadPath
from headrace.namespace.tree import Namespace
from headrace.store.store import Store
from headrace.wire.messages import JobState

REPORT_INTERVAL_S = 0.25
WORKERS = 64
FAILED_SHOWN_MAX = 1000
QUEUE_MAX = 4096

OneFile = Callable[[Entry], Awaitable[int]]


class _Progress:
    def __init__(self) -> None:
        self.files_done = self.files_total = self.bytes_done = self.bytes_total = self.failed_files = 0
        self.failed: list[tuple[str, str]] = []
        self.listing = True

    def failed_one(self, path: str, error: HeadraceError) -> None:
        self.failed_files += 1
        if len(self.failed) < FAILED_SHOWN_MAX:
            self.failed.append((path, str(error)))

    def state(self, *, done: bool) -> JobState:
        return JobState(
            done=done,
            files_done=self.files_done,
            files_total=self.files_total,
            bytes_done=self.bytes_done,
            bytes_total=self.bytes_total,
            failed_files=self.failed_files,
            failed=self.failed if done else [],
            listing=self.listing,
        )


class Jobs:
    def __init__(self, namespace: Namespace, store: Store, reads: ReadPath) -> None:
        self._namespace = namespace
        self._store = store
        self._reads = reads

    async def run(self, kind: str, path: str, options: dict[str, str]) -> AsyncIterator[JobState]:
        """UsageError for an unknown kind; PathNotFoundError for an unknown path."""
        progress = _Progress()
        work = asyncio.ensure_future(self._start(kind, os.fsencode(path), progress))
        try:
            while not work.done():
                await asyncio.wait([work], timeout=REPORT_INTERVAL_S)
                if not work.done():
                    yield progress.state(done=False)
            work.result()
            progress.listing = False
            yield progress.state(done=True)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _start(self, kind: str, path: bytes, progress: _Progress) -> None:
        if kind == "fsck":
            await self._fsck(progress)
        elif kind == "sync":
            await self._sync(path, progress)
        elif kind in ("load", "free", "pin", "unpin"):
            one: dict[str, OneFile] = {
                "load": self._load,
                "free": self._free,
                "pin": self._pin,
                "unpin": self._unpin,
            }
            await self._each_file(path, one[kind], progress, fresh=kind in ("load", "pin"))
        else:
            raise UsageError(f"job kind {kind!r}", why="unknown", hint="load, free, pin, unpin, sync or fsck")

    async def _load(self, entry: Entry) -> int:
        return await self._reads.load(entry)

    async def _free(self, entry: Entry) -> int:
        self._reads.forget([entry.id])
        return self._store.free(entry.id)

    async def _pin(self, entry: Entry) -> int:
        size_bytes = await self._reads.load(entry)
        self._store.pin(entry.id, True)
        return size_bytes

    async def _unpin(self, entry: Entry) -> int:
        self._store.pin(entry.id, False)
        return entry.version.size_bytes

    async def _each_file(self, path: bytes, one: OneFile, progress: _Progress, *, fresh: bool) -> None:
        """Listing and working are pipelined: workers start with the first names."""
        queue: asyncio.Queue[Entry | None] = asyncio.Queue(QUEUE_MAX)
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker(queue, one, progress))
            await self._walk(await self._namespace.resolve(path), queue, progress, fresh=fresh)
            progress.listing = False
            for _ in range(WORKERS):
                await queue.put(None)

    async def _worker(self, queue: asyncio.Queue[Entry | None], one: OneFile, progress: _Progress) -> None:
        while (entry := await queue.get()) is not None:
            try:
                bytes_done = await one(entry)
                progress.bytes_done += bytes_done  # not in one line: the sum would be read before the wait
                progress.files_done += 1
            except HeadraceError as error:
                path = self._store.index.path_of(entry.id) or entry.name
                progress.failed_one(os.fsdecode(path), error)

    async def _walk(
        self, top: Entry, queue: asyncio.Queue[Entry | None], progress: _Progress, *, fresh: bool
    ) -> None:
        pending = [top]
        while pending:
            entry = pending.pop()
            if entry.kind is Kind.FILE:
                await self._enqueue(entry, queue, progress)
                continue
            if fresh:
                await self._namespace.list(entry.id)
            for child in self._store.index.children(entry.id):
                if child.kind is Kind.DIRECTORY:
                    pending.append(child)
                else:
                    await self._enqueue(child, queue, progress)

    async def _enqueue(self, entry: Entry, queue: asyncio.Queue[Entry | None], progress: _Progress) -> None:
        progress.files_total += 1
        progress.bytes_total += entry.version.size_bytes
        await queue.put(entry)

    async def _sync(self, path: bytes, progress: _Progress) -> None:
        """Lists again every directory at and below a path that was ever listed."""
        pending: list[FileId] = [(await self._namespace.resolve(path)).id]
        while pending:
            directory = pending.pop()
            if self._store.index.fresh_until_ns(directory) == 0:
                continue  # nobody looked: it will be listed when somebody does
            await self._namespace.refresh(directory)
            progress.files_done += 1
            pending.extend(e.id for e in self._store.index.children(directory) if e.kind is Kind.DIRECTORY)

    async def _fsck(self, progress: _Progress) -> None:
        began = time.monotonic()
        report = self._store.fsck(lambda *_: None)
        progress.failed = [(str(time.monotonic() - began), str(report))]
