"""What an operator asks for a whole prefix: load, free, pin, unpin, sync, fsck.

A job is an async iterator of JobState: one at least every REPORT_INTERVAL_S, the last with done=True. Whoever stops
iterating cancels it; what is done stays done.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from headrace.base.errors import CancelledByUserError, HeadraceError, NoSpaceError, UsageError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId, Kind
from headrace.dataplane.read import ReadPath
from headrace.namespace.tree import Namespace
from headrace.store.store import Store
from headrace.wire.messages import JobState

REPORT_INTERVAL_S = 0.25
WORKERS = 64
FAILED_SHOWN_MAX = 1000
QUEUE_MAX = 4096

PIN_ATTEMPTS = 3

OneFile = Callable[[Entry], Awaitable[int]]


class _Progress:
    def __init__(self) -> None:
        self.files_done = self.files_total = self.bytes_done = self.bytes_total = self.failed_files = 0
        self.failed: list[tuple[str, str]] = []
        self.listing = True

    def failed_one(self, path: str, reason: str) -> None:
        self.failed_files += 1
        if len(self.failed) < FAILED_SHOWN_MAX:
            self.failed.append((path, reason))

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


class _Room:
    """Lets large files in while together they take at most half of the cache: more, and each would be evicted for
    the others before it is whole."""

    def __init__(self, size_bytes: int) -> None:
        self._all = self._left = size_bytes // 2
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def take(self, size_bytes: int) -> AsyncIterator[None]:
        if size_bytes <= BLOCK_SIZE_BYTES:
            yield
            return
        size_bytes = min(size_bytes, self._all)
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= size_bytes)
            self._left -= size_bytes
        try:
            yield
        finally:
            self._left += size_bytes
            async with self._changed:
                self._changed.notify_all()


class Jobs:
    """disk: where the check of cached files runs; it takes one of its threads for as long as it lasts."""

    def __init__(self, namespace: Namespace, store: Store, reads: ReadPath, disk: Executor) -> None:
        self._namespace = namespace
        self._store = store
        self._reads = reads
        self._disk = disk
        self._room = _Room(sum(volume.capacity_bytes for volume in store.volumes))

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
        async with self._room.take(entry.version.size_bytes):
            return await self._reads.load(entry)

    async def _free(self, entry: Entry) -> int:
        self._reads.forget([entry.id])
        return self._store.free(entry.id)

    async def _pin(self, entry: Entry) -> int:
        for _ in range(PIN_ATTEMPTS):
            size_bytes = await self._load(entry)
            if self._store.pin(entry.id, True):
                return size_bytes
        raise NoSpaceError("pin", why="the file is evicted as soon as it was fetched")

    async def _unpin(self, entry: Entry) -> int:
        self._store.pin(entry.id, False)
        return entry.version.size_bytes

    async def _each_file(self, path: bytes, one: OneFile, progress: _Progress, *, fresh: bool) -> None:
        """Listing and working are pipelined: workers start with the first names."""
        top = await self._namespace.resolve(path)
        queue: asyncio.Queue[Entry | None] = asyncio.Queue(QUEUE_MAX)
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker(queue, one, progress))
            await self._walk(top, queue, progress, fresh=fresh)
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
                progress.failed_one(self._path_of(entry), str(error))

    def _path_of(self, entry: Entry) -> str:
        """Also of one that is no more, when its folder is."""
        folder = self._store.index.path_of(entry.parent)
        return os.fsdecode(entry.name if folder is None else folder.rstrip(b"/") + b"/" + entry.name)

    async def _walk(
        self, top: Entry, queue: asyncio.Queue[Entry | None], progress: _Progress, *, fresh: bool
    ) -> None:
        pending = [top]
        while pending:
            entry = pending.pop()
            if entry.kind is Kind.FILE:
                await self._enqueue(entry, queue, progress)
                continue
            try:
                if fresh:
                    await self._namespace.list(entry.id)
            except HeadraceError as error:
                progress.failed_one(self._path_of(entry), str(error))
                continue
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
            try:
                await self._namespace.refresh(directory)
                progress.files_done += 1
            except HeadraceError as error:
                path_of = self._store.index.path_of(directory)
                if path_of is None:
                    continue  # removed meanwhile
                progress.failed_one(os.fsdecode(path_of), str(error))
            pending.extend(e.id for e in self._store.index.children(directory) if e.kind is Kind.DIRECTORY)

    async def _fsck(self, progress: _Progress) -> None:
        stop = threading.Event()
        progress.listing = False

        def seen(files: int, files_total: int, size_bytes: int, bytes_total: int) -> None:
            if stop.is_set():
                raise CancelledByUserError("fsck")
            progress.files_done, progress.files_total = files, max(files, files_total)
            progress.bytes_done, progress.bytes_total = size_bytes, max(size_bytes, bytes_total)

        try:
            report = await asyncio.get_running_loop().run_in_executor(self._disk, self._store.fsck, seen)
        finally:
            stop.set()
        for id, reason in report.faults:
            path = self._store.index.path_of(id)
            progress.failed_one(f"cache file {id:x}" if path is None else os.fsdecode(path), reason)
