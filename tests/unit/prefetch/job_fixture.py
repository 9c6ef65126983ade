"""A node with an origin in memory, and a training job that reports its plan as the hook does."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Self

from headrace.base.model import FileId
from headrace.origin.memory import MemoryOrigin
from headrace.plan.planned_files import PlannedFiles
from headrace.prefetch.cached_numbers import CachedNumbers
from headrace.prefetch.fetcher import PlannedFetcher
from headrace.prefetch.plan_table import SAMPLES_MAX, PlannedReader, PlanTable
from headrace.prefetch.predicted_fetcher import PredictedFetcher
from headrace.prefetch.prediction_table import PredictionTable
from headrace.wire.messages import PlanLearn, PlanNames, PlanOrder, PlanProgress, PlanStart
from tests.unit.dataplane.read_fixture import MIB, ReadPathFixture

SIZE_BYTES = 1000


class PlannedNode:
    """A node with `files` files of 1,000 bytes below /d."""

    def __init__(
        self,
        folder: Path,
        files: int,
        *,
        capacity_bytes: int = 64 * MIB,
        samples_max: int = SAMPLES_MAX,
        origin: MemoryOrigin | None = None,
        spill_folder: str | None = None,
    ) -> None:
        self.planned = PlannedFiles()
        self.reads = ReadPathFixture(
            folder,
            capacity_bytes=capacity_bytes,
            planned=self.planned,
            origin=origin,
            spill_folder=spill_folder,
        )
        self.paths = [b"/d/%d" % number for number in range(files)]
        for number in range(files):
            self.reads.origin.hold(f"d/{number}", number.to_bytes(4, "little") * (SIZE_BYTES // 4))
        cached = CachedNumbers(self.planned, self.reads.store.index, self.reads.reads.has)
        self.plans = PlanTable(self.planned, self.reads.namespace, cached, samples_max=samples_max)
        self.reads.store.space.evicted.add(self.plans.note_evicted)
        self.fetcher = PlannedFetcher(
            self.plans,
            self.reads.reads,
            self.reads.store,
            self.reads.namespace.tree,
            watermark_low=0.9,
        )
        self.predictions = PredictionTable(self.reads.namespace.tree, self.plans.is_planned)
        self.predicted = PredictedFetcher(
            *(self.predictions, self.fetcher, self.reads.reads, self.reads.sources),
            store=self.reads.store,
            tree=self.reads.namespace.tree,
            watermark_low=0.9,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with self.reads.running():
            self.fetcher.start()
            self.predicted.start()
            try:
                yield self
            finally:
                await self.predicted.stop()
                await self.fetcher.stop()

    def id_of(self, number: int) -> FileId | None:
        entry = self.reads.namespace.tree.entry_at(self.paths[number])
        return None if entry is None else entry.id

    def cached(self, among: Iterable[int] | None = None) -> set[int]:
        """Return the numbers of the files that are whole in the cache, and check their bytes. among: the files to look
        at, all by default."""
        numbers = set()
        for number in range(len(self.paths)) if among is None else among:
            id = self.id_of(number)
            cached = None if id is None else self.reads.store.index.cached(id)
            if id is not None and cached is not None and cached.complete:
                assert self.reads.content(id)[:SIZE_BYTES] == number.to_bytes(4, "little") * (SIZE_BYTES // 4)
                numbers.add(number)
        return numbers

    async def settle(self, seconds: float = 5.0) -> None:
        """Let the fetcher work, with the upkeep of a node's cache beside it, until it fetches nothing more. Time is
        virtual, except while disks work."""
        passed = quiet = 0
        while passed < seconds * 10 or quiet < 10:
            before = self.fetched_files
            await asyncio.sleep(0.1)
            while self.reads.store.space.evict_if_needed():
                pass
            passed += 1
            in_flight = self.fetcher.in_flight + self.predicted.in_flight
            quiet = quiet + 1 if self.fetched_files == before and not in_flight else 0

    @property
    def fetched_files(self) -> int:
        """Return how many files were fetched ahead."""
        return self.fetcher.fetched_files + self.predicted.fetched_files

    async def open(self, numbers: Iterable[int], process: int = 1, stream: int = 0) -> int:
        """Open files as a stream of a process without a plan does, and report it. Return how many were not cached."""
        misses = 0
        for number in numbers:
            entry = await self.reads.namespace.resolver.resolve(self.paths[number])
            cached = self.reads.store.index.cached(entry.id)
            if cached is None or not cached.complete:
                misses += 1
                self.predictions.note_misses([entry.id])
                await self.reads.reads.open(entry.id)
            await self.predictions.note_opens([entry.id], process, [stream])
        return misses


class Job:
    """One loader over the files of a node. digest: b"" for a data set that only its workers know."""

    def __init__(
        self,
        node: PlannedNode,
        stream: str = "s",
        *,
        digest: bytes = b"digest",
        batch_size: int = 4,
        samples: int | None = None,
    ) -> None:
        self._plans = node.plans
        self._stream = stream
        self.key = f"key of {stream}"
        self.start = PlanStart(
            stream, "train", 0, 1, self.key, digest, samples or len(node.paths), batch_size
        )
        self._paths = node.paths

    @property
    def reader(self) -> PlannedReader:
        return next(reader for reader in self._plans.readers if reader.key == self._stream)

    async def begin(self, order: Sequence[int], epoch: int = 0) -> None:
        """Announce the data set and its first epoch."""
        if not self._plans.start(self.start) and self.start.digest:
            await self._plans.name(PlanNames(self.start.digest, 0, b"\0".join(self._paths)))
        await self.order(order, epoch)

    async def order(self, order: Sequence[int], epoch: int) -> None:
        await self._plans.order(PlanOrder(self._stream, epoch, 0, array("I", order).tobytes(), True))

    def progress(self, position: int, epoch: int = 0) -> None:
        self._plans.progress(PlanProgress(self._stream, epoch, position))

    async def learn(self, samples: dict[int, list[bytes]]) -> None:
        pairs = [(index, path) for index, paths in samples.items() for path in paths]
        await self._plans.learn(
            PlanLearn(self.key, [index for index, _ in pairs], b"\0".join(path for _, path in pairs))
        )
