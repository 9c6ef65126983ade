"""Fetch what plans need next into the cache, soonest deadline first, before its readers ask for it: whole files, or
those extents of large ones that come next.

Reads with a waiting reader precede these, at the origin and at peers (`dataplane/concurrency.py`). Nothing is fetched
for which something would go that is needed sooner. While all readers are ahead, the rate is the smoothest one that
meets their deadlines (`plan/pacing.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import NamedTuple

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, PathNotFoundError, VersionChangedError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.read import ReadPath
from headrace.namespace.tree import NameTree
from headrace.plan.file_numbers import NO_FILE
from headrace.plan.pacing import ReaderDemand, fetch_rate
from headrace.prefetch.plan_table import PAUSE_S, PlannedReader, PlanTable
from headrace.prefetch.planned_rises import PlannedRises
from headrace.prefetch.sample_map import SampleMap
from headrace.store.store import Store

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 64
IN_FLIGHT_BYTES_MAX = 256 << 20
TICK_S = 0.25
"""Seconds after which the fetcher looks again though nothing was reported."""
FILES_A_TURN = 256
"""Files that are looked up before others have their turn on the loop: some 2 ms."""
PASSED_AT_ONCE = 64
WALK_PAUSE_S = 0.02
"""Pause after each turn when all readers are far ahead. A data set that is all cached is passed in a tenth of the time
of the loop."""
FILE_BYTES_MAX = 1 << 30
"""Larger files are not fetched ahead as a whole: a reader takes a few samples of each, or reads them from front to
back. Nor are larger extents."""
BUILD_SAMPLES = 4096
FULL_MARGIN = 0.04
"""Share of the cache's capacity by which fetches stay below the line where eviction ends. Above it a fetch makes
another file go, and eviction then takes only files that were compared with those that came."""
RATE_WINDOW_S = 10.0
SAME_DEADLINE_S = 1.0
"""Deadlines within the same second are equal: of their readers the one for which least was fetched of late comes first.
So a reader that claims any step time has a share, and not all."""
SHARE_HALF_LIFE_S = 5.0
SAMPLED_FILES = 16
"""Files after a reader's position whose mean size tells the bytes of a step."""


_PartKey = tuple[FileId, int, int]


class _FilePart(NamedTuple):
    """A file that is fetched whole, or an extent of one."""

    entry: Entry
    start: int
    end: int
    is_whole: bool = False

    @property
    def size_bytes(self) -> int:
        return self.end - self.start

    @property
    def key(self) -> _PartKey:
        """Return what names the part. Its number in plans may become that of another file."""
        return self.entry.id, self.start, self.end


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
        self._rises = PlannedRises(plans, store)
        self._in_flight: dict[_PartKey, int] = {}  # bytes
        self._waiting: dict[_PartKey, dict[str, tuple[PlannedReader, int]]] = {}
        self._is_behind = self._is_caught_up = False
        self._budget_bytes = 0.0
        self._budget_s = monotonic_s()
        self._fetched: deque[tuple[float, int]] = deque()
        self._lately_bytes = 0
        self.peak_bytes_s = 0.0
        """The highest rate over RATE_WINDOW_S since the start: the bandwidth is not below it."""
        self.fetched_files = self.fetched_bytes = self.failed_files = 0

    def start(self) -> None:
        self._task.start(self._run())

    async def stop(self) -> None:
        await self._task.close()
        await self._loads.close()

    @property
    def in_flight(self) -> int:
        """Return how many files and extents are being fetched."""
        return len(self._in_flight)

    @property
    def is_behind(self) -> bool:
        """Return whether a planned reader may wait soon."""
        return self._is_behind and bool(self._plans.readers)

    def fetched_bytes_s(self) -> float:
        """Return the bytes a second that were fetched of late."""
        self._forget_fetched()
        return self._lately_bytes / RATE_WINDOW_S

    def _forget_fetched(self) -> None:
        while self._fetched and monotonic_s() - self._fetched[0][0] > RATE_WINDOW_S:
            self._lately_bytes -= self._fetched.popleft()[1]

    @property
    def usable_bytes(self) -> int:
        """Return the bytes of the cache that fetches may fill."""
        return int(self._full_share * sum(volume.capacity_bytes for volume in self._store.disks))

    def data_bytes(self) -> float:
        """Return the bytes of all planned data sets, as far as the sizes of next files tell; 0: not known."""
        sizes: dict[SampleMap, float] = {}
        for reader in self._plans.readers:
            step_bytes = self.needed_bytes_s(reader) * (reader.step_s or 0.0)
            sample_map = reader.sample_map
            sizes[sample_map] = max(
                sizes.get(sample_map, 0.0), step_bytes / reader.request.batch_size * sample_map.samples
            )
        return sum(sizes.values())

    def statistics(self) -> dict[str, float]:
        """Return what all plans need and have now, and what was fetched for them since the start."""
        readers = self._plans.readers
        followed = [reader for reader in readers if reader.is_fetched]
        return {
            "streams": len(readers),
            "streams_learning": sum(reader.state == "learning" for reader in readers),
            "streams_unreliable": sum(reader.state == "unreliable" for reader in readers),
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
        if len(reader.sample_map.extents):
            return reader.sample_map.sample_bytes * reader.request.batch_size / reader.step_s
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
                    self._rises.look()
                except HeadraceError as error:
                    log.warning("planned files can't be fetched error=%s", error)
                    await asyncio.sleep(PAUSE_S)
                except Exception:
                    log.exception("planned files can't be fetched")  # the next turn may work
                    await asyncio.sleep(PAUSE_S)
                self._plans.changed.clear()
                await (self._wait(TICK_S) if self._is_caught_up else asyncio.sleep(0))
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
        # a million cached files take seconds: fetches go on meanwhile
        self._is_caught_up = self._planned.catch_up()
        self._earn()
        refused: set[str] = set()
        count = 0
        while self._has_slot():
            readers = [pair for pair in self._plans.upcoming() if pair[1].key not in refused]
            if not readers:
                return
            _, reader = min(readers, key=_urgency)
            before = reader.positions.cursor
            if not self._begin_next(reader):
                refused.add(reader.key)
            count += 1 + reader.positions.cursor - before + len(readers) // 4
            if count >= FILES_A_TURN:
                count = 0
                await asyncio.sleep(0 if self._is_behind else WALK_PAUSE_S)
                self._earn()

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
        """Begin the fetch of the first file from a reader's cursor on that is not cached, and would not be evicted at
        once. Return False if it must wait."""
        assert reader.stream is not None
        upcoming = reader.stream.upcoming(reader.positions.cursor, PASSED_AT_ONCE)
        for number in upcoming or (NO_FILE,):
            part = None if self._plans.cached.has(number) else self._part_of(number)
            if part is not None and self._can_keep(part):
                return reader.may_fetch and self._begin(reader, number, part)
            reader.positions.pass_one()
        return True

    def _part_of(self, number: int) -> _FilePart | None:
        """Return what a number of a plan stands for. None for a file that is gone, and for what is too long."""
        entry = self._tree.index.entry(self._planned.numbers.id_of(number))
        if entry is None:
            return None
        size_bytes = entry.version.size_bytes
        extent = self._planned.numbers.extent_of(number)
        if extent is None:
            return _FilePart(entry, 0, size_bytes, is_whole=True) if size_bytes <= FILE_BYTES_MAX else None
        start, end = extent[0], min(extent[1], size_bytes)
        return _FilePart(entry, start, end) if 0 < end - start <= FILE_BYTES_MAX else None

    def _can_keep(self, part: _FilePart) -> bool:
        """Return whether the cache may keep a part: this node owns the file, or it fits in the share of borrowed
        files."""
        if self._store.space.borrowed.can_keep(part.size_bytes):
            return True
        return self._reads.owns(self._tree.index.path_of(part.entry.id) or b"")

    def _begin(self, reader: PlannedReader, number: int, part: _FilePart) -> bool:
        """Begin a fetch, or wait for one that another position has begun. Return False if nothing may be evicted for
        it, or if the budget of its origin lets it wait."""
        key = part.key
        if key not in self._in_flight:
            if self._reads.load_budget.has_debt(part.entry):
                return False
            surplus_bytes = self._surplus_bytes(part.size_bytes)
            if surplus_bytes > 0 and not self._may_admit(reader, number, surplus_bytes):
                return False
            self._in_flight[key] = part.size_bytes
            self._waiting[key] = {}
            self._budget_bytes -= part.size_bytes
            reader.lately_bytes += part.size_bytes
            self._loads.start(self._load(part, f"train {reader.request.job}"))
        position = reader.positions.cursor
        _, first = self._waiting[key].get(reader.key, (reader, position))
        self._waiting[key][reader.key] = (reader, min(first, position))
        reader.positions.begin(first)
        return True

    async def _load(self, part: _FilePart, job: str) -> None:
        is_loaded = False
        try:
            await self._reads.load(part.entry, None if part.is_whole else (part.start, part.end), job=job)
            self.fetched_files += 1
            self.fetched_bytes += part.size_bytes
            self._fetched.append((monotonic_s(), part.size_bytes))
            self._lately_bytes += part.size_bytes
            self.peak_bytes_s = max(self.peak_bytes_s, self.fetched_bytes_s())
            is_loaded = True
        except HeadraceError as error:
            self.failed_files += 1
            is_loaded = isinstance(error, PathNotFoundError | VersionChangedError)  # of this file alone
            log.debug("a planned file can't be fetched id=%x error=%s", part.entry.id, error)
        finally:
            del self._in_flight[part.key]
            for reader, position in self._waiting.pop(part.key).values():
                if is_loaded:
                    reader.positions.finish(position)
                else:
                    reader.pause()  # an origin that is away refuses all files as fast as they are asked for
            self._plans.changed.set()

    def _may_admit(self, reader: PlannedReader, number: int, surplus_bytes: int) -> bool:
        assert reader.stream is not None
        deadline_s = reader.stream.seconds_until(reader.positions.cursor)
        return self._planned.may_admit(
            number, surplus_bytes, deadline_s=deadline_s, is_caught_up=self._is_caught_up
        )

    def _surplus_bytes(self, size_bytes: int) -> int:
        """Return the bytes that are evicted sooner or later for a file of this size, and for those in flight. In a
        cluster, most files that are fetched are borrowed, and these have a share of the cache."""
        coming_bytes = sum(self._in_flight.values()) + size_bytes
        used_bytes = sum(volume.used_bytes for volume in self._store.disks)
        surplus_bytes = used_bytes + coming_bytes - self.usable_bytes
        room_bytes = self._store.space.borrowed.room_bytes
        return surplus_bytes if room_bytes is None else max(surplus_bytes, coming_bytes - room_bytes)

    def _earn(self) -> None:
        """Add to the budget what may be fetched since the last turn: without limit while a reader may wait soon."""
        now_s = monotonic_s()
        passed_s, self._budget_s = min(1.0, now_s - self._budget_s), now_s
        rate = self._rate()
        self._is_behind = rate is None
        for reader in self._plans.readers:
            reader.lately_bytes *= 0.5 ** (passed_s / SHARE_HALF_LIFE_S)
        if rate is None:
            self._budget_bytes = float(IN_FLIGHT_BYTES_MAX)
        else:
            self._budget_bytes = min(self._budget_bytes + rate * passed_s, rate + BLOCK_SIZE_BYTES)

    def _rate(self) -> float | None:
        """Return the bytes a second to fetch now; None: as fast as possible."""
        demands = []
        for reader in self._plans.readers:
            if not reader.is_fetched or reader.left_steps == 0:
                continue
            needed_bytes_s = self.needed_bytes_s(reader)
            if reader.step_s is None or needed_bytes_s == 0:
                return None
            step_bytes = needed_bytes_s * reader.step_s
            demands.append(ReaderDemand(reader.step_s, step_bytes, reader.ahead_steps, reader.left_steps))
        return fetch_rate(demands, max(0, -self._surplus_bytes(0)))


def _urgency(upcoming: tuple[float, PlannedReader]) -> tuple[float, float, float]:
    """Return what orders the readers whose next files are to be fetched; the least comes first."""
    deadline_s, reader = upcoming
    return deadline_s // SAME_DEADLINE_S, reader.lately_bytes, deadline_s


def ahead_s(reader: PlannedReader) -> float:
    """Return for how many seconds of training all files are in the cache."""
    return 0.0 if reader.stream is None else reader.stream.seconds_until(reader.positions.ready_until())
