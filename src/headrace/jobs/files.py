"""Load, verify, free, pin and unpin one file for a job. Each call raises a HeadraceError with its reason on
failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass

from headrace.base.errors import CorruptBlockError, NoSpaceError, UsageError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry
from headrace.base.priority import Priority
from headrace.dataplane.read import ReadPath
from headrace.jobs.priority_semaphore import PrioritySemaphore
from headrace.jobs.sealed_checksum import check_sealed_bytes
from headrace.store.store import Store

AT_ONCE = 64
"""Most files, or pieces of large files, that all jobs of a node work on at a time."""
PIECE_BYTES = 64 << 20
"""Size of the pieces in which large files are loaded. Between two pieces a job of a higher priority can run."""
PIN_ATTEMPTS = 3
"""Most loads of a file that is evicted before it is pinned."""
VERIFY_ATTEMPTS = 2
"""Most loads of a file whose blocks don't match their checksums."""

Span = tuple[int, int]
"""Bytes start to end (exclusive) of a file."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Names the job that loads a file, for the account of costs, and its priority."""

    name: str
    priority: Priority = Priority.NORMAL


class _CacheBudget:
    """Admits large files while they take at most half of the cache together. With more of them, each would be evicted
    for the others before it is complete."""

    def __init__(self, size_bytes: int) -> None:
        self._total = self._left = size_bytes // 2
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def reserve(self, size_bytes: int) -> AsyncIterator[None]:
        if size_bytes <= BLOCK_SIZE_BYTES:
            yield
            return
        size_bytes = min(size_bytes, self._total)
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= size_bytes)
            self._left -= size_bytes
        try:
            yield
        finally:
            self._left += size_bytes
            async with self._changed:
                self._changed.notify_all()


class FileWork:
    """Loads, verifies, pins and frees single files. Checks of cached files run in `disk`; each takes one thread."""

    def __init__(self, store: Store, reads: ReadPath, disk: Executor) -> None:
        self._store = store
        self._reads = reads
        self._disk = disk
        self._slots = PrioritySemaphore(AT_ONCE)
        self._budget = _CacheBudget(sum(volume.capacity_bytes for volume in store.disks))

    async def load(self, entry: Entry, spans: Sequence[Span] = (), *, job: LoadJob) -> int:
        """Load `spans` of a large file, or all of it if there are none. Return the number of bytes that are cached
        then."""
        loaded = await self._load(entry, spans, job)
        check_sealed_bytes(self._store, entry)
        return loaded

    async def _load(self, entry: Entry, spans: Sequence[Span], job: LoadJob) -> int:
        """Load a file. The wait for the budget of its origin holds no slot, because other origins need them."""
        for start, end in spans or [(0, entry.version.size_bytes)]:
            await self._reads.admit(entry, start, end, job=job.name)
        if not spans:
            async with (
                self._budget.reserve(entry.version.size_bytes),
                self._slots.acquire(self._priority(entry, job)),
            ):
                return await self._reads.load(entry, job=job.name, is_admitted=True)
        loaded = 0
        async with self._budget.reserve(sum(end - start for start, end in spans)):
            for start, end in spans:
                for piece_start in range(start, end, PIECE_BYTES):
                    piece_end = min(end, piece_start + PIECE_BYTES)
                    async with self._slots.acquire(self._priority(entry, job)):
                        piece = (piece_start, piece_end)
                        loaded += await self._reads.load(entry, piece, job=job.name, is_admitted=True)
        return loaded

    def _priority(self, entry: Entry, job: LoadJob) -> Priority:
        """Return the priority of the job, or that of the file where it is lower."""
        return max(job.priority, self._store.space.division.group_of(entry.id).priority)

    async def load_verified(self, entry: Entry, spans: Sequence[Span] = (), *, job: LoadJob) -> int:
        """Load as `load` does, and check every block against its checksum. Fetch wrong blocks once more; raise
        CorruptBlockError if that fails."""
        loop = asyncio.get_running_loop()
        for _ in range(VERIFY_ATTEMPTS):
            size_bytes = await self.load(entry, spans, job=job)
            async with self._slots.acquire(self._priority(entry, job)):
                if await loop.run_in_executor(self._disk, self._store.verifier.verify, entry.id):
                    return size_bytes
        raise CorruptBlockError(
            "check after loading",
            why="a block does not match its checksum, even after a second fetch",
        )

    async def pin(self, entry: Entry, spans: Sequence[Span] = (), *, job: LoadJob, verify: bool) -> int:
        """Load a file and pin it. Return its bytes. Raise NoSpaceError if the cache evicts it at once."""
        load = self.load_verified if verify else self.load
        for _ in range(PIN_ATTEMPTS):
            size_bytes = await load(entry, spans, job=job)
            if self._store.pin(entry.id, True):
                return size_bytes
        raise NoSpaceError("pin", why="the cache evicts the file as soon as it is fetched")

    def unpin(self, entry: Entry) -> int:
        self._store.pin(entry.id, False)
        return entry.version.size_bytes

    def free(self, entry: Entry) -> int:
        """Remove a file from the cache. Return the number of bytes freed. Raise UsageError for a file of a seal."""
        if entry.id in self._store.sealed:
            hint = "remove the seal, and end what still reads it: see `headrace status`"
            raise UsageError("free", why="a seal holds the file", hint=hint)
        self._reads.forget([entry.id])
        return self._store.free(entry.id)

    def own(self, entry: Entry) -> None:
        """Mark a file as not borrowed: a job loaded it on purpose, whatever the ring says."""
        self._store.set_borrowed(entry.id, borrowed=False)

    def is_cached(self, entry: Entry) -> bool:
        return self._store.index.cached(entry.id) is not None

    def is_whole(self, entry: Entry) -> bool:
        cached = self._store.index.cached(entry.id)
        return cached is not None and cached.trusted

    def is_pinned(self, entry: Entry) -> bool:
        cached = self._store.index.cached(entry.id)
        return cached is not None and cached.pinned
