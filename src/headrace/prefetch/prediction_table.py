"""Keep what the jobs without a plan open, by data set, and predict what they open next.

The node hears which files a process opens (`Touch`), and which of these were not cached (`Open`). Files that miss have
a data set: the lowest directory at or below a mount that has them all. Each data set of each process has a predictor,
and one for each job that reads it through the same process (`plan/job_streams.py`). All is bounded, and used on the
node's loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from headrace.base.clock import monotonic_s
from headrace.base.model import FileId, Kind
from headrace.base.namespace_path import is_at_or_below, split
from headrace.namespace.tree import NAMES_A_BATCH, NameTree
from headrace.plan.data_sets import data_set_directory
from headrace.plan.file_numbers import FileNumbers
from headrace.plan.job_streams import JobStreams
from headrace.plan.prediction import AccessPredictor
from headrace.plan.prediction_budget import PredictionBudget

DATA_SETS_MAX = 16
STREAMS_MAX = 256
"""Most data sets, and most streams of processes whose first misses are remembered."""
FILES_MIN, FILES_MAX = 16, 1_000_000
"""Fewest and most files of a data set."""
FILES_IN_ALL_MAX = 2_000_000
"""Most files of all data sets: 20 bytes each, and at most 9 for each predictor."""
FIRST_MISSES = 8
"""Files that were not cached, by whose directories a data set is found."""
MISSES_KEPT = 65_536
MISSES_FORGOTTEN_S = 60.0
"""Seconds without any miss after which nothing is learned: all that is read is cached."""
OUTSTANDING_FILES_MAX = 65_536
OPENS_A_TURN = 512
"""Opens that are noted before others have their turn on the loop: some 5 ms."""
REFUSED_S = 600.0
"""Seconds for which a directory is not counted again that has too few or too many files."""
IDLE_S = 3600.0
"""Seconds after which a data set that no one opened is forgotten."""
IN_EPOCHS = ("repeated", "shuffled")
"""Models of jobs that read each file once an epoch."""
REBUILD_SHARE = 0.05
"""Share of the loop's time for which a data set that has grown is counted again."""


class PredictedDataSet:
    """The files of one directory, and how one process opens them. numbers: of the files, from 1 on, in the order of
    their paths. build_s: the seconds that it took to count them."""

    def __init__(
        self, directory: bytes, numbers: FileNumbers, budget: PredictionBudget, *, build_s: float
    ) -> None:
        self.directory, self.numbers, self.build_s = directory, numbers, build_s
        self.built_s = self.opened_s = monotonic_s()
        self.streams = JobStreams(self._new_predictor, len(numbers))
        self.fetched_files = self.fetched_bytes = 0
        self._budget = budget
        self._unopened: dict[int, int] = {}  # files that were fetched → their bytes
        self._idle_opens = 0

    @property
    def predictor(self) -> AccessPredictor:
        """Return the first predictor that predicts now, or that of all streams while none does."""
        return next(iter(self.streams.predicting), self.streams.joint)

    @property
    def is_read_in_epochs(self) -> bool:
        """Return whether a job reads each file once an epoch."""
        return any(predictor.model_name in IN_EPOCHS for predictor in self.streams.predicting)

    @property
    def is_cached(self) -> bool:
        """Return whether the process found all files in the cache for a whole epoch, without a fetch."""
        return self._idle_opens > max(256, len(self.numbers))

    @property
    def mean_bytes(self) -> int:
        """Return the mean size of the files that were fetched."""
        return self.fetched_bytes // max(1, self.fetched_files)

    def open(self, number: int, stream: int, now_s: float, *, is_miss: bool) -> None:
        """Note that a stream of the process opened a file."""
        self._idle_opens = 0 if is_miss else self._idle_opens + 1
        self.opened_s = now_s
        self.streams.open(number - 1, stream, now_s)
        self._end(number - 1, is_right=True)

    def begin(self, file: int, size_bytes: int) -> None:
        """Note that a predicted file is being fetched. If it was fetched before, and evicted without an open, another
        job's predictor has chosen it again."""
        self._idle_opens = 0
        self._end(file, is_right=False)
        self._unopened[file] = size_bytes
        self._budget.begin(size_bytes)

    def complete(self, size_bytes: int) -> None:
        """Note that a predicted file is in the cache."""
        self.fetched_files += 1
        self.fetched_bytes += size_bytes

    def fail(self, file: int) -> None:
        """Note that a predicted file could not be fetched."""
        size_bytes = self._unopened.pop(file, None)
        if size_bytes is not None:
            self._budget.fail(size_bytes)

    def close(self) -> None:
        """Count what was not opened as wrong: the data set is forgotten."""
        for file in list(self._unopened):
            self._end(file, is_right=False)

    def _new_predictor(self) -> AccessPredictor:
        return AccessPredictor(
            len(self.numbers), OUTSTANDING_FILES_MAX, lambda file: self._end(file, is_right=False)
        )

    def _end(self, file: int, *, is_right: bool) -> None:
        size_bytes = self._unopened.pop(file, None)
        if size_bytes is not None:
            self._budget.end(size_bytes, is_right=is_right)


class PredictionTable:
    """The data sets of a node. is_planned: whether a plan knows when a file is read; such opens are not predicted."""

    def __init__(self, tree: NameTree, is_planned: Callable[[FileId], bool]) -> None:
        self.budget = PredictionBudget(monotonic_s())
        self.changed = asyncio.Event()
        """Set when there may be something to fetch."""
        self._tree = tree
        self._is_planned = is_planned
        self._missed: OrderedDict[FileId, None] = OrderedDict()
        self._missed_s = 0.0
        self._data_sets: OrderedDict[tuple[int, bytes], PredictedDataSet] = OrderedDict()
        self._first_misses: OrderedDict[tuple[int, int], deque[FileId]] = OrderedDict()
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._ended = [0, 0, 0]

    @property
    def data_sets(self) -> list[PredictedDataSet]:
        """Return the data sets, the one that was opened last in front. Forget those that no one opens any more."""
        for key, data_set in list(self._data_sets.items()):
            if monotonic_s() - data_set.opened_s > IDLE_S:
                self._forget(key)
        return list(reversed(self._data_sets.values()))

    def read_in_epochs(self, id: FileId) -> PredictedDataSet | None:
        """Return the data set of a file that a process reads in epochs, each file once; None: it is in no such one."""
        for data_set in self._data_sets.values():
            if data_set.is_read_in_epochs and data_set.numbers.number_of(id):
                return data_set
        return None

    def counts(self) -> tuple[int, int, int]:
        """Return the predictions that were handed out since the start, those that came true, and those that did not."""
        issued, right, wrong = map(
            sum,
            zip(
                self._ended, *(data_set.streams.counts for data_set in self._data_sets.values()), strict=True
            ),
        )
        return issued, right, wrong

    def note_misses(self, ids: Iterable[FileId]) -> None:
        """Note files that a process opened and did not find in the cache."""
        for id in ids:
            self._missed[id] = None
        while len(self._missed) > MISSES_KEPT:
            self._missed.popitem(last=False)
        self._missed_s = monotonic_s()

    async def note_opens(self, ids: Sequence[FileId], process: int, streams: Sequence[int] = ()) -> None:
        """Note the files that a process opened, in this order. Counts the files of a data set that they show: that
        takes seconds for a million. Costs nothing while nothing misses. streams: of each open; empty: all are one."""
        now_s = monotonic_s()
        if self._missed and now_s - self._missed_s > MISSES_FORGOTTEN_S:
            self._missed.clear()
        for start in range(0, len(ids), OPENS_A_TURN):
            if not self._missed and not any(owner == process for owner, _ in self._data_sets):
                return
            for place, id in enumerate(ids[start : start + OPENS_A_TURN], start):
                stream = streams[place] if streams else 0
                directory = self._note_open(id, (process, stream), now_s)
                if directory is not None:
                    await self._build((process, stream), directory)
            self.changed.set()
            await asyncio.sleep(0)

    def _note_open(self, id: FileId, reader: tuple[int, int], now_s: float) -> bytes | None:
        """Note an open. Return the directory of a data set that is to be built, if it shows one. reader: the process,
        and its stream."""
        process, stream = reader
        is_miss = id in self._missed
        if is_miss:
            del self._missed[id]
        if self._is_planned(id):
            return None
        for key, data_set in reversed(self._data_sets.items()):
            number = data_set.numbers.number_of(id) if key[0] == process else 0
            if number:
                data_set.open(number, stream, now_s, is_miss=is_miss)
                self._data_sets.move_to_end(key)
                if data_set.is_cached:
                    self._forget(key)
                return None
        return self._note_first_miss(id, reader) if is_miss else None

    def _note_first_miss(self, id: FileId, reader: tuple[int, int]) -> bytes | None:
        """Note a miss of a stream outside the data sets of its process. After some of them return the directory of
        their data set."""
        ids = self._first_misses.setdefault(reader, deque(maxlen=FIRST_MISSES))
        self._first_misses.move_to_end(reader)
        if len(self._first_misses) > STREAMS_MAX:
            self._first_misses.popitem(last=False)
        ids.append(id)
        if len(ids) < FIRST_MISSES:
            return None
        directory = self._directory_of(ids, reader[0])
        return directory if directory is not None and self._may_build(directory, reader[0]) else None

    def _directory_of(self, ids: Iterable[FileId], process: int) -> bytes | None:
        """Return the directory of a process's data set that has these files; None if they are gone."""
        paths = [path for path in map(self._tree.index.path_of, ids) if path is not None]
        mounts = [self._tree.mounts.find(path) for path in paths]
        if not mounts or mounts[-1] is None:
            return None
        mount = mounts[-1][0]
        same_mount = [
            split(path)[0]
            for path, location in zip(paths, mounts, strict=True)
            if location is not None and location[0] is mount
        ]
        known = [directory for owner, directory in self._data_sets if owner == process]
        return data_set_directory(same_mount, known, mount.path.encode("utf-8", "surrogateescape"))

    def _may_build(self, directory: bytes, process: int) -> bool:
        now_s = monotonic_s()
        if now_s < self._refused.get(directory, 0.0):
            return False
        data_set = self._data_sets.get((process, directory))
        return data_set is None or now_s - data_set.built_s > data_set.build_s / REBUILD_SHARE

    async def _build(self, reader: tuple[int, int], directory: bytes) -> None:
        process, stream = reader
        began_s, numbers = monotonic_s(), FileNumbers()
        async for ids in files_in_order(self._tree, directory):
            for id in ids:
                numbers.add(id)
            if len(numbers) > FILES_MAX:
                break
        if not FILES_MIN <= len(numbers) <= FILES_MAX:
            self._refused[directory] = monotonic_s() + REFUSED_S
            if len(self._refused) > STREAMS_MAX:
                self._refused.popitem(last=False)
            return
        for key in [
            key for key in self._data_sets if key[0] == process and is_at_or_below(key[1], directory)
        ]:
            self._forget(key)
        data_set = PredictedDataSet(directory, numbers, self.budget, build_s=monotonic_s() - began_s)
        self._data_sets[process, directory] = data_set
        for id in self._first_misses.pop(reader, ()):
            number = numbers.number_of(id)
            if number:
                data_set.open(number, stream, monotonic_s(), is_miss=True)
        self._trim()

    def _trim(self) -> None:
        """Forget the data sets that were opened least recently, beyond what a node keeps."""
        while (
            len(self._data_sets) > DATA_SETS_MAX
            or sum(len(data_set.numbers) for data_set in self._data_sets.values()) > FILES_IN_ALL_MAX
        ):
            self._forget(next(iter(self._data_sets)))

    def _forget(self, key: tuple[int, bytes]) -> None:
        data_set = self._data_sets.pop(key)
        data_set.close()
        issued, right, _ = data_set.streams.counts
        for place, count in enumerate((issued, right, issued - right)):
            self._ended[place] += count


async def files_in_order(tree: NameTree, directory: bytes) -> AsyncIterator[list[FileId]]:
    """Yield the ids of the files of the index below a directory in batches, in the order of their paths. Let other
    tasks run in between."""
    top = tree.directory_at(directory)
    walks = [] if top is None else [tree.index.children(top)]
    ids: list[FileId] = []
    count = 0
    while walks:
        entry = next(walks[-1], None)
        if entry is None:
            walks.pop()
        elif entry.kind is Kind.DIRECTORY:
            walks.append(tree.index.children(entry.id))
        else:
            ids.append(entry.id)
        count += 1
        if count % NAMES_A_BATCH == 0:
            yield ids
            ids = []
            await asyncio.sleep(0)
    yield ids
