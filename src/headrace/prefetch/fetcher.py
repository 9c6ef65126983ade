"""Fetch what plans need next into the cache, soonest deadline first, before its readers ask for it.

Reads with a waiting reader precede these, at the origin and at peers (`dataplane/concurrency.py`). Nothing is fetched
for which something would go that is needed sooner. As long as a reader is well ahead, only the rate is used that its
deadlines ask for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.read import ReadPath
from headrace.namespace.tree import NameTree
from headrace.plan.file_numbers import NO_FILE
from headrace.prefetch.plan_table import PlannedReader, PlanTable
from headrace.store.store import Store

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 64
IN_FLIGHT_BYTES_MAX = 256 << 20
TICK_S = 0.25
"""Seconds after which the fetcher looks again though nothing was reported."""
FILES_A_TURN = 256
"""Files that are looked up before others have their turn on the loop: some 2 ms."""
BUILD_SAMPLES = 4096
AHEAD_S_MIN = 20.0
"""Seconds that a reader must be ahead before the fetcher slows down to the rate that is needed."""
RATE_MARGIN = 1.25
"""Multiple of the needed rate: a reader that is ahead stays so, also if the origin is slow for a while."""
FULL_MARGIN = 0.04
"""Share of the cache's capacity by which fetches stay below the line where eviction ends. Above it a fetch makes
another file go, and eviction then takes only files that were compared with those that came."""
RATE_WINDOW_S = 10.0
SAMPLED_FILES = 16
"""Files after a reader's position whose mean size tells the bytes of a step."""


class PlannedFetcher:
    """Follows the plans of a node with one task. watermark_low: share of the cache where eviction ends. Call
    `start` and `stop` on the loop."""

    def __init__(
        self, plans: PlanTable, reads: ReadPath, store: Store, tree: NameTree, *, watermark_low: float
    ) -> None:
        self._plans = plans
        self._planned = plans.planned
        self._reads = reads
        self._store = store
        self._tree = tree
        self._full_share = watermark_low - FULL_MARGIN
        self._loads = OwnedTasks()
        self._task = OwnedTasks()
        self._in_flight: dict[FileId, int] = {}
        self._waiting: dict[FileId, list[tuple[PlannedReader, int]]] = {}
        self._budget_bytes = 0.0
        self._budget_s = monotonic_s()
        self._fetched: deque[tuple[float, int]] = deque()
        self.fetched_files = self.fetched_bytes = self.failed_files = 0

    def start(self) -> None:
        self._task.start(self._run())

    async def stop(self) -> None:
        await self._task.close()
        await self._loads.close()

    @property
    def in_flight(self) -> int:
        """Return how many files are being fetched."""
        return len(self._in_flight)

    def fetched_bytes_s(self) -> float:
        """Return the bytes a second that were fetched of late."""
        while self._fetched and monotonic_s() - self._fetched[0][0] > RATE_WINDOW_S:
            self._fetched.popleft()
        return sum(size_bytes for _, size_bytes in self._fetched) / RATE_WINDOW_S

    def statistics(self) -> dict[str, float]:
        """Return what all plans need and have now, and what was fetched for them since the start."""
        readers = self._plans.readers
        followed = [reader for reader in readers if reader.is_fetched]
        return {
            "streams": len(readers),
            "needed_bytes_s": round(sum(map(self.needed_bytes_s, followed))),
            "fetched_bytes_s": round(self.fetched_bytes_s()),
            "ahead_s_min": round(min(map(ahead_s, followed), default=0.0), 1),
            "files_fetched": self.fetched_files,
            "bytes_fetched": self.fetched_bytes,
            "files_failed": self.failed_files,
            "samples_hit": self._plans.ended_hits + sum(reader.all_hits for reader in readers),
            "samples_missed": self._plans.ended_misses + sum(reader.all_misses for reader in readers),
        }

    def needed_bytes_s(self, reader: PlannedReader) -> float:
        """Return the rate at which a reader reads, by its step time and the sizes of its next files; 0: not known."""
        if reader.stream is None or reader.step_s is None:
            return 0.0
        numbers = [
            number for number in reader.stream.upcoming(reader.stream.position, SAMPLED_FILES) if number
        ]
        entries = [self._tree.index.entry(self._planned.numbers.id_of(number)) for number in numbers]
        sizes = [entry.version.size_bytes for entry in entries if entry is not None]
        return sum(sizes) / len(sizes) * reader.stream.batch_size / reader.step_s if sizes else 0.0

    async def _run(self) -> None:
        while True:
            if self._plans.readers:
                self._plans.end_silent()
                try:
                    await self._follow()
                except HeadraceError as error:
                    log.warning("planned files can't be fetched error=%s", error)
                except Exception:
                    log.exception("planned files can't be fetched")  # the next turn may work
                self._plans.changed.clear()
                await self._wait(TICK_S)
            else:
                await self._plans.changed.wait()
                self._plans.changed.clear()

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._plans.changed.wait()
        except TimeoutError:
            pass

    async def _follow(self) -> None:
        """Begin all fetches that may begin now."""
        while not self._build_step():  # noqa: ASYNC110 - steps; others have their turn between
            await asyncio.sleep(0)
        while not self._planned.catch_up():  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._earn()
        refused: set[str] = set()
        count = 0
        while self._has_slot():
            nearest = min(
                (pair for pair in self._plans.upcoming() if pair[1].key not in refused),
                key=lambda pair: pair[0],
                default=None,
            )
            if nearest is None:
                return
            if not self._begin_next(nearest[1]):
                refused.add(nearest[1].key)
            count += 1
            if count % FILES_A_TURN == 0:
                await asyncio.sleep(0)

    def _build_step(self) -> bool:
        with self._planned.lock:
            return self._planned.orders.build(BUILD_SAMPLES)

    def _has_slot(self) -> bool:
        return (
            len(self._in_flight) < IN_FLIGHT_MAX
            and sum(self._in_flight.values()) < IN_FLIGHT_BYTES_MAX
            and self._budget_bytes > 0
        )

    def _begin_next(self, reader: PlannedReader) -> bool:
        """Begin the fetch of the file at a reader's cursor, if it is not cached. Return False if it must wait."""
        assert reader.stream is not None
        position = reader.cursor
        upcoming = reader.stream.upcoming(position, 1)
        number = upcoming[0] if len(upcoming) else NO_FILE
        if number == NO_FILE:
            reader.cursor += 1
            return True
        id = self._planned.numbers.id_of(number)
        if id in self._in_flight:
            self._waiting[id].append((reader, position))
            reader.pending.add(position)
            reader.cursor += 1
            return True
        entry = None if self._is_cached(id) else self._tree.index.entry(id)
        if entry is not None:
            size_bytes = entry.version.size_bytes
            surplus_bytes = self._surplus_bytes(size_bytes)
            if surplus_bytes > 0 and not self._planned.may_admit(number, surplus_bytes):
                return False
            self._in_flight[id] = size_bytes
            self._waiting[id] = [(reader, position)]
            self._budget_bytes -= size_bytes
            reader.pending.add(position)
            self._loads.start(self._load(id))
        reader.cursor += 1
        return True

    async def _load(self, id: FileId) -> None:
        size_bytes = 0
        try:
            entry = self._tree.index.entry(id)
            if entry is not None:
                size_bytes = await self._reads.load(entry)
                self.fetched_files += 1
                self.fetched_bytes += size_bytes
                self._fetched.append((monotonic_s(), size_bytes))
        except HeadraceError as error:
            self.failed_files += 1
            log.debug("a planned file can't be fetched id=%x error=%s", id, error)
        finally:
            del self._in_flight[id]
            for reader, position in self._waiting.pop(id):
                reader.pending.discard(position)
            self._plans.changed.set()

    def _is_cached(self, id: FileId) -> bool:
        cached = self._store.index.cached(id)
        return cached is not None and cached.complete

    def _surplus_bytes(self, size_bytes: int) -> int:
        """Return the bytes that are evicted sooner or later for a file of this size, and for those in flight."""
        capacity_bytes = sum(volume.capacity_bytes for volume in self._store.disks)
        used_bytes = sum(volume.used_bytes for volume in self._store.disks)
        used_bytes += sum(self._in_flight.values()) + size_bytes
        return used_bytes - int(self._full_share * capacity_bytes)

    def _earn(self) -> None:
        """Add to the budget what may be fetched since the last turn: without limit while a reader is not far ahead."""
        now_s = monotonic_s()
        passed_s, self._budget_s = now_s - self._budget_s, now_s
        rates = [self.needed_bytes_s(reader) for reader in self._plans.readers if reader.is_fetched]
        is_behind = any(ahead_s(reader) < AHEAD_S_MIN for reader in self._plans.readers if reader.is_fetched)
        if is_behind or not all(rates):
            self._budget_bytes = float(IN_FLIGHT_BYTES_MAX)
        else:
            earned = sum(rates) * RATE_MARGIN * min(passed_s, 1.0)
            self._budget_bytes = min(self._budget_bytes + earned, sum(rates) + BLOCK_SIZE_BYTES)


def ahead_s(reader: PlannedReader) -> float:
    """Return for how many seconds of training all files are in the cache."""
    return 0.0 if reader.stream is None else reader.stream.seconds_until(reader.ready_until())
