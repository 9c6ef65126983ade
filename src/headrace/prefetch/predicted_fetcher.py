"""Fetch what jobs without a plan are expected to open, while bandwidth and space are free.

Reads with a waiting reader and planned files precede these. Nothing is evicted for them.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, PathNotFoundError, VersionChangedError
from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.read import ReadPath
from headrace.dataplane.source import SourceFactory
from headrace.namespace.tree import NameTree
from headrace.prefetch.fetcher import FILE_BYTES_MAX, FULL_MARGIN, PlannedFetcher
from headrace.prefetch.plan_table import PAUSE_S
from headrace.prefetch.prediction_table import PredictedDataSet, PredictionTable
from headrace.store.store import Store

log = logging.getLogger(__name__)

SLOTS_SHARE = 0.25
"""Share of the gate's window for files that nobody waits for, by a guess."""
IN_FLIGHT_BYTES_MAX = 64 << 20
SCAN_FILES = 128
SCAN_PAUSE_S = 0.01
"""Files that are looked up, at some 8 us each, before others have their turn. The pause keeps that below a tenth of the
loop's time."""
LEAST_BYTES = 1 << 20


class PredictedFetcher:
    """Follows the predictions of a node with one task. watermark_low: share of the cache where eviction ends. Call
    `start` and `stop` on the loop."""

    def __init__(
        self,
        table: PredictionTable,
        planned: PlannedFetcher,
        reads: ReadPath,
        sources: SourceFactory,
        *,
        store: Store,
        tree: NameTree,
        watermark_low: float,
    ) -> None:
        self._table = table
        self._planned = planned
        self._reads = reads
        self._sources = sources
        self._store = store
        self._tree = tree
        self._full_share = watermark_low - FULL_MARGIN
        self._loads = OwnedTasks()
        self._task = OwnedTasks()
        self._in_flight: dict[FileId, int] = {}
        self._paused_until_s = 0.0
        self.fetched_files = self.fetched_bytes = 0

    def start(self) -> None:
        self._task.start(self._run())

    async def stop(self) -> None:
        await self._task.close()
        await self._loads.close()

    @property
    def in_flight(self) -> int:
        """Return how many files are being fetched."""
        return len(self._in_flight)

    def statistics(self) -> dict[str, object]:
        """Return what was predicted since the start, and each data set of now."""
        issued, right, wrong = self._table.counts()
        return {
            "files_issued": issued,
            "files_right": right,
            "files_wrong": wrong,
            "files_fetched": self.fetched_files,
            "bytes_fetched": self.fetched_bytes,
            "bytes_right": self._table.budget.right_bytes,
            "bytes_wrong": self._table.budget.wrong_bytes,
            "data_sets": [_row(data_set) for data_set in self._table.data_sets],
        }

    async def _run(self) -> None:
        while True:
            await self._table.changed.wait()
            self._table.changed.clear()
            try:
                for data_set in self._table.data_sets:
                    await self._fetch(data_set)
            except HeadraceError as error:
                log.warning("predicted files can't be fetched error=%s", error)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                log.exception("predicted files can't be fetched")  # the next turn may work
                await asyncio.sleep(PAUSE_S)

    async def _fetch(self, data_set: PredictedDataSet) -> None:
        """Begin the fetches of a data set that may begin now."""
        while self._may_fetch(data_set):
            predictors = data_set.streams.predicting
            has_begun = has_more = False
            for predictor in predictors:  # one file of each job in turn
                files = predictor.predictions(
                    int(self._may_fetch(data_set)),
                    partial(self._is_wanted, data_set),
                    scan_max=SCAN_FILES // len(predictors),
                )
                for file in files:
                    self._begin(data_set, file)
                has_begun, has_more = has_begun or bool(files), has_more or predictor.has_more
            if not has_begun and not has_more:
                return
            await asyncio.sleep(0 if has_begun else SCAN_PAUSE_S)

    def _may_fetch(self, data_set: PredictedDataSet) -> bool:
        """Return whether a file may be fetched now: no reader waits for the origin or a peer, and there are space and
        allowance."""
        if self._planned.is_behind or monotonic_s() < self._paused_until_s or not self._sources.has_spare:
            return False
        in_flight_bytes = sum(self._in_flight.values())
        slots = max(1, int(SLOTS_SHARE * self._sources.gate.window.limit))
        least_bytes = max(LEAST_BYTES, 2 * data_set.mean_bytes)
        return (
            len(self._in_flight) < slots
            and in_flight_bytes < IN_FLIGHT_BYTES_MAX
            and self._table.budget.allowance_bytes(monotonic_s()) >= least_bytes
            and self._store.space.has_free(in_flight_bytes + least_bytes, share=self._full_share)
        )

    def _is_wanted(self, data_set: PredictedDataSet, file: int) -> bool:
        """Return whether a file is not cached, and of a size that may be fetched."""
        id = data_set.numbers.id_of(file + 1)
        if id in self._in_flight:
            return False
        cached = self._store.index.cached(id)
        if cached is not None and cached.complete:
            return False
        entry = self._tree.index.entry(id)
        if entry is None or not self._store.space.division.admits(id, is_read=False):
            return False
        size_bytes = entry.version.size_bytes
        return (
            size_bytes <= FILE_BYTES_MAX
            and size_bytes <= self._table.budget.allowance_bytes(monotonic_s())
            and self._store.space.has_free(sum(self._in_flight.values()) + size_bytes, share=self._full_share)
            and not self._reads.load_budget.has_debt(entry)
        )

    def _begin(self, data_set: PredictedDataSet, file: int) -> None:
        id = data_set.numbers.id_of(file + 1)
        entry = self._tree.index.entry(id)
        size_bytes = 0 if entry is None else entry.version.size_bytes
        self._in_flight[id] = size_bytes
        data_set.begin(file, size_bytes)
        self._loads.start(self._load(data_set, file, id))

    async def _load(self, data_set: PredictedDataSet, file: int, id: FileId) -> None:
        try:
            entry = self._tree.index.entry(id)
            if entry is not None:
                size_bytes = await self._reads.load(entry, job="predictions")
                self.fetched_files += 1
                self.fetched_bytes += size_bytes
                data_set.complete(size_bytes)
        except HeadraceError as error:
            data_set.fail(file)
            if not isinstance(error, PathNotFoundError | VersionChangedError):  # not of this file alone
                self._paused_until_s = monotonic_s() + PAUSE_S
            log.debug("a predicted file can't be fetched id=%x error=%s", id, error)
        finally:
            del self._in_flight[id]
            self._table.changed.set()


def _row(data_set: PredictedDataSet) -> dict[str, object]:
    """Return the state of one data set."""
    issued, right, wrong = data_set.streams.counts
    return {
        "path": data_set.directory.decode("utf-8", "replace"),
        "model": data_set.predictor.model_name,
        "streams": len(data_set.streams),
        "files": len(data_set.numbers),
        "issued": issued,
        "right": right,
        "wrong": wrong,
        "precision": round(right / (right + wrong), 3) if right + wrong else None,
        "bytes_fetched": data_set.fetched_bytes,
    }
