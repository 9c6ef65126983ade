"""Keep the cached part of a data set that is larger than its space, while a job reads it in epochs.

A job that has no plan reads each file of a shuffled epoch once. A file that is evicted for another one is then as
likely to be read next as that one. So the exchange gains nothing and writes to flash. If the cached part stays, an
epoch hits cache / data set of its files. The other files are read through the spill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.base.model import FileId
from headrace.prefetch.prediction_table import DATA_SETS_MAX, PredictedDataSet, PredictionTable

EVICTED_LEAST = 16
"""Evictions from which on they tell what gives way."""
COUNTED_MAX = 1024
"""Events after which their counts are halved, so that the last ones tell most."""
OWN_SHARE = 0.5
"""Share of the evicted files, and of the admitted ones, from which on a data set gives way to itself."""
PROBED = 32
"""Interval in files at which one is admitted all the same, so that evictions still show what gives way."""


class _Exchange:
    """Counts what a data set takes and gives. own: of its files."""

    def __init__(self) -> None:
        self._evicted = self._evicted_own = self._admitted = self._admitted_own = 0.0
        self._kept_out = 0

    def note_evicted(self, count: int, own_count: int) -> None:
        self._evicted += count
        self._evicted_own += own_count
        if self._evicted > COUNTED_MAX:
            self._evicted_own *= COUNTED_MAX / self._evicted / 2
            self._evicted = COUNTED_MAX / 2

    def note_admitted(self, *, is_own: bool) -> None:
        self._admitted += 1
        self._admitted_own += is_own
        if self._admitted >= COUNTED_MAX:
            self._admitted /= 2
            self._admitted_own /= 2

    def keeps_out(self) -> bool:
        """Return whether the next file is kept out, because one of the same data set would give way for it."""
        is_with_itself = (
            self._evicted >= EVICTED_LEAST
            and self._evicted_own >= OWN_SHARE * self._evicted
            and self._admitted_own >= OWN_SHARE * self._admitted
        )
        if not is_with_itself:
            return False
        self._kept_out += 1
        return self._kept_out % PROBED != 0


class KeptEpochs:
    """Decides for each file that misses. table: knows how jobs without a plan read. has_room: returns whether a file
    enters the cache without an eviction. Belongs to the node's loop."""

    def __init__(self, table: PredictionTable, has_room: Callable[[], bool]) -> None:
        self._table = table
        self._has_room = has_room
        self._exchanges: dict[PredictedDataSet, _Exchange] = {}
        self.kept_out_files = 0

    def keeps_out(self, id: FileId) -> bool:
        """Return whether a file that a program reads stays out of the cache."""
        data_set = None if self._has_room() else self._table.read_in_epochs(id)
        if data_set is not None and self._exchange_of(data_set).keeps_out():
            self.kept_out_files += 1
            return True
        for other, exchange in self._exchanges.items():
            exchange.note_admitted(is_own=other is data_set)
        return False

    def note_evicted(self, ids: Iterable[FileId]) -> None:
        """Note files that were evicted, for whatever reason."""
        ids = list(ids)
        for data_set, exchange in self._exchanges.items():
            own_count = sum(bool(data_set.numbers.number_of(id)) for id in ids)
            exchange.note_evicted(len(ids), own_count)

    def _exchange_of(self, data_set: PredictedDataSet) -> _Exchange:
        exchange = self._exchanges.get(data_set)
        if exchange is None:
            current = self._table.data_sets
            self._exchanges = {known: self._exchanges[known] for known in current if known in self._exchanges}
            exchange = self._exchanges[data_set] = _Exchange()
            assert len(self._exchanges) <= DATA_SETS_MAX + 1
        return exchange
