"""Fetch the blocks of one file into its cache file.

At most one range read fetches a block, and all requests for the block wait for that read. A reader that comes to wait
for a background read promotes it. The bytes are in the cache file before a waiter continues. Everything runs on the
node's loop; checksums and writes run in the disk pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from headrace.base.errors import EvictedError, HeadraceError, NoSpaceError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, block_range
from headrace.base.promotion import Promotion
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.intent import BACKGROUND, FOREGROUND, ReadIntent
from headrace.dataplane.readahead import ReadAhead, whole_order
from headrace.dataplane.room import with_room
from headrace.dataplane.source import ByteSource
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """Limits the range reads of a fill. blocks: of one read. segment_bytes: as in whole_order. in_flight_max: returns
    how many reads in flight are useful now."""

    blocks: int
    segment_bytes: int
    in_flight_max: Callable[[], float]


class Fill:
    """Fill the cache file of one file. on_last_block: called on the loop when the file has all blocks; it commits the
    file, at once or after a comparison.

    A fill ends in one of three ways: `is_committed`; `failure`, which every later `ensure` raises; or `is_closed`, for
    a file that was evicted or is no longer used. A complete file for whose record the index has no space stays open for
    readers; its next fill commits it.
    """

    def __init__(
        self,
        entry: Entry,
        source: ByteSource,
        writer: CacheWriter,
        *,
        store: Store,
        disk: Executor,
        limits: RangeLimits,
        readahead: ReadAhead,
        on_last_block: Callable[[Fill], None],
    ) -> None:
        self.entry = entry
        self.writer = writer
        self._source = source
        self._store = store
        self._disk = disk
        self._limits = limits
        self._readahead = readahead
        self._on_last_block = on_last_block
        self.is_committed = False
        self.failure: HeadraceError | None = None
        self._postponed: NoSpaceError | None = None
        self.request_count = 0
        self._size_bytes = entry.version.size_bytes
        # the kernel writes one range of a file at a time, and other threads would only spin
        self._write_lock = asyncio.Lock()
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._promotions: dict[asyncio.Task[None], Promotion] = {}  # of background reads
        self._whole_task: asyncio.Task[None] | None = None
        self._comparison: asyncio.Task[None] | None = None
        self._tasks = OwnedTasks(HeadraceError)
        self._load_count = 0
        self._has_eager_reader = False

    @property
    def volume(self) -> Volume:
        return self.writer.volume

    @property
    def is_closed(self) -> bool:
        return self.writer.closed

    @property
    def is_comparing(self) -> bool:
        return self._comparison is not None

    @property
    def is_idle(self) -> bool:
        has_compared = self._comparison is None or self._comparison.done()
        return not self._in_flight and self._whole_task is None and has_compared

    # ------------------------------------------------------------ reading

    async def ensure(self, start: int, end: int, intent: ReadIntent = FOREGROUND) -> None:
        """Wait until start..end is in the cache file. Raises the source's errors, EvictedError if the file was evicted
        meanwhile, and `failure` if the file is complete but could not be committed."""
        tasks = self.start(block_range(start, min(end, self._size_bytes)), intent)
        if tasks:
            await asyncio.gather(*(asyncio.shield(task) for task in tasks))
        if self.failure is not None:
            raise self.failure

    def start(self, blocks: range, intent: ReadIntent) -> list[asyncio.Task[None]]:
        """Start to fetch the absent ones of these blocks. Return the tasks that fetch them, or are fetching them
        already."""
        self.request_count += 1
        tasks: dict[asyncio.Task[None], None] = {}
        run: list[int] = []
        for block in blocks:
            task = self._in_flight.get(block)
            if task is not None:
                tasks[task] = None
                if not intent.background and task in self._promotions:
                    self._promotions[task].promote()
            elif not self._has(block):
                is_full = len(run) >= self._limits.blocks
                if run and (block != run[-1] + 1 or is_full or self._begins_segment(block)):
                    tasks[self._launch(run, intent)] = None
                    run = []
                run.append(block)
        if run:
            tasks[self._launch(run, intent)] = None
        return list(tasks)

    def read_ahead(self, start: int, end: int) -> None:
        """Note a sequential read of start..end. Start to fetch the next blocks of its reader: a window, or the whole
        file."""
        ahead_start, ahead_end = self._readahead.note(start, end)
        if self._readahead.wants_whole:
            self.start_whole(start // BLOCK_SIZE_BYTES)
        if ahead_end > ahead_start:
            self.start(range(start // BLOCK_SIZE_BYTES, -(-ahead_end // BLOCK_SIZE_BYTES)), BACKGROUND)

    def missing_ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the absent blocks of start..end, as ranges of bytes."""
        return [
            (block * BLOCK_SIZE_BYTES, min((block + 1) * BLOCK_SIZE_BYTES, self._size_bytes))
            for block in block_range(start, min(end, self._size_bytes))
            if not self._has(block)
        ]

    def start_whole(self, from_block: int) -> None:
        """Fill all of the file in the background, for a reader that is at from_block."""
        self._has_eager_reader = True
        self._start_whole(from_block, BACKGROUND)

    async def ensure_all(self, intent: ReadIntent) -> None:
        """Wait until all blocks are in the cache file. After a cancel no further range is requested, unless another
        caller wants the whole file; ranges in flight still arrive."""
        self._load_count += 1
        try:
            self._start_whole(0, intent)
            if self._whole_task is not None:
                await asyncio.shield(self._whole_task)
        finally:
            self._load_count -= 1
            if self._whole_task is not None and not self._load_count and not self._has_eager_reader:
                self._whole_task.cancel()
                self._whole_task = None  # the next caller starts again
        # also where all blocks are there: a thread has written the last ones, and the loop doesn't know it yet
        await self.ensure(0, self._size_bytes, intent)

    # ------------------------------------------------------------ the end

    def compare(self, comparison: Coroutine[None, None, None]) -> None:
        """Run the comparison of the complete file. At its end the file is committed or has failed."""
        self._comparison = self._tasks.start(comparison)

    async def compared(self) -> None:
        """Wait until a complete file was compared and committed. Raise `failure`, and NoSpaceError if the index has no
        space for the record."""
        if self._comparison is not None:
            await asyncio.shield(self._comparison)
            if self.failure is not None:
                raise self.failure
        if self._postponed is not None:
            raise self._postponed.copied()

    def commit(self) -> bool:
        """Rename the complete cache file and record it. Return False if the file was evicted; with `failure` set, if
        the store refuses it; or with the fill open, if the index has no space."""
        try:
            self._store.complete(self.writer)
        except EvictedError:
            return False
        except NoSpaceError as error:
            self._postponed = error
            return False
        except StoreError as error:
            log.warning("a complete file can't be committed id=%x error=%s", self.entry.id, error)
            self.close()
            self.fail(error)
            return False
        self.is_committed = True
        return True

    def fail(self, error: HeadraceError) -> None:
        """Record why the file could not be committed; its readers raise it."""
        self.failure = error

    def close(self) -> None:
        """Close the cache file. Reads in flight end with EvictedError."""
        self.writer.close()

    async def stop(self) -> None:
        """Cancel everything in flight and close the cache file."""
        await self._tasks.close()
        self.close()

    # ------------------------------------------------------------ internal

    def _has(self, block: int) -> bool:
        start = block * BLOCK_SIZE_BYTES
        return self.writer.present(start, min(start + BLOCK_SIZE_BYTES, self._size_bytes))

    def _begins_segment(self, block: int) -> bool:
        """Return whether a new range must begin here. A range of two segments would have one owner fetch bytes from the
        origin that the other owner fetches, too."""
        segment_bytes = self._limits.segment_bytes
        return bool(segment_bytes) and block * BLOCK_SIZE_BYTES % segment_bytes == 0

    def _launch(self, blocks: list[int], intent: ReadIntent) -> asyncio.Task[None]:
        first, stop = blocks[0], blocks[-1] + 1
        if intent.background:
            intent = replace(intent, promotion=Promotion())
        task = self._tasks.start(self._fetch(first, stop, intent))
        if intent.promotion is not None:
            self._promotions[task] = intent.promotion
        for block in range(first, stop):
            self._in_flight[block] = task
        task.add_done_callback(lambda done: self._land(range(first, stop), done))
        return task

    def _land(self, blocks: range, task: asyncio.Task[None]) -> None:
        for block in blocks:
            self._in_flight.pop(block, None)
        self._promotions.pop(task, None)
        if not task.cancelled() and task.exception() is None and self.writer.complete:
            self._on_last_block(self)

    async def _fetch(self, first: int, stop: int, intent: ReadIntent) -> None:
        start, end = first * BLOCK_SIZE_BYTES, min(stop * BLOCK_SIZE_BYTES, self._size_bytes)
        async with self._source.read(start, end, intent) as arrived:
            write = partial(self.writer.write, start, arrived.body, arrived.extras)
            async with self._write_lock:
                await with_room(
                    self._store, lambda: asyncio.get_running_loop().run_in_executor(self._disk, write)
                )

    def _start_whole(self, from_block: int, intent: ReadIntent) -> None:
        if self._whole_task is None and not self.writer.complete:
            self._whole_task = self._tasks.start(self._fill_whole(from_block, intent))

    async def _fill_whole(self, from_block: int, intent: ReadIntent) -> None:
        """Fetch all blocks, with as many ranges in flight as are useful and two more that follow at once. When this
        task is cancelled, ranges in flight go on (`asyncio.wait`): readers may wait for them."""
        order = whole_order(
            self._size_bytes,
            from_block,
            range_blocks=self._limits.blocks,
            segment_bytes=self._limits.segment_bytes,
        )
        pending: set[asyncio.Task[None]] = set()
        try:
            for blocks in order:
                pending.update(self.start(blocks, intent))
                while len(pending) > self._limits.in_flight_max() + 2:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            if pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
        except HeadraceError as error:
            log.info("whole-file fill stopped id=%x error=%s", self.entry.id, error)
        finally:
            if self._whole_task is asyncio.current_task():
                self._whole_task = None
