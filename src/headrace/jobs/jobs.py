"""What an operator asks for a whole prefix, on this node: load, free, pin, unpin, sync, fsck.

Those that a cluster does together are `jobs/cluster_jobs.py`, which uses the same parts.

A job is an async iterator of JobState: one at least every REPORT_INTERVAL_S, the last with done=True. Whoever stops
iterating cancels it; what is done stays done.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from functools import partial

from headrace.base.errors import CancelledByUserError, HeadraceError, UsageError
from headrace.base.model import Entry, FileId, Kind
from headrace.dataplane.read import ReadPath
from headrace.jobs.files import FileWork
from headrace.jobs.named_digests import NamedDigests
from headrace.jobs.options import JobOptions, parse_options
from headrace.jobs.walk import walk
from headrace.namespace.tree import Namespace
from headrace.store.recovery import Fault
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.wire.messages import JobState

REPORT_INTERVAL_S = 0.25
WORKERS = 64
FAILED_SHOWN_MAX = 1000
QUEUE_MAX = 4096

FETCHING = ("load", "pin")
"""Kinds that bring what is not here; the others look at what the index knows."""
KINDS = ("load", "free", "pin", "unpin", "sync", "fsck")

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


class Jobs:
    """disk: where the check of cached files runs; it takes one of its threads for as long as it lasts. on_damaged: has
    the host's clients forget the bytes of files that were found to be wrong."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        reads: ReadPath,
        disk: Executor,
        *,
        on_damaged: Callable[[list[FileId]], Awaitable[None]],
    ) -> None:
        self.namespace = namespace
        self.store = store
        self.files = FileWork(store, reads, disk)
        self._disk = disk
        self._on_damaged = on_damaged

    async def run(self, kind: str, path: str, options: dict[str, str]) -> AsyncIterator[JobState]:
        """UsageError for an unknown kind or option; PathNotFoundError for an unknown path."""
        progress = _Progress()
        work = asyncio.ensure_future(self._start(kind, os.fsencode(path), options, progress))
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

    async def _start(self, kind: str, path: bytes, options: dict[str, str], progress: _Progress) -> None:
        if kind not in KINDS:
            raise UsageError(f"job kind {kind!r}", why="unknown", hint="load, free, pin, unpin, sync or fsck")
        wanted = parse_options(kind, options)
        if wanted.replicas > 1:
            raise UsageError(
                f"{kind} --replicas", why="this node has no cluster, so there are no other nodes"
            )
        if kind == "fsck":
            await self._fsck(progress)
        elif kind == "sync":
            await self._sync(path, progress)
        else:
            await self._each_file(path, self._one(kind, wanted), progress, fresh=kind in FETCHING)

    def _one(self, kind: str, options: JobOptions) -> OneFile:
        files, priority = self.files, options.priority

        async def load(entry: Entry) -> int:
            return await (files.load_verified if options.verify else files.load)(entry, priority=priority)

        async def pin(entry: Entry) -> int:
            return await files.pin(entry, priority=priority, verify=options.verify)

        async def unpin(entry: Entry) -> int:
            return files.unpin(entry)

        async def free(entry: Entry) -> int:
            return files.free(entry)

        return {"load": load, "pin": pin, "unpin": unpin, "free": free}[kind]

    async def _each_file(self, path: bytes, one: OneFile, progress: _Progress, *, fresh: bool) -> None:
        """Listing and working are pipelined: workers start with the first names."""
        top = await self.namespace.resolve(path)
        queue: asyncio.Queue[tuple[bytes, Entry] | None] = asyncio.Queue(QUEUE_MAX)
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._worker(queue, one, progress))
            async for found in walk(
                self.namespace, self.store.index, top, fresh=fresh, failed=progress.failed_one
            ):
                progress.files_total += 1
                progress.bytes_total += found[1].version.size_bytes
                await queue.put(found)
            progress.listing = False
            for _ in range(WORKERS):
                await queue.put(None)

    async def _worker(
        self, queue: asyncio.Queue[tuple[bytes, Entry] | None], one: OneFile, progress: _Progress
    ) -> None:
        while (found := await queue.get()) is not None:
            path, entry = found
            try:
                bytes_done = await one(entry)
                progress.bytes_done += bytes_done  # not in one line: the sum would be read before the wait
                progress.files_done += 1
            except HeadraceError as error:
                progress.failed_one(os.fsdecode(path), str(error))

    async def _sync(self, path: bytes, progress: _Progress) -> None:
        """Lists again every directory at and below a path that was ever listed."""
        pending: list[FileId] = [(await self.namespace.resolve(path)).id]
        while pending:
            directory = pending.pop()
            if self.store.index.fresh_until_ns(directory) == 0:
                continue  # nobody looked: it will be listed when somebody does
            try:
                await self.namespace.refresh(directory)
                progress.files_done += 1
            except HeadraceError as error:
                path_of = self.store.index.path_of(directory)
                if path_of is None:
                    continue  # removed meanwhile
                progress.failed_one(os.fsdecode(path_of), str(error))
            pending.extend(e.id for e in self.store.index.children(directory) if e.kind is Kind.DIRECTORY)

    def _origin_of(self, cached: CachedFile) -> str:
        path = self.store.index.path_of(cached.id)
        place = None if path is None else self.namespace.place_of(path)
        return "" if place is None else place[0].url

    def _drop_wrong(self, digests: NamedDigests) -> list[Fault]:
        wrong = [cached for cached in digests.wrong() if self.store.index.cached(cached.id) == cached]
        for cached in wrong:
            self.store.free(cached.id)
        why = "its bytes are not those of which its origin names the checksum; dropped"
        return [(cached.id, why) for cached in wrong]

    async def _fsck(self, progress: _Progress) -> None:
        stop = threading.Event()
        progress.listing = False
        store = self.store
        digests = NamedDigests(
            self._origin_of, lambda cached: store.volumes[cached.volume].data_path(cached.id)
        )

        def seen(files: int, files_total: int, size_bytes: int, bytes_total: int) -> None:
            if stop.is_set():
                raise CancelledByUserError("fsck")
            progress.files_done, progress.files_total = files, max(files, files_total)
            progress.bytes_done, progress.bytes_total = size_bytes, max(size_bytes, bytes_total)

        try:
            check = partial(self.store.fsck, seen, digests.compare)
            report = await asyncio.get_running_loop().run_in_executor(self._disk, check)
        finally:
            stop.set()
        faults = [*report.faults, *self._drop_wrong(digests)]
        if faults:
            await self._on_damaged([id for id, _ in faults])
        for id, reason in faults:
            path = self.store.index.path_of(id)
            progress.failed_one(f"cache file {id:x}" if path is None else os.fsdecode(path), reason)
