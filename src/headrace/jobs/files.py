"""What jobs do with one file: load, verify, free, pin, unpin. Each raises the HeadraceError that says why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from headrace.base.errors import CorruptBlockError, NoSpaceError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry
from headrace.dataplane.read import ReadPath
from headrace.jobs.options import Priority
from headrace.jobs.priority_semaphore import PrioritySemaphore
from headrace.store.store import Store

AT_ONCE = 64
"""Files, or pieces of large ones, that all jobs of a node work on at a time."""
PIECE_BYTES = 64 << 20
"""Parts of large files are loaded in pieces: between two, a job of a higher priority has its turn."""
PIN_ATTEMPTS = 3
VERIFY_ATTEMPTS = 2

Span = tuple[int, int]
"""Bytes start..end of a file."""


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


class FileWork:
    """disk: where cached files are read back; a file takes one of its threads."""

    def __init__(self, store: Store, reads: ReadPath, disk: Executor) -> None:
        self._store = store
        self._reads = reads
        self._disk = disk
        self._turns = PrioritySemaphore(AT_ONCE)
        self._room = _Room(sum(volume.capacity_bytes for volume in store.disks))

    async def load(self, entry: Entry, spans: Sequence[Span] = (), *, priority: Priority) -> int:
        """spans: the parts of a large file that are wanted; none: all of it. The bytes that are there on return."""
        if not spans:
            async with self._room.take(entry.version.size_bytes), self._turns.take(priority):
                return await self._reads.load(entry)
        loaded = 0
        async with self._room.take(sum(end - start for start, end in spans)):
            for start, end in spans:
                for at in range(start, end, PIECE_BYTES):
                    piece_end = min(end, at + PIECE_BYTES)
                    async with self._turns.take(priority):
                        await self._reads.load_part(entry, at, piece_end)
                    loaded += piece_end - at
        return loaded

    async def load_verified(self, entry: Entry, spans: Sequence[Span] = (), *, priority: Priority) -> int:
        """As `load`, and its blocks match their checksums; those that don't are fetched once more."""
        loop = asyncio.get_running_loop()
        for _ in range(VERIFY_ATTEMPTS):
            size_bytes = await self.load(entry, spans, priority=priority)
            async with self._turns.take(priority):
                if await loop.run_in_executor(self._disk, self._store.verify, entry.id):
                    return size_bytes
        raise CorruptBlockError(
            "read back after loading",
            why="a block does not match its checksum, also after it was fetched again",
        )

    async def pin(self, entry: Entry, spans: Sequence[Span] = (), *, priority: Priority, verify: bool) -> int:
        load = self.load_verified if verify else self.load
        for _ in range(PIN_ATTEMPTS):
            size_bytes = await load(entry, spans, priority=priority)
            if self._store.pin(entry.id, True):
                return size_bytes
        raise NoSpaceError("pin", why="the file is evicted as soon as it was fetched")

    def unpin(self, entry: Entry) -> int:
        self._store.pin(entry.id, False)
        return entry.version.size_bytes

    def free(self, entry: Entry) -> int:
        """The bytes freed."""
        self._reads.forget([entry.id])
        return self._store.free(entry.id)

    def own(self, entry: Entry) -> None:
        """What was loaded on purpose is no borrowed copy, also where the ring says otherwise."""
        self._store.set_borrowed(entry.id, borrowed=False)

    def is_cached(self, entry: Entry) -> bool:
        return self._store.index.cached(entry.id) is not None

    def is_whole(self, entry: Entry) -> bool:
        cached = self._store.index.cached(entry.id)
        return cached is not None and cached.trusted

    def is_pinned(self, entry: Entry) -> bool:
        cached = self._store.index.cached(entry.id)
        return cached is not None and cached.pinned
