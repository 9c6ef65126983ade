"""Watch torch's DataLoaders: learn the order of each epoch as it begins, and count what is taken.

All is done where a loader takes its next index, in the program's own thread. Samplers inside the loader stay the
objects that the program made.
"""

from __future__ import annotations

import os
import sys
import uuid
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any

from .data_set_keys import data_set_key
from .interruptions import raise_interruption
from .mounts import MountedPaths, mounts_of_process
from .opened_files import MarkedDataSet, OpenedSampleFiles, end_batch
from .reporter import ReportedStream, Reporter
from .sample_extents import SampleExtents, extents_of
from .sample_files import files_of
from .samplers import LearnedOrder, NotPlannable, NotThisEpoch, batch_size_of, learn, rank_and_world
from .shards import ShardStreams

SOCKET, JOB, MOUNTS = "HEADRACE_PLAN_SOCKET", "HEADRACE_PLAN_JOB", "HEADRACE_PLAN_MOUNTS"
"""Variables of the environment by which `headrace run` says where to report, for which job, and what is mounted."""
WATCHER = "_headrace_watcher"
"""Attribute of torch.utils.data.dataloader that holds the watcher of this process."""
_EPOCH, _MARKED = "_headrace_epoch", "_headrace_marked"
"""Attributes of a loader's iterator, and of its fetcher."""


def watch_all_loaders(dataloader: Any) -> None:
    """Make every loader of this process be watched. dataloader: the module torch.utils.data.dataloader. Do nothing
    without the variables that `headrace run` sets."""
    mounts = mounts_of_process(os.environ.get(MOUNTS, ""))
    if os.environ.get(SOCKET):
        watcher = Watcher(os.environ[SOCKET], os.environ.get(JOB, "job"), mounts)
        patch(dataloader, watcher)


def patch(dataloader: Any, watcher: Watcher) -> None:
    """Make the loaders of a module, torch.utils.data.dataloader, call a watcher."""
    base, fetch = dataloader._BaseDataLoaderIter, dataloader._utils.fetch._MapDatasetFetcher
    take, build, load = base._next_index, fetch.__init__, fetch.fetch
    shards = dataloader._utils.fetch._IterableDatasetFetcher
    build_iterable, load_iterable = shards.__init__, shards.fetch

    def next_index(self: Any) -> Any:
        batches = watcher.batches_of(self)
        return take(self) if batches is None else next(batches)

    def build_fetcher(self: Any, dataset: Any, auto_collation: bool, *rest: Any) -> None:  # noqa: FBT001
        build(self, dataset, auto_collation, *rest)
        self.__dict__[_MARKED] = watcher.marked(dataset, auto_collation)

    def fetch_batch(self: Any, index: Any) -> Any:
        # between batches the fetcher has the program's own data set: torchdata asks that for its state
        dataset, marked = self.dataset, self.__dict__.get(_MARKED)
        if not isinstance(marked, MarkedDataSet) or marked.data_set is not dataset:
            return load(self, index)
        self.dataset = marked.of_batch()
        try:
            return load(self, index)
        finally:
            self.dataset = dataset
            end_batch(marked)

    def build_iterable_fetcher(self: Any, dataset: Any, *rest: Any) -> None:
        build_iterable(self, dataset if watcher.shards is None else watcher.shards.watched(dataset), *rest)

    def fetch_iterable_batch(self: Any, index: Any) -> Any:
        batch = load_iterable(self, index)
        if watcher.shards is not None:
            watcher.shards.note_batch(self.dataset)
        return batch

    setattr(dataloader, WATCHER, watcher)
    base._next_index, fetch.__init__, fetch.fetch = next_index, build_fetcher, fetch_batch
    shards.__init__, shards.fetch = build_iterable_fetcher, fetch_iterable_batch


class _WatchedEpoch:
    """Holds one epoch of one loader. iterator: of its sampler. batches: where the loader takes its indices instead."""

    def __init__(self, iterator: Any, batches: Iterator[Any] | None) -> None:
        self.iterator = iterator
        self.batches = batches


class Watcher:
    """Watches the loaders of this process and reports them. chosen_only: those that the program chose, not all.
    shards: reports iterable data sets, from each process that reads them."""

    def __init__(
        self, socket_path: str, job: str, mounts: MountedPaths, *, chosen_only: bool = False
    ) -> None:
        self._chosen_only = chosen_only
        self._pid = os.getpid()
        self._node = socket_path, job, mounts
        self._reporter = Reporter(*self._node)
        self._opened_files = OpenedSampleFiles(socket_path, mounts)
        self.shards = None if chosen_only else ShardStreams(socket_path, job, mounts, self._reporter)
        self._streams: dict[int, ReportedStream] = {}  # by the id of the index sampler, until that is gone
        self._unplanned: set[int] = set()
        self._chosen: set[int] = set()

    def choose(self, index_sampler: Any) -> bool:
        """Watch a loader by its index sampler, and permit a copy of that, of whatever package it is. Return False for
        one that can't be followed, which is said."""
        if not _can_be_followed(index_sampler):
            self._reporter.say_once(f"a loader runs without a plan: {_not_followed(index_sampler)}")
            return False
        self._chosen.add(id(index_sampler))
        weakref.finalize(index_sampler, self._chosen.discard, id(index_sampler)).atexit = False
        return True

    def marked(self, data_set: Any, auto_collation: bool) -> Any:  # noqa: FBT001
        """Return what a fetcher reads instead of a data set."""
        try:
            return self._opened_files.mark(data_set, auto_collation=auto_collation)
        except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
            raise_interruption(error)
            self._reporter.say_once(f"the files of samples can't be learned: {error!r}")
            return data_set

    def batches_of(self, loading: Any) -> Iterator[Any] | None:
        """Return what to take the next index from; None: from the loader's own iterator. loading: the iterator of a
        DataLoader."""
        try:
            iterator = loading._sampler_iter
            epoch: _WatchedEpoch | None = loading.__dict__.get(_EPOCH)
            if epoch is None or epoch.iterator is not iterator:
                epoch = loading.__dict__[_EPOCH] = _WatchedEpoch(iterator, self._begin(loading))
            return epoch.batches
        except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
            raise_interruption(error)
            self._reporter.say_once(f"a loader runs without a plan: {error!r}")
            return None

    def _begin(self, loading: Any) -> Iterator[Any] | None:
        """Learn the order of an epoch before its first index is taken. Return None for a loader without a plan."""
        sampler = loading._index_sampler
        if id(sampler) in self._unplanned or not self._is_of_process():
            return None
        if self._chosen_only and id(sampler) not in self._chosen:
            return None
        if self.shards is not None and self.shards.follows(loading._dataset):
            return None
        try:
            return self._plan(loading, sampler)
        except NotThisEpoch as error:
            self._forget(id(sampler))
            self._reporter.say_once(f"a loader runs without a plan in this epoch: {error}")
        except NotPlannable as error:
            self._give_up(sampler, str(error))
        except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
            raise_interruption(error)
            self._give_up(sampler, repr(error))
        return None

    def _is_of_process(self) -> bool:
        """Return whether this process plans loaders. A trainer that was forked begins anew; the workers of a loader
        have no plans."""
        if os.getpid() == self._pid:
            return True
        if sys.modules["torch.utils.data"].get_worker_info() is not None:
            return False
        self._pid, self._streams = os.getpid(), {}
        self._reporter = Reporter(*self._node)
        return True

    def _plan(self, loading: Any, sampler: Any) -> Iterator[Any]:
        rank, world = rank_and_world()
        if not hasattr(loading._dataset, "__len__") or type(sampler).__name__ == "_InfiniteConstantSampler":
            raise NotPlannable(f"{type(loading._dataset).__name__} has no order that a sampler knows")
        if not _can_be_followed(sampler):
            raise NotPlannable(_not_followed(sampler))
        stream = self._stream_of(loading) or self._new_stream(loading, rank, world)
        order = learn(
            sampler,
            loading._sampler_iter,
            world=world,
            is_chosen=id(sampler) in self._chosen,
            data_set=loading._dataset,
            skipped=getattr(loading, "_sampler_iter_yielded", 0),
        )
        try:
            self._follow(stream, sampler, order.indices)
        except Exception as error:  # noqa: BLE001 - the sampler may have begun, so its batches are needed
            if order.batches is None:
                raise_interruption(error)
            self._give_up(sampler, repr(error))
        return _CountedBatches(order, loading, stream, self._give_up)

    def _follow(self, stream: ReportedStream, sampler: Any, order: array[int]) -> None:
        stream.begin(order)
        if id(sampler) not in self._streams:
            self._streams[id(sampler)] = stream
            # the exit of the process ends all streams at once
            weakref.finalize(sampler, self._forget, id(sampler)).atexit = False
            self._reporter.add(stream)
        self._reporter.wake()

    def _forget(self, sampler_id: int) -> None:
        stream = self._streams.pop(sampler_id, None)
        if stream is not None:
            stream.end()

    def _stream_of(self, loading: Any) -> ReportedStream | None:
        """Return the stream of a loader. It ends if the program has changed the data set: the files of its samples may
        be others now."""
        sampler_id = id(loading._index_sampler)
        stream = self._streams.get(sampler_id)
        if stream is not None and stream.key != data_set_key(loading._dataset, self._pid):
            self._forget(sampler_id)
            return None
        return stream

    def _new_stream(self, loading: Any, rank: int, world: int) -> ReportedStream:
        data_set, sampler = loading._dataset, loading._index_sampler
        return ReportedStream(
            id=uuid.uuid4().hex,
            key=data_set_key(data_set, self._pid),
            files=self._extents_of(data_set) or files_of(data_set),
            samples=len(data_set),
            batch_size=batch_size_of(sampler),
            rank=rank,
            world=world,
            index_sampler=weakref.ref(sampler),
        )

    def _extents_of(self, data_set: Any) -> SampleExtents | None:
        try:
            return extents_of(data_set)
        except Exception as error:  # noqa: BLE001 - data sets are objects of other packages
            raise_interruption(error)
            self._reporter.say_once(f"the extents of samples can't be learned: {error!r}")
            return None

    def _give_up(self, sampler: Any, why: str) -> None:
        if _can_be_followed(sampler):  # else the next epoch tries again
            self._unplanned.add(id(sampler))
            weakref.finalize(sampler, self._unplanned.discard, id(sampler)).atexit = False
        self._forget(id(sampler))
        self._reporter.say_once(f"a loader runs without a plan: {why}")


def _can_be_followed(sampler: Any) -> bool:
    """Return whether its end can be noticed. A list, or an object with slots, can't."""
    try:
        weakref.ref(sampler)
    except TypeError:
        return False
    return True


def _not_followed(sampler: Any) -> str:
    return f"a sampler of the type {type(sampler).__name__} can't be followed"


class _CountedBatches:
    """Gives the batches of an epoch, and counts the samples as they are taken. What the iterator raises passes.

    give_up: called as soon as the loader's own iterator gives something else than its copy.
    """

    def __init__(
        self, order: LearnedOrder, loading: Any, stream: ReportedStream, give_up: Callable[[Any, str], None]
    ) -> None:
        self._order = order
        self._batches = order.batches or loading._sampler_iter
        self._sampler = loading._index_sampler
        self._stream = stream
        self._epoch = stream.current
        self._give_up = give_up
        self._is_copy = order.batches is None
        self._position = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        try:
            self._count(batch)
        except Exception as error:  # noqa: BLE001 - a batch is an object of the program
            raise_interruption(error)
            self._is_copy = False
        return batch

    def _count(self, batch: Any) -> None:
        if self._is_copy and not self._order.agrees(self._position, batch):
            self._is_copy = False
            self._give_up(self._sampler, "its sampler gave another order than its copy")
        count = len(batch) if hasattr(batch, "__len__") else 1
        self._position += count
        if self._stream.current is self._epoch:  # else another iterator of the loader has begun a later one
            self._stream.take(count)
