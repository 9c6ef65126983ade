"""Bringing blocks of one file into its cache file.

Single-flight per block: a block is in flight in one range read at most, and everybody who wants it waits for that
one. A range read lands in the cache file before anybody is told. Runs on the node's loop; checksums and writes go
to the disk pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from headrace.base.errors import HeadraceError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, block_range
from headrace.dataplane.readahead import ReadAhead, whole_order
from headrace.dataplane.room import with_room
from headrace.dataplane.source import ByteSource
from headrace.store.store import Store
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)


class Fill:
    """One file being filled.

    in_flight_max: how many range reads are worth having in flight just now. lane_bytes: as in whole_order. on_complete:
    called once, on the loop, when the last block is there; the commit is the caller's.
    """

    def __init__(
        self,
        entry: Entry,
        source: ByteSource,
        writer: CacheWriter,
        *,
        store: Store,
        in_flight_max: Callable[[], float],
        disk: Executor,
        range_bytes: int,
        lane_bytes: int,
        readahead: ReadAhead,
        on_complete: Callable[[Fill], None],
    ) -> None:
        self.entry = entry
        self.writer = writer
        self.readahead = readahead
        self._source = source
        self._store = store
        self._in_flight_max = in_flight_max
        self._disk = disk
        self._range_blocks = max(1, range_bytes // BLOCK_SIZE_BYTES)
        self._lane_bytes = lane_bytes
        self._on_complete = on_complete
        self.committed = False  # set by on_complete, as are the next two
        self.failure: HeadraceError | None = None
        self.comparing: asyncio.Task[None] | None = None
        self.asked = 0  # how often somebody wanted blocks of it
        self._writing = (
            asyncio.Lock()
        )  # the kernel writes one range a file at a time, and others would only spin
        self._in_flight: dict[int, asyncio.Task[None]] = {}
        self._whole: asyncio.Task[None] | None = None
        self._loads = 0  # of those who wait for all of it
        self._read_in_earnest = False

    @property
    def idle(self) -> bool:
        return not self._in_flight and self._whole is None and self.comparing is None

    async def ensure(self, start: int, end: int, *, for_peer: bool = False, background: bool = False) -> None:
        """start..end is in the cache file on return. Raises what the source raised; EvictedError when the file
        went under us; what was wrong when the file is whole and could not be committed."""
        end = min(end, self.entry.version.size_bytes)
        tasks = self.start(block_range(start, end), background=background, for_peer=for_peer)
        if tasks:
            await asyncio.gather(*(asyncio.shield(task) for task in tasks))
        if self.failure is not None:
            raise self.failure

    def start(self, blocks: range, *, background: bool, for_peer: bool = False) -> list[asyncio.Task[None]]:
        """Puts the absent ones of these blocks in flight; the tasks that bring them."""
        self.asked += 1
        tasks: dict[asyncio.Task[None], None] = {}
        run: list[int] = []
        for block in blocks:
            task = self._in_flight.get(block)
            if task is not None:
                tasks[task] = None
            elif not self._has(block):
                if run and (
                    block != run[-1] + 1 or len(run) >= self._range_blocks or self._begins_lane(block)
                ):
                    tasks[self._launch(run, background=background, for_peer=for_peer)] = None
                    run = []
                run.append(block)
        if run:
            tasks[self._launch(run, background=background, for_peer=for_peer)] = None
        return list(tasks)

    def lacks(self, start: int, end: int) -> list[tuple[int, int]]:
        """The absent blocks of start..end, as ranges."""
        last = self.entry.version.size_bytes
        return [
            (block * BLOCK_SIZE_BYTES, min((block + 1) * BLOCK_SIZE_BYTES, last))
            for block in block_range(start, min(end, last))
            if not self._has(block)
        ]

    def start_whole(self, from_block: int) -> None:
        """Fills everything in the background, for a reader who is at from_block."""
        self._read_in_earnest = True
        self._start_whole(from_block)

    def _start_whole(self, from_block: int) -> None:
        if self._whole is None and not self.writer.complete:
            self._whole = asyncio.ensure_future(self._fill_whole(from_block))

    async def ensure_all(self) -> None:
        """Waits until everything is there. Where it is cancelled, and nobody else wants all of it, nothing more is sent
        for; the ranges that are under way still land."""
        self._loads += 1
        try:
            self._start_whole(0)
            if self._whole is not None:
                await asyncio.shield(self._whole)
        finally:
            self._loads -= 1
            if self._whole is not None and not self._loads and not self._read_in_earnest:
                self._whole.cancel()
                self._whole = None  # whoever comes next begins anew
        if not self.writer.complete:
            await self.ensure(0, self.entry.version.size_bytes)

    async def settle(self) -> None:
        """Of a file that is whole: it was compared, and is committed, on return; or what was wrong is raised."""
        if self.comparing is not None:
            await asyncio.shield(self.comparing)
            if self.failure is not None:
                raise self.failure

    async def stop(self) -> None:
        tasks = [*self._in_flight.values(), *(task for task in (self._whole, self.comparing) if task)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _has(self, block: int) -> bool:
        start = block * BLOCK_SIZE_BYTES
        return self.writer.present(start, min(start + BLOCK_SIZE_BYTES, self.entry.version.size_bytes))

    def _begins_lane(self, block: int) -> bool:
        """No range lies in two lanes: the owner of one would send for what another one has sent for."""
        return bool(self._lane_bytes) and block * BLOCK_SIZE_BYTES % self._lane_bytes == 0

    def _launch(self, blocks: list[int], *, background: bool, for_peer: bool) -> asyncio.Task[None]:
        first, last = blocks[0], blocks[-1]
        task = asyncio.ensure_future(self._fetch(first, last + 1, background=background, for_peer=for_peer))
        for block in range(first, last + 1):
            self._in_flight[block] = task
        task.add_done_callback(lambda done: self._landed(range(first, last + 1), done))
        return task

    def _landed(self, blocks: range, task: asyncio.Task[None]) -> None:
        for block in blocks:
            self._in_flight.pop(block, None)
        if not task.cancelled() and task.exception() is None and self.writer.complete:
            self._on_complete(self)

    async def _fetch(self, first: int, stop: int, *, background: bool, for_peer: bool) -> None:
        start, end = first * BLOCK_SIZE_BYTES, min(stop * BLOCK_SIZE_BYTES, self.entry.version.size_bytes)
        async with self._source.read(start, end, background=background, for_peer=for_peer) as arrived:
            write = partial(self.writer.write, start, arrived.body, arrived.extras)
            async with self._writing:
                await with_room(
                    self._store, lambda: asyncio.get_running_loop().run_in_executor(self._disk, write)
                )

    async def _fill_whole(self, from_block: int) -> None:
        """Keeps as many ranges in flight as the gate admits, and a few to go on with."""
        order = whole_order(
            self.entry.version.size_bytes,
            from_block,
            range_blocks=self._range_blocks,
            lane_bytes=self._lane_bytes,
        )
        pending: set[asyncio.Task[None]] = set()
        try:
            for blocks in order:
                pending.update(self.start(blocks, background=True))
                while len(pending) > self._in_flight_max() + 2:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
            if pending:
                await asyncio.gather(*pending)
        except HeadraceError as error:
            log.info("whole-file fill stopped id=%x error=%s", self.entry.id, error)
        finally:
            if self._whole is asyncio.current_task():
                self._whole = None
