"""Keep the plans that training processes report: one reader for each loader of each process.

A plan is advice. Whatever it says, no byte of a file depends on it, and all of it has limits: streams, samples and
silence. The objects are used on the node's loop; `PlannedFiles` has the lock for other threads.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from collections.abc import Iterator, Sequence

from headrace.base.clock import monotonic_s
from headrace.base.errors import UsageError
from headrace.base.model import FileId
from headrace.namespace.namespace import Namespace
from headrace.plan.orders import PlannedStream
from headrace.plan.planned_files import PlannedFiles
from headrace.plan.step_time import StepTime
from headrace.prefetch.sample_map import FileFinder, SampleMap
from headrace.wire.messages import PlanLearn, PlanNames, PlanOrder, PlanProgress, PlanStart

STREAMS_MAX = 1024
SAMPLES_MAX = 100_000_000
"""Most streams of a node, and most samples in all data sets and orders of them: 16 bytes each."""
SILENCE_S = 60.0
"""Seconds after which a stream without a message ends."""
SAMPLES_A_TURN = 1 << 16
EPOCHS_AHEAD = 2
DRAWN_BATCHES = 16
"""Batches that a loader may have taken from its sampler before its workers read them: workers times prefetch_factor.
They are fetched, too, as the workers read one file at a time each."""
PAUSE_S = 5.0
"""Seconds for which nothing is fetched for a reader after a file went that it had not read yet. So a cache that is too
small for all its users wastes little."""


class PlannedReader:
    """One loader of one process. sample_map: of its data set. stream: what is known of its order, None before that.

    cursor: the position of the stream up to which the fetcher has begun all. pending: positions before it whose files
    are not cached yet.
    """

    def __init__(self, request: PlanStart, sample_map: SampleMap, now_s: float) -> None:
        self.request = request
        self.sample_map = sample_map
        self.stream: PlannedStream | None = None
        self.cursor = 0
        self.pending: set[int] = set()
        self.paused_until_s = 0.0
        self.epoch = self.position = 0
        self.hits = self.misses = 0  # of this epoch
        self.all_hits = self.all_misses = 0
        self.heard_s = now_s
        self._width = sample_map.width  # files a sample in the stream
        self._starts: dict[int, int] = {}  # epoch → its first position in the stream
        self._received: dict[int, array[int]] = {}
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
    def ahead_samples(self) -> int:
        """Return how many samples from the present position on are in the cache."""
        return 0 if self.stream is None else max(0, self.ready_until() - self.stream.position) // self._width

    def receive(self, request: PlanOrder) -> array[int] | None:
        """Add a part of an epoch's order. Return the samples of the epoch when it is complete. Raise UsageError for
        a part that does not follow the one before."""
        if request.first == 0:
            self._received[request.epoch] = array("I")
        if len(self._received) > EPOCHS_AHEAD:
            raise UsageError("the order of a plan", why=f"more than {EPOCHS_AHEAD} epochs are sent at once")
        order = self._received.get(request.epoch)
        if order is None or len(order) != request.first or request.first > SAMPLES_MAX:
            raise UsageError("the order of a plan", why=f"its part from {request.first} on does not follow")
        part = array("I", request.indices)
        if sys.byteorder == "big":
            part.byteswap()
        order.extend(part)
        return self._received.pop(request.epoch) if request.is_last else None

    def adopt(self, epoch: int, files: array[int]) -> bool:
        """Take the order of an epoch. Return whether the stream is another object than before."""
        known, width = self._order_of(epoch), self.sample_map.width
        if known is not None and known == files:
            return False
        follows = width == self._width and epoch == max(self._starts, default=-1) + 1
        if known is None and self.stream is not None and follows:
            self._starts[epoch] = self.stream.end
            self.stream.extend(files)
            return False
        self.stream = PlannedStream(files, self.request.batch_size * width)
        self._starts = {epoch: 0}
        self._width = width
        self.cursor = 0
        self.pending.clear()
        return True

    def advance(self, request: PlanProgress, now_s: float) -> int | None:
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
        taken = start + request.position * self._width
        self._count(min(taken, self.stream.end))
        self.epoch, self.position = request.epoch, request.position
        self._step.note(now_s, request.position)
        self.cursor = max(self.cursor, taken - self._drawn_ahead)
        self.pending = {position for position in self.pending if position >= taken}
        return taken

    @property
    def _drawn_ahead(self) -> int:
        return DRAWN_BATCHES * self.request.batch_size * self._width

    def ready_until(self) -> int:
        """Return the first position of the stream whose file is not known to be cached."""
        return min(self.pending, default=self.cursor)

    def _count(self, taken: int) -> None:
        assert self.stream is not None
        before, ready = self.stream.position, self.ready_until()
        hits = max(0, min(taken, ready) - before)
        hit_samples, missed_samples = hits // self._width, max(0, taken - before - hits) // self._width
        self.hits, self.misses = self.hits + hit_samples, self.misses + missed_samples
        self.all_hits, self.all_misses = self.all_hits + hit_samples, self.all_misses + missed_samples

    def _order_of(self, epoch: int) -> array[int] | None:
        start = self._starts.get(epoch)
        if start is None or self.stream is None:
            return None
        return next((known.order for known in self.stream.epochs if known.start == start), None)


class PlanTable:
    """The plans of a node. Each method answers one message of a training process."""

    def __init__(self, planned: PlannedFiles, namespace: Namespace) -> None:
        self.planned = planned
        self.changed = asyncio.Event()
        """Set when the fetcher may find something to do."""
        self.ended_hits = self.ended_misses = 0
        """Samples of streams that have ended, by whether their files were cached in time."""
        self._namespace = namespace
        self._finder = FileFinder(namespace)
        self._readers: dict[str, PlannedReader] = {}
        self._named: dict[bytes, SampleMap] = {}
        self._learned: dict[str, SampleMap] = {}

    @property
    def readers(self) -> list[PlannedReader]:
        return list(self._readers.values())

    def start(self, request: PlanStart) -> bool:
        """Begin a stream. Return whether the names of its data set are known. Raise UsageError above a limit."""
        self.end(request.stream)
        samples = self._count_samples()
        if len(self._readers) >= STREAMS_MAX or samples + 2 * request.samples > SAMPLES_MAX:
            raise UsageError(
                f"a plan of {request.samples} samples",
                why=f"the plans of this node have {len(self._readers)} streams and {samples} samples already",
            )
        named = self._named.get(request.digest) if request.digest else self._learned.get(request.key)
        if named is not None and named.samples != request.samples:
            raise UsageError("a plan", why=f"its data set has {named.samples} samples, not {request.samples}")
        sample_map = named or self._new_map(request)
        self._learned[request.key] = sample_map
        self._readers[request.stream] = PlannedReader(request, sample_map, monotonic_s())
        return bool(request.digest) and sample_map.all_named

    async def name(self, request: PlanNames) -> None:
        """Take the names of a data set's files. Raise UsageError for a data set that no stream has announced."""
        sample_map = self._named.get(request.digest)
        if sample_map is None:
            raise UsageError("names of a plan", why="no stream has announced their data set")
        sample_map.name(request.first, await self._finder.ids_of(request.names.split(b"\0")))

    async def order(self, request: PlanOrder) -> None:
        """Take a part of an order. Raise UsageError for an unknown stream, or a part that does not fit."""
        reader = self._reader(request.stream)
        reader.heard_s = monotonic_s()
        samples = reader.receive(request)
        if samples is None:
            return
        files = array("I")
        for start in range(0, len(samples), SAMPLES_A_TURN):
            files += reader.sample_map.files_of(samples[start : start + SAMPLES_A_TURN])
            await asyncio.sleep(0)
        with self.planned.lock:
            is_new = reader.adopt(request.epoch, files)
            if is_new and reader.stream is not None:
                self.planned.orders.add(reader.key, reader.stream)
        self.changed.set()

    def progress(self, request: PlanProgress) -> None:
        """Take the position of a stream. Raise UsageError for an unknown one: its process then sends all again."""
        reader = self._reader(request.stream)
        with self.planned.lock:
            taken = reader.advance(request, monotonic_s())
            if taken is not None:
                self.planned.orders.advance(reader.key, taken)
                if reader.stream is not None and reader.step_s is not None:
                    reader.stream.set_step_s(reader.step_s)
        self.changed.set()

    async def learn(self, request: PlanLearn) -> None:
        """Take what a worker opened. A data set that no stream has is forgotten."""
        sample_map = self._learned.get(request.key)
        if sample_map is None:
            return
        ids = await self._finder.ids_of(request.paths.split(b"\0"))
        for index, id in zip(request.indices, ids, strict=True):
            if id is not None:
                sample_map.learn(index, id)

    def end(self, stream: str) -> None:
        """Forget a stream, and its data set with the last one of it."""
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
        self._named = {key: kept for key, kept in self._named.items() if id(kept) in used}
        self._learned = {key: kept for key, kept in self._learned.items() if id(kept) in used}
        if not self._readers:
            self.planned.reset()
        self.changed.set()

    def note_evicted(self, ids: Sequence[FileId]) -> None:
        """Let the fetcher look again at files that were evicted before they were read."""
        for id in ids if self._readers else ():
            number = self.planned.numbers.number_of(id)
            for reader in self.readers if number else ():
                position = None if reader.stream is None else reader.stream.next_position(number)
                if position is not None and position < reader.cursor:
                    reader.cursor = position
                    reader.paused_until_s = monotonic_s() + PAUSE_S

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
            if reader.is_fetched and reader.stream is not None and reader.cursor < reader.stream.end:
                yield reader.stream.seconds_until(reader.cursor), reader

    def _new_map(self, request: PlanStart) -> SampleMap:
        sample_map = SampleMap(request.samples, self.planned.numbers.group(request.samples * 2))
        if request.digest:
            self._named[request.digest] = sample_map
        return sample_map

    def _count_samples(self) -> int:
        """Return the samples of all orders and data sets."""
        maps = {id(reader.sample_map): reader.sample_map.samples for reader in self.readers}
        return sum(maps.values()) + sum(reader.request.samples for reader in self.readers)

    def _reader(self, stream: str) -> PlannedReader:
        reader = self._readers.get(stream)
        if reader is None:
            raise UsageError("a message of a plan", why="this node does not know its stream")
        return reader
