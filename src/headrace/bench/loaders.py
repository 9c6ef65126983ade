"""Load the workloads' data sets with torch's DataLoader: workers read real files and return the data that a trainer
would get.

An item is a complete batch: a `Batch`. A failed read is counted and the run continues. Failing storage then appears in
the report, and does not hang the other accelerators. The seed and the epoch determine the order.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info

from headrace.bench import formats
from headrace.bench.loader_spec import LoaderSpec
from headrace.bench.storage import READ_ERRORS, BenchStorage, DirectoryStorage, open_place


class Batch(NamedTuple):
    """Report the reads of one batch."""

    bytes_read: int
    failed: int
    handed: torch.Tensor
    """One row per sample, of the size that a trainer gets. Its contents have no meaning."""
    why: str = ""
    """Reason of the first failure."""


def loader(feed: LoaderSpec) -> tuple[DataLoader[Any], Any]:
    """Return a loader, and the object whose `set_epoch(number)` must be called before each `iter`."""
    again: dict[str, Any] = (
        {"persistent_workers": True, "prefetch_factor": feed.prefetch} if feed.readers else {}
    )
    if feed.streams:
        records = RecordDataset(feed)
        return DataLoader(records, batch_size=None, num_workers=feed.readers, **again), records
    order = EpochSampler(feed)
    batches: DataLoader[Any] = DataLoader(
        SampleDataset(feed), batch_sampler=order, collate_fn=_as_it_is, num_workers=feed.readers, **again
    )
    return batches, order


class EpochSampler(Sampler[list[int]]):
    """Yield the sample numbers of each batch."""

    def __init__(self, feed: LoaderSpec) -> None:
        self._feed, self._epoch = feed, 1

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._feed.steps

    def __iter__(self) -> Iterator[list[int]]:
        numbers = self._feed.order(self._epoch)
        for step in range(self._feed.steps):
            yield numbers[step * self._feed.batch : (step + 1) * self._feed.batch].tolist()


class SampleDataset(Dataset[Batch]):
    """Read a file for each sample, or windows of one file."""

    def __init__(self, feed: LoaderSpec) -> None:
        self._feed = feed
        self._place: BenchStorage | None = None
        self._map: Any = None

    def __len__(self) -> int:
        return self._feed.samples

    def __getitems__(self, numbers: list[int]) -> Batch:
        place = self._open()
        total, failed, why = 0, 0, ""
        handed = torch.empty((len(numbers), self._feed.handed_bytes), dtype=torch.uint8)
        for row, number in enumerate(numbers):
            try:
                total += self._read(place, number, handed[row])
            except READ_ERRORS as error:
                failed, why = failed + 1, why or _words(error)
        return Batch(total, failed, handed, why)

    def _open(self) -> BenchStorage:
        """Open the storage in the worker, because clients of object stores don't survive a fork."""
        if self._place is None:
            self._place = open_place(self._feed.where)
        return self._place

    def _read(self, place: BenchStorage, number: int, row: torch.Tensor) -> int:
        data = self._feed.data
        if data.format == "tokens":
            return self._window(place, number, row)
        name = data.name(number)
        if data.format == "npz" and not self._feed.as_bytes:
            return formats.read_npz(place.source(name))
        if data.format == "tfrecord":
            # an object of one sample is read as a whole: a stream would first request its size
            opened = (
                place.stream(name) if isinstance(place, DirectoryStorage) else io.BytesIO(place.get(name))
            )
            with opened as source:
                return sum(len(record) for record in formats.records(source))
        return len(place.get(name))

    def _window(self, place: BenchStorage, number: int, row: torch.Tensor) -> int:
        size = round(self._feed.data.sample_bytes)
        start = number * size
        if isinstance(place, DirectoryStorage):
            if self._map is None:
                self._map = np.memmap(place.source(self._feed.data.name(0)), np.uint8, "r")
            body: Any = self._map[start : start + size]
        else:
            body = np.frombuffer(place.window(self._feed.data.name(0), start, start + size), np.uint8)
        if len(body) != size:
            raise formats.BrokenRecordError(f"{len(body)} bytes of {size}")
        row.numpy()[:] = body[: len(row)]
        return size


class RecordDataset(IterableDataset[Batch]):
    """Read tfrecords of many samples each. A worker reads its files sequentially and cuts batches from them."""

    def __init__(self, feed: LoaderSpec) -> None:
        self._feed = feed
        self._epoch = torch.ones((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # workers live on from epoch to epoch

    def set_epoch(self, epoch: int) -> None:
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Batch]:
        feed, info = self._feed, get_worker_info()
        mine = feed.order(int(self._epoch))
        if info is not None:
            mine = mine[info.id :: info.num_workers]
        place = open_place(feed.where)
        each = itertools.chain.from_iterable(self._samples(place, int(number)) for number in mine)
        while len(taken := list(itertools.islice(each, feed.batch))) == feed.batch:
            handed = torch.empty((feed.batch, feed.handed_bytes), dtype=torch.uint8)
            whys = [why for _, why in taken if why]
            yield Batch(sum(size for size, _ in taken), len(whys), handed, next(iter(whys), ""))

    def _samples(self, place: BenchStorage, number: int) -> Iterator[tuple[int, str]]:
        """Yield the size and the error of each sample. There are as many as the file should have, even if a read
        fails."""
        data, yielded = self._feed.data, 0
        why = "the file ends too early"
        try:
            with place.stream(data.name(number)) as source:
                for record in formats.records(source):
                    yielded += 1
                    yield len(record), ""
        except READ_ERRORS as error:
            why = _words(error)
        for _ in range(yielded, data.samples_a_file):
            yield 0, why


def _as_it_is(batch: Any) -> Any:
    return batch


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
