"""Follow iterable data sets that know which files they read next: the shards of WebDataset, MosaicML and LitData.

The process that reads the samples knows it, a worker or the program itself. So each of them reports a stream of its
own, whose samples are shards. Nothing changes for the data sets: WebDataset's list of shards is taken at once, which
its own generator of random numbers decides, and the others have drawn all their shards before the first sample.
"""

from __future__ import annotations

import copy
import os
import sys
import uuid
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any
from urllib.parse import urlsplit

from .interruptions import raise_interruption
from .mounts import MountedPaths
from .reporter import ReportedStream, Reporter
from .samplers import rank_and_world

SHARDS_MAX = 10_000
"""Shards of an epoch of WebDataset that are learned: a list of shards with repetition has no end."""
WEB, MOSAIC, LITDATA = "webdataset", "streaming.base.dataset", "litdata.streaming.dataset"

_LISTS = {
    ("webdataset.shardlists", name) for name in ("SimpleShardList", "ResampledShards", "MultiShardSample")
}
"""Lists of WebDataset that may be taken at once. DirectoryShardList renames and removes files as it goes."""


class ShardStreams:
    """Reports the shards that this process reads, and those of workers that are forked from it. reporter: of this
    process."""

    def __init__(self, socket_path: str, job: str, mounts: MountedPaths, reporter: Reporter) -> None:
        self._socket_path = socket_path
        self._job = job
        self._mounts = mounts
        self._own = (os.getpid(), reporter)
        self._followed: dict[int, FollowedShards] = {}  # by the id of the data set, until that is gone

    def follows(self, data_set: Any) -> bool:
        """Return whether the processes that read a data set report its shards."""
        return _package_of(data_set) is not None

    def watched(self, data_set: Any) -> Any:
        """Return what a fetcher iterates over instead of a data set."""
        try:
            if _package_of(data_set) == WEB:
                return _with_stage(data_set, self._of(data_set))
        except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
            raise_interruption(error)
            self.give_up(error)
        return data_set

    def note_batch(self, data_set: Any) -> None:
        """Look how far a data set has come with its shards."""
        package = _package_of(data_set)
        try:
            if package == MOSAIC:
                _follow_mosaic(data_set, self._of(data_set))
            elif package == LITDATA:
                _follow_litdata(data_set, self._of(data_set))
        except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
            raise_interruption(error)
            self.give_up(error)

    def report(self, stream: ReportedStream, files: list[str]) -> bool:
        """Report a stream, unless none of its files is in a mount."""
        if not any(map(self._mounts.namespace_path, files)):
            return False
        self._reporter().add(stream)
        return True

    def wake(self) -> None:
        self._reporter().wake()

    def _of(self, data_set: Any) -> FollowedShards:
        self._reporter()
        followed = self._followed.get(id(data_set))
        if followed is None:
            followed = self._followed[id(data_set)] = FollowedShards(self, type(data_set))
            weakref.finalize(data_set, self._forget, id(data_set)).atexit = False
        return followed

    def _forget(self, data_set_id: int) -> None:
        followed = self._followed.pop(data_set_id, None)
        if followed is not None:
            followed.end()

    def _reporter(self) -> Reporter:
        pid, reporter = self._own
        if pid != os.getpid():  # a worker that was forked: the thread of its parent is not here
            reporter = Reporter(self._socket_path, self._job, self._mounts)
            self._own = (os.getpid(), reporter)
            self._followed = {}
        return reporter

    def give_up(self, error: Exception) -> None:
        """Say once that an error of ours has no consequence but this."""
        self._reporter().say_once(f"the shards of a data set can't be learned: {error!r}")


class FollowedShards:
    """The shards that this process reads of one data set. epoch: what the data set has anew for each epoch."""

    def __init__(self, streams: ShardStreams, kind: type) -> None:
        self.epoch: object = None
        self.firsts: list[int] = []
        self._streams = streams
        self._name = f"{kind.__module__}.{kind.__qualname__}"
        self._files: list[str] = []
        self._stream: ReportedStream | None = None

    def begin(
        self, epoch: object, files: list[str], order: array[int], firsts: list[int] | None = None
    ) -> None:
        """Begin an epoch. files: of all shards. order: numbers of them. firsts: the first sample of each in `order`."""
        self.epoch = epoch
        self.firsts = firsts or []
        if self._stream is not None and files == self._files:
            self._stream.begin(order)
            self._streams.wake()
            return
        self.end()
        rank, world = rank_and_world()
        stream = ReportedStream(
            id=uuid.uuid4().hex,
            key=f"{os.getpid()}:{self._name}:shards",
            files=files,
            samples=len(files),
            batch_size=1,
            rank=rank,
            world=world,
            index_sampler=_no_sampler,
        )
        stream.begin(order)
        self._files = files
        self._stream = stream if self._streams.report(stream, files) else None
        self._streams.wake()

    def begin_web(self, shards: list[Any]) -> None:
        """Begin an epoch of WebDataset, if all its shards are files."""
        try:
            paths = [_path_of(shard) for shard in shards]
            files = sorted(set(paths))
            numbers = {path: number for number, path in enumerate(files)}
            if all(paths):
                self.begin(object(), files, array("I", [numbers[path] for path in paths]))
        except Exception as error:  # noqa: BLE001 - no error of ours reaches the program
            raise_interruption(error)
            self._streams.give_up(error)

    def end(self) -> None:
        """Forget the data set."""
        if self._stream is not None:
            self._stream.end()
        self._stream = None

    def advance(self, shards: int) -> None:
        """Note how many shards of the epoch are read, or being read."""
        if self._stream is not None:
            self._stream.position = min(shards, len(self._stream.current[1]))


def _no_sampler() -> None:
    """Stand for the sampler of a stream that has none."""


def _package_of(data_set: Any) -> str | None:
    """Return which package's data set this is, if its shards can be followed."""
    for kind in type(data_set).__mro__:
        if (kind.__module__, kind.__name__) == ("webdataset.pipeline", "DataPipeline"):
            return None if _place_of_opener(data_set.pipeline) is None else WEB
        if kind.__name__ == "StreamingDataset" and kind.__module__ in (MOSAIC, LITDATA):
            return kind.__module__
    return None


# ---------------------------------------------------------------- WebDataset


def _with_stage(data_set: Any, followed: FollowedShards) -> Any:
    """Return a data set with the same stages, and one more where shards are opened. The stages are the same objects, as
    some count their epochs."""
    place = _place_of_opener(data_set.pipeline)
    watched = copy.copy(data_set)
    watched.pipeline = [*data_set.pipeline[:place], _FollowingStage(followed), *data_set.pipeline[place:]]
    return watched


class _FollowingStage:
    """A stage of WebDataset: give the shards that come, as they come, and report all of them before the first."""

    def __init__(self, followed: FollowedShards) -> None:
        self._followed = followed

    def __call__(self, source: Any) -> Iterator[Any]:
        shards: list[Any] = []
        rest: Iterator[Any] = source
        try:
            shards.extend(islice(source, SHARDS_MAX))
        except Exception as error:  # noqa: BLE001 - the program sees it where the list would have raised it
            rest = _raising(error)
        self._followed.begin_web(shards)
        for number, shard in enumerate(chain(shards, rest), 1):
            self._followed.advance(number)
            yield shard


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def _path_of(shard: Any) -> str:
    """Return the path of a shard; an empty one for a URL that is no file."""
    url = urlsplit(shard["url"] if isinstance(shard, dict) else "pipe:")
    return url.path if url.scheme in ("", "file") else ""


def _place_of_opener(stages: list[Any]) -> int | None:
    """Return the place of the stage that opens shards, if those before it decide by themselves which ones."""
    for place, stage in enumerate(stages):
        kind, function = type(stage), getattr(stage, "f", stage)
        name = getattr(function, "__name__", "")
        if kind.__name__ == "StreamingOpen" or name in ("tarfile_samples", "url_opener"):
            return place or None
        module = getattr(function, "__module__", "")
        is_list = place == 0 and (kind.__module__, kind.__name__) in _LISTS
        is_split = place > 0 and module == "webdataset.shardlists"
        is_shuffle = (
            module == "webdataset.filters" and name == "_shuffle" and not _has_foreign_generator(stage)
        )
        is_seeded = (kind.__module__, kind.__name__) == ("webdataset.filters", "detshuffle")
        if not (is_list or is_split or is_shuffle or is_seeded):
            return None
    return None


def _has_foreign_generator(stage: Any) -> bool:
    return stage.kw.get("rng") is not None or len(stage.args) > 2


# ---------------------------------------------------------------- MosaicML Streaming


def _follow_mosaic(data_set: Any, followed: FollowedShards) -> None:
    iteration: Any = getattr(data_set, "_iterator", None)
    if iteration is None:
        return
    if followed.epoch is not iteration:
        numpy = sys.modules["numpy"]
        places = numpy.flatnonzero(iteration.sample_ids >= 0)  # -1 fills a batch
        bounds = data_set.spanner.shard_bounds
        shards = numpy.searchsorted(bounds, iteration.sample_ids[places], side="right") - 1
        numbers, firsts = numpy.unique(shards, return_index=True)
        in_order = numpy.argsort(firsts)
        files = [_mosaic_file(data_set, number) for number in range(len(data_set.shards))]
        order = array("I", numbers[in_order].tolist())
        followed.begin(iteration, files, order, places[firsts[in_order]].tolist())
    followed.advance(bisect_right(followed.firsts, iteration.yield_index))


def _mosaic_file(data_set: Any, number: int) -> str:
    """Return the file that a shard is read from: at its remote place, if that is a directory, else at its local one."""
    shard, stream = data_set.shards[number], data_set.streams[data_set.stream_per_shard[number]]
    zipped, raw = getattr(shard, "zip_data", None), shard.raw_data
    name = raw.basename if zipped is None else zipped.basename
    return os.path.join(stream.remote or shard.dirname, shard.split or "", name)


# ---------------------------------------------------------------- LitData


def _follow_litdata(data_set: Any, followed: FollowedShards) -> None:
    chunks = getattr(data_set, "worker_chunks", None)
    if not chunks:
        return
    if followed.epoch is not chunks:
        config = data_set.cache._reader._config
        folder = config._remote_dir or config._cache_dir
        files = [os.path.join(folder, chunk["filename"]) for chunk in config._chunks]
        followed.begin(chunks, files, array("I", list(map(int, chunks))))
    followed.advance(data_set.worker_next_chunk_index)
