"""Keep the plans that training processes report: one reader for each loader of each process.

A plan is advice. Whatever it says, no byte of a file depends on it, and all of it has limits: streams, samples and
silence. The objects are used on the node's loop; `PlannedFiles` has the lock for other threads.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator, Sequence

from headrace.base.clock import monotonic_s
from headrace.base.errors import UsageError
from headrace.base.model import FileId
from headrace.namespace.namespace import Namespace
from headrace.plan.extent_map import ExtentOrder, spaced_range
from headrace.plan.orders import PlannedStream
from headrace.plan.pacing import SAFETY_S, URGENT_STEPS
from headrace.plan.planned_files import PlannedFiles
from headrace.plan.step_time import StepTime
from headrace.prefetch.cached_numbers import CachedNumbers
from headrace.prefetch.early_reports import EarlyReports
from headrace.prefetch.learned_maps import LearnedMaps
from headrace.prefetch.ready_positions import ReadyPositions
from headrace.prefetch.sample_map import FILES_A_SAMPLE_MAX, FileFinder, SampleMap
from headrace.wire.extents import bounds_by_file, numbers_of_bytes
from headrace.wire.messages import (
    PlanExtents,
    PlanLearn,
    PlanNames,
    PlanOrder,
    PlanProgress,
    PlanSamples,
    PlanStart,
)

STREAMS_MAX = 256
SAMPLES_MAX = 100_000_000
"""Most streams of a node, and most samples in all data sets and orders, times the files of each: 16 bytes each."""
KEPT_NUMBERS_MAX = 10_000_000
"""Most numbers of files that maps without a stream keep: numbers are only forgotten all at once."""
SILENCE_S = 60.0
"""Seconds after which a stream without a message ends."""
SAMPLES_A_TURN = 1 << 16
NAMES_A_TURN = 4096
EXTENTS_A_TURN = 1 << 15
LOOKUPS_OF_EVICTED = 8192
"""Samples, names, and uses of evicted files that are looked up before others have their turn: some 10 ms."""
LOOKED_AT_BEGIN = 2048
"""The first samples of an epoch, times the files of each, that are looked up in the cache at once: some 10 ms."""
EPOCHS_AHEAD = 2
DRAWN_BATCHES = 16
"""Batches that a loader may have taken from its sampler before its workers read them: workers times prefetch_factor.
They are fetched, too, as the workers read one file at a time each."""
LATE_SHARE = 0.05
"""Share of an epoch's samples whose files came late, above which a reader may soon wait again."""
PAUSE_S = 5.0
"""Seconds for which nothing is fetched for a reader after a file went that it had not read yet. So a cache that is too
small for all its users wastes little."""


class PlannedReader:
    """One loader of one process. sample_map: of its data set. stream: what is known of its order, None before that.
    positions: which of the stream are cached."""

    def __init__(self, request: PlanStart, sample_map: SampleMap, now_s: float) -> None:
        self.request = request
        self.sample_map = sample_map
        self.stream: PlannedStream | None = None
        self.positions = ReadyPositions()
        self.paused_until_s = 0.0
        self.epoch = self.position = 0
        self.hits = self.misses = 0  # of this epoch
        self.all_hits = self.all_misses = 0
        self.heard_s = now_s
        self.lately_bytes = 0.0
        """The bytes that were fetched for it of late; older ones count less."""
        self._width = sample_map.width  # files a sample in the stream
        self._starts: dict[int, int] = {}  # epoch → its first position in the stream
        self._begun_at: int | None = None  # the first position of the last epoch that was reported
        self._received_epoch, self._received = -1, array("I")
        self._step = StepTime(request.batch_size)
        self._is_wrong = False

    @property
    def key(self) -> str:
        return self.request.stream

    @property
    def state(self) -> str:
        if not self.sample_map.is_reliable or self._is_wrong:
            return "unreliable"
        return "planned" if self.sample_map.is_complete or self.sample_map.all_named else "learning"

    @property
    def is_fetched(self) -> bool:
        """Return whether the fetcher may follow this reader."""
        return self.stream is not None and self.stream.is_built and self.state == "planned"

    @property
    def step_s(self) -> float | None:
        return self._step.step_s

    @property
    def epoch_samples(self) -> int:
        """Return the samples of the present epoch; 0 if its order is not known."""
        order = self._order_of(self.epoch)
        return 0 if order is None else len(order) // self._width

    @property
    def ahead_steps(self) -> int:
        """Return how many whole steps from the present position on are in the cache."""
        if self.stream is None:
            return 0
        return max(0, self.positions.ready_until() - self.stream.position) // self.stream.batch_size

    @property
    def left_steps(self) -> int:
        """Return how many steps from the present position on are known."""
        if self.stream is None:
            return 0
        return -(-max(0, self.stream.end - self.stream.position) // self.stream.batch_size)

    @property
    def ahead_samples(self) -> int:
        """Return how many samples from the present position on are in the cache."""
        if self.stream is None:
            return 0
        return max(0, self.positions.ready_until() - self.stream.position) // self._width

    @property
    def held_samples(self) -> int:
        """Return the samples of all orders that are kept, times the files of each."""
        epochs = () if self.stream is None else self.stream.epochs
        return len(self._received) + sum(epoch.end - epoch.start for epoch in epochs)

    def coming_samples(self, request: PlanOrder) -> int:
        """Return the samples that a part of an order adds, and those of the plan that it may complete."""
        count = len(request.indices) // 4
        return count + self.sample_map.width * (request.first + count)

    def receive(self, request: PlanOrder) -> array[int] | None:
        """Add a part of an epoch's order. Return the samples of the epoch when it is complete. Raise UsageError for
        a part that does not follow the one before."""
        if request.first == 0:
            self._received_epoch, self._received = request.epoch, array("I")
        if (request.epoch, request.first) != (self._received_epoch, len(self._received)):
            raise UsageError("the order of a plan", why=f"its part from {request.first} on does not follow")
        self._received.extend(numbers_of_bytes("I", request.indices))
        if not request.is_last:
            return None
        order, self._received_epoch, self._received = self._received, -1, array("I")
        return order

    def adopt(self, epoch: int, files: array[int] | ExtentOrder, width: int) -> bool:
        """Take the order of an epoch, with width files or extents for each sample. Return whether the stream is another
        object than before."""
        known = self._order_of(epoch)
        if known is not None and known == files:
            return False
        follows = width == self._width and epoch == max(self._starts, default=-1) + 1
        if known is None and self.stream is not None and follows and len(self.stream.epochs) <= EPOCHS_AHEAD:
            self._starts = {number: start for number, start in self._starts.items() if number >= self.epoch}
            self._starts[epoch] = self.stream.end
            self.stream.extend(files)
            return False
        self.stream = PlannedStream(files, self.request.batch_size * width)
        self._starts = {epoch: 0}
        self._width = width
        self.positions, self._begun_at = ReadyPositions(), None
        return True

    def advance(self, request: PlanProgress, now_s: float, cached: CachedNumbers) -> int | None:
        """Note the position. Return that of the stream, or None if the epoch's order is not known."""
        self.heard_s = now_s
        if (request.epoch, request.position) < (self.epoch, self.position):
            return None
        start = self._starts.get(request.epoch)
        if start is None or self.stream is None:
            self.epoch, self.position = request.epoch, request.position
            return None
        if request.epoch != self.epoch:
            self.hits = self.misses = self.position = 0
        taken = min(start + request.position * self._width, self._end_after(start))
        self._count(start, taken, cached)
        self.epoch, self.position = request.epoch, request.position
        self._step.note(now_s, request.position)
        self.positions.skip_to(taken - self._drawn_ahead)
        self.positions.forget_before(taken)
        return taken

    @property
    def _drawn_ahead(self) -> int:
        return DRAWN_BATCHES * self.request.batch_size * self._width

    @property
    def may_fetch(self) -> bool:
        """Return whether the file at the cursor may be fetched now. Of an epoch that has not begun, only what its first
        seconds need is fetched: no process says that the present one is its last. A reader whose files come late has no
        such limit, as the time between two epochs is of use to it."""
        cursor = self.positions.cursor
        if self.stream is None or cursor < self._end_after(self._starts.get(self.epoch, 0)):
            return True
        samples = max(self.epoch_samples, self.hits + self.misses)  # an order that is read is not kept
        is_late = self.misses > LATE_SHARE * samples
        first_s = max(SAFETY_S, URGENT_STEPS * self.stream.step_s)
        return is_late or self.stream.seconds_until(cursor) <= first_s

    def _end_after(self, start: int) -> int:
        """Return the position after the epoch that begins at a position."""
        assert self.stream is not None
        return min(
            (later for later in self._starts.values() if later > start), default=max(start, self.stream.end)
        )

    def next_extent(self, is_evicted: Callable[[int], bool], count_max: int) -> int | None:
        """Return the first position from the present one on, and before the cursor, whose number is evicted. It looks
        at count_max positions at most."""
        if self.stream is None:
            return None
        position = self.stream.position
        ahead = self.stream.upcoming(position, min(count_max, self.positions.cursor - position))
        return next((position + place for place, number in enumerate(ahead) if is_evicted(number)), None)

    def look_again(self, position: int | None) -> None:
        """Go back to a position that was evicted before it was read, but not at once."""
        if position is not None and self.positions.go_back(position):
            self.pause()

    def pause(self) -> None:
        """Let nothing be fetched for a while."""
        self.paused_until_s = monotonic_s() + PAUSE_S

    def _count(self, start: int, taken: int, cached: CachedNumbers) -> None:
        """Count the samples that were taken since the last report, of the epoch that begins at a position. Of samples
        that were read before their order was known, nobody knows whether they were cached."""
        assert self.stream is not None
        before = max(start, self.stream.position)
        if self._begun_at != start:
            self._begun_at = start
            unread = max(start, taken - self._drawn_ahead)
            if self.positions.cursor < unread:
                before = max(before, unread)
            self._look(max(before, self.positions.cursor), cached)
        samples = max(0, taken - before) // self._width
        missed = min(samples, self.positions.missed_samples(start, before, taken, self._width))
        self.hits, self.misses = self.hits + samples - missed, self.misses + missed
        self.all_hits, self.all_misses = self.all_hits + samples - missed, self.all_misses + missed

    def _look(self, first: int, cached: CachedNumbers) -> None:
        """Look up from a position on what is cached as an epoch begins. Its workers take many samples before the
        fetcher passes them."""
        if self.stream is not None and self.state == "planned":
            self.positions.look(first, map(cached.has, self.stream.upcoming(first, LOOKED_AT_BEGIN)))

    def _order_of(self, epoch: int) -> array[int] | ExtentOrder | None:
        start = self._starts.get(epoch)
        if start is None or self.stream is None:
            return None
        return next((known.order for known in self.stream.epochs if known.start == start), None)


class PlanTable:
    """The plans of a node. Each method answers one message of a training process. samples_max: of all data sets and
    orders."""

    def __init__(
        self,
        planned: PlannedFiles,
        namespace: Namespace,
        cached: CachedNumbers,
        *,
        samples_max: int = SAMPLES_MAX,
    ) -> None:
        self.planned = planned
        self.cached = cached
        self._samples_max = samples_max
        self.changed = asyncio.Event()
        """Set when the fetcher may find something to do."""
        self.ended_hits = self.ended_misses = 0
        """Samples of streams that have ended, by whether their files were cached in time."""
        self._namespace = namespace
        self._finder = FileFinder(namespace)
        self._readers: dict[str, PlannedReader] = {}
        self._named: dict[bytes, SampleMap] = {}
        self._learned = LearnedMaps(self._reset_if_empty)
        self.early = EarlyReports()
        self._adopted_samples = 0

    @property
    def readers(self) -> list[PlannedReader]:
        return list(self._readers.values())

    def is_planned(self, id: FileId) -> bool:
        """Return whether a plan knows when a file is read."""
        if not self._readers:
            return False
        with self.planned.lock:
            number = self.planned.numbers.number_of(id)
            return self.planned.numbers.is_divided(id) or (bool(number) and self.planned.orders.knows(number))

    def start(self, request: PlanStart) -> bool:
        """Begin a stream. Return whether the names of its data set are known. Raise UsageError above a limit."""
        self.end(request.stream)
        named = self._named.get(request.digest) if request.digest else None
        if named is None and not request.digest:
            named = self._learned.take(request.key, request.samples)
        samples = self._count_samples()
        if named is None and samples + 2 * request.samples > self._samples_max:
            self._learned.forget_kept()
            samples = self._count_samples()
        if len(self._readers) >= STREAMS_MAX or samples + 2 * request.samples > self._samples_max:
            raise UsageError(
                f"a plan of {request.samples} samples",
                why=f"the plans of this node have {len(self._readers)} streams and {samples} samples already",
            )
        if named is not None and named.samples != request.samples:
            raise UsageError("a plan", why=f"its data set has {named.samples} samples, not {request.samples}")
        sample_map = named or self._new_map(request)
        self._learned.begin(request.key, sample_map)
        self._readers[request.stream] = PlannedReader(request, sample_map, monotonic_s())
        return bool(request.digest) and sample_map.all_named

    async def name(self, request: PlanNames) -> None:
        """Take the names of a data set's files. Raise UsageError for a data set that no stream has announced."""
        sample_map = self._named_map(request.digest)
        names = request.names.split(b"\0")
        if sample_map.is_named(request.first, len(names)):
            return
        ids = await self._finder.ids_of(names)
        for start in range(0, len(ids), NAMES_A_TURN):
            sample_map.name(request.first + start, ids[start : start + NAMES_A_TURN])
            await asyncio.sleep(0)

    async def divide(self, request: PlanExtents) -> None:
        """Take the extents of a data set's files. Raise UsageError for a data set that no stream has announced."""
        sample_map = self._named_map(request.digest)
        counts = numbers_of_bytes("I", request.counts)
        if sample_map.extents.has(request.first, sum(counts)):
            return
        self._check_samples(sum(counts))
        ids = await self._finder.ids_of(request.names.split(b"\0"))
        first = request.first
        for count, id, offsets in zip(
            counts, ids, bounds_by_file(request.counts, request.bounds), strict=True
        ):
            sample_map.extents.divide(first, id, offsets)
            first += count

    async def place(self, request: PlanSamples) -> None:
        """Take the extents of consecutive samples. Raise UsageError as `divide`."""
        sample_map = self._named_map(request.digest)
        extents, width = numbers_of_bytes("I", request.extents), request.width
        counts = numbers_of_bytes("I", request.counts)
        if sample_map.is_named(request.first, sum(counts) if counts else len(extents) // width):
            return
        self._check_samples(max(0, width - sample_map.width) * sample_map.samples)
        first, rows = request.first, EXTENTS_A_TURN // width
        for row in range(0, len(extents) // width, rows):
            part, part_counts = extents[row * width : (row + rows) * width], counts[row : row + rows]
            sample_map.extents.place(first, width, part, part_counts if counts else None)
            first += sum(part_counts) if counts else len(part) // width
            await asyncio.sleep(0)

    def _named_map(self, digest: bytes) -> SampleMap:
        """Return the map of a data set whose files are being named."""
        sample_map = self._named.get(digest)
        if sample_map is None:
            raise UsageError("names of a plan", why="no stream has announced their data set")
        for reader in self.readers:
            if reader.sample_map is sample_map:
                reader.heard_s = monotonic_s()
        return sample_map

    def _check_samples(self, count: int) -> None:
        """Raise UsageError if so many more samples, times the files of each, are above the limit."""
        if self._count_samples() + count > self._samples_max:
            self._learned.forget_kept()
        if self._count_samples() + count > self._samples_max:
            raise UsageError("a plan", why=f"all plans have {self._samples_max} samples at most")

    async def order(self, request: PlanOrder) -> None:
        """Take a part of an order. Raise UsageError for an unknown stream, or a part that does not fit."""
        reader = self._reader(request.stream)
        reader.heard_s = monotonic_s()
        self._check_samples(reader.coming_samples(request))
        samples = reader.receive(request)
        if samples is not None:
            await self._adopt(reader, request.epoch, samples)

    async def _adopt(self, reader: PlannedReader, epoch: int, samples: array[int]) -> None:
        """Make the order of samples one of files. A stream that ends meanwhile is left alone."""
        width = reader.sample_map.width
        in_order = _extents_in_order if len(reader.sample_map.extents) else _files_in_order
        self._adopted_samples += len(samples) * (width + 1)
        try:
            files = await in_order(reader.sample_map, samples, width)
        finally:
            self._adopted_samples -= len(samples) * (width + 1)
        if self._readers.get(reader.key) is not reader:
            return
        with self.planned.lock:
            is_new = reader.adopt(epoch, files, width)
            if is_new and reader.stream is not None:
                self.planned.orders.add(reader.key, reader.stream)
        self.changed.set()

    def progress(self, request: PlanProgress) -> bool:
        """Take the position of a stream. Return whether a file of its data set is known to be in a mount. Raise
        UsageError for an unknown stream: its process then sends all again."""
        reader = self._reader(request.stream)
        with self.planned.lock:
            taken = reader.advance(request, monotonic_s(), self.cached)
            if taken is not None:
                self.planned.orders.advance(reader.key, taken)
                if reader.stream is not None and reader.step_s is not None:
                    reader.stream.set_step_s(reader.step_s)
        self.changed.set()
        return reader.sample_map.has_files

    async def learn_early(self, request: PlanStart) -> None:
        """Take what workers have opened before their stream began. Files that the job names itself are not learned so:
        their names, or their extents, come first."""
        for report in self.early.take(request.key):
            if not request.digest:
                await self.learn(report)

    async def learn(self, request: PlanLearn) -> None:
        """Take what a worker opened. If no stream has its data set yet, keep it for a while."""
        sample_map = self._learned.get(request.key)
        if sample_map is None:
            if request.key not in self._learned:
                self.early.add(request)
            return
        ids = await self._finder.ids_of(request.paths.split(b"\0"))
        spare = max(0, self._samples_max - self._count_samples()) // max(1, sample_map.samples)
        width_max = min(FILES_A_SAMPLE_MAX, sample_map.width + spare)
        for count, (index, id) in enumerate(zip(request.indices, ids, strict=True)):
            if id is not None:
                sample_map.learn(index, id, width_max=width_max)
            if count % NAMES_A_TURN == NAMES_A_TURN - 1:
                await asyncio.sleep(0)

    def end(self, stream: str) -> None:
        """Forget a stream, and its data set with the last one of it, unless its workers had to tell the files."""
        ended = self._readers.pop(stream, None)
        if ended is None:
            return
        self.ended_hits, self.ended_misses = (
            self.ended_hits + ended.all_hits,
            self.ended_misses + ended.all_misses,
        )
        with self.planned.lock:
            self.planned.orders.remove(stream)
        used = {id(reader.sample_map) for reader in self.readers}
        keys = {reader.request.key for reader in self.readers}
        if ended.request.key not in keys:
            self.early.note_end(ended.request.key)
            self._learned.end(ended.request.key, is_learned=not ended.request.digest)
        self._named = {key: kept for key, kept in self._named.items() if id(kept) in used}
        self._reset_if_empty()
        self.changed.set()

    def _reset_if_empty(self) -> None:
        """Forget all files with the last plan. A map that is kept has their numbers."""
        if not self._readers:
            self._finder.forget()
            if len(self.planned.numbers) > KEPT_NUMBERS_MAX:
                self._learned.forget_kept()
            if not self._learned:
                self.planned.reset()

    def note_evicted(self, ids: Sequence[FileId]) -> None:
        """Let the fetcher look again at files that were evicted before they were read. Of very many it looks at some:
        the others are read without the plan."""
        readers = [reader for reader in self.readers if reader.is_fetched]
        if not readers:
            return
        lookups = LOOKUPS_OF_EVICTED // len(readers)
        with self.planned.lock:
            numbers = self.planned.numbers
            for id in ids[:lookups]:
                number = numbers.number_of(id)
                for reader in readers if number else ():
                    reader.look_again(None if reader.stream is None else reader.stream.next_position(number))
            divided = {id for id in ids if numbers.is_divided(id)}
            for reader in readers if divided else ():
                reader.look_again(
                    reader.next_extent(lambda number: numbers.id_of(number) in divided, lookups // 2)
                )

    def end_silent(self) -> None:
        """End the streams whose processes have said nothing for a minute."""
        for reader in self.readers:
            if monotonic_s() - reader.heard_s > SILENCE_S:
                self.end(reader.key)

    def upcoming(self) -> Iterator[tuple[float, PlannedReader]]:
        """Yield (deadline_s, reader) of the readers whose cursor is before the end of what is known."""
        for reader in self._readers.values():
            if monotonic_s() < reader.paused_until_s:
                continue
            if (
                reader.is_fetched
                and reader.stream is not None
                and reader.positions.cursor < reader.stream.end
            ):
                yield reader.stream.seconds_until(reader.positions.cursor), reader

    def _new_map(self, request: PlanStart) -> SampleMap:
        sample_map = SampleMap(request.samples, self.planned.numbers)
        if request.digest:
            self._named[request.digest] = sample_map
        return sample_map

    def _count_samples(self) -> int:
        """Return the samples of all orders and data sets, times the files of each, and the extents."""
        maps = {id(reader.sample_map): reader.sample_map for reader in self.readers}
        maps |= {id(sample_map): sample_map for sample_map in self._learned.kept()}
        samples = sum(kept.samples * kept.width + len(kept.extents) for kept in maps.values())
        return samples + sum(reader.held_samples for reader in self.readers) + self._adopted_samples

    def _reader(self, stream: str) -> PlannedReader:
        reader = self._readers.get(stream)
        if reader is None:
            raise UsageError("a message of a plan", why="this node does not know its stream")
        return reader


async def _files_in_order(sample_map: SampleMap, samples: array[int], width: int) -> array[int]:
    """Return the files of samples, `width` for each. Let others have their turn on the loop."""
    files = array("I")
    for start in range(0, len(samples), SAMPLES_A_TURN // width):
        files += sample_map.files_of(samples[start : start + SAMPLES_A_TURN // width], width)
        await asyncio.sleep(0)
    return files


async def _extents_in_order(sample_map: SampleMap, samples: array[int], width: int) -> ExtentOrder:
    """Return the order of the extents of samples, as `_files_in_order`. Evenly spaced samples take no memory."""
    spaced = spaced_range(samples)
    for start in range(0, len(samples), SAMPLES_A_TURN):
        part = samples[start : start + SAMPLES_A_TURN]
        sample_map.check_order(part)
        if spaced is not None and part != array("I", spaced[start : start + SAMPLES_A_TURN]):
            spaced = None
        await asyncio.sleep(0)
    return ExtentOrder(samples if spaced is None else spaced, sample_map.extents, width)
