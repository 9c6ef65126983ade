"""Feed training data to PyTorch from `headrace:///PATH` or any directory. docs/torch.md is the guide.

    loader = Loader(Samples("headrace:///images", decode=to_tensor), batch_size=256, workers=8, seed=7)
    for epoch in range(90):
        for images, labels in loader: ...
    torch.save(loader.state_dict(), …)            # also in mid-epoch: the next run continues with the next batch

There are three data sets, which are plain data sets of torch. `Samples` is a directory with one file per sample.
`Shards` are tar files of samples in WebDataset's format
(https://github.com/webdataset/webdataset#the-webdataset-format). `TokenWindows` are large files of numbers that are
read in windows. `Loader` shuffles them, distributes them to ranks and workers, and resumes. It needs torch and no other
package.
"""

from __future__ import annotations

import bisect
import fnmatch
import itertools
import logging
import math
import os
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple, cast

from headrace.base.missing_extras import needs_extra

with needs_extra(__name__):
    import torch
    from torch.utils.data import (
        DataLoader,
        Dataset,
        IterableDataset,
        Sampler,
        default_collate,
        get_worker_info,
    )

from headrace.base.errors import HeadraceError, PathNotFoundError, UsageError
from headrace.integrations.cached_first import CachedFirstBatches, Substitution
from headrace.integrations.tar_files import files_of
from headrace.sdk.folder import files_at, open_folder
from headrace.sdk.namespace import Content
from headrace.sdk.watched_loader import is_cached_path, watch

log = logging.getLogger(__name__)

STATE_FORMAT = 1
CACHED_FIRST = "cached-first"
ORDERS = ("seeded", CACHED_FIRST)
SHUFFLE_BUFFER = 1000
Decode = Callable[[bytes, str], Any]


class Samples(Dataset[Any]):
    """Read a directory with one file per sample. An item is (`decode(bytes, name)`, label).

    The label is the number of the sample's top directory, its index in `classes`; `label(name)` replaces it. Without
    decode, the first element is a tensor of bytes. A batch is read in one call (`__getitems__`), so missing files are
    fetched in parallel.

    where: `headrace:///PATH` or a directory. suffixes: use only such files. Raises PathNotFoundError without any
    sample.
    """

    def __init__(
        self,
        where: str,
        *,
        decode: Decode | None = None,
        label: Callable[[str], Any] | None = None,
        suffixes: tuple[str, ...] = (),
        cache: str | None = None,
        socket: str | None = None,
    ) -> None:
        self.place = open_folder(where, cache=cache, socket=socket)
        self.node = {"cache": cache, "socket": socket}
        self.names = [name for name in self.place.names() if not suffixes or name.lower().endswith(suffixes)]
        if not self.names:
            raise PathNotFoundError(self.place.name, why=f"the directory has no samples{_of(suffixes)}")
        self.classes = sorted({name.split("/", 1)[0] for name in self.names if "/" in name})
        self._class_numbers = {class_name: number for number, class_name in enumerate(self.classes)}
        self._decode = _as_bytes if decode is None else decode
        self._label = label

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        names = [self.names[index] for index in indices]
        bodies = self.place.read_many(names)
        return [
            (self._decode(body, name), self.label_of(name)) for body, name in zip(bodies, names, strict=True)
        ]

    def are_cached(self, indices: Sequence[int]) -> list[bool]:
        """Return for each sample whether it is cached on this host. Raises UsageError for a plain directory."""
        return self.place.are_cached([self.names[index] for index in indices])

    def label_of(self, name: str) -> Any:
        if self._label is not None:
            return self._label(name)
        return self._class_numbers.get(name.split("/", 1)[0], -1)


class TokenWindows(Dataset[torch.Tensor]):
    """Read numbers of one type in windows of `window` numbers. An item is a tensor over memory of its own.

    Windows begin `stride` numbers apart, by default `window`. From a file that is not cached, only the windows are
    fetched. where: as in Samples, or one file. Files of a directory are taken in the order of their names, and no
    window spans two files.
    """

    def __init__(
        self,
        where: str,
        *,
        window: int,
        dtype: torch.dtype = torch.uint16,
        stride: int | None = None,
        suffixes: tuple[str, ...] = (),
        cache: str | None = None,
        socket: str | None = None,
    ) -> None:
        self.place, names = files_at(where, cache=cache, socket=socket)
        self.names = [name for name in names if not suffixes or name.endswith(suffixes)]
        self._window, self._stride, self._dtype = window, stride or window, dtype
        if window < 1 or self._stride < 1:
            raise UsageError(f"window {window}, stride {stride}", why="both must be at least 1")
        self._contents: tuple[int, list[Content]] | None = None
        self.node = {"cache": cache, "socket": socket}
        self.stride_bytes, self.window_bytes = self._stride * dtype.itemsize, window * dtype.itemsize
        counts = [self._windows_of(content.size_bytes) for content in self._open()]
        self.windows_by_file = [
            (f"{self.place.name.rstrip('/')}/{name}", count)
            for name, count in zip(self.names, counts, strict=True)
        ]
        """The path of each file, and how many windows it has."""
        self._ends = list(itertools.accumulate(counts))
        if not self._ends or not self._ends[-1]:
            raise PathNotFoundError(
                self.place.name, why=f"no file{_of(suffixes)} is as long as a window of {window}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_contents": None}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> torch.Tensor:
        if not 0 <= index < len(self):
            raise IndexError(index)
        file = bisect.bisect_right(self._ends, index)
        number = index - (self._ends[file - 1] if file else 0)
        start = number * self._stride * self._dtype.itemsize
        body = self._open()[file].read(start, start + self._window * self._dtype.itemsize)
        return torch.frombuffer(bytearray(body), dtype=self._dtype)

    def _windows_of(self, size_bytes: int) -> int:
        last_start = size_bytes // self._dtype.itemsize - self._window
        return last_start // self._stride + 1 if last_start >= 0 else 0

    def _open(self) -> list[Content]:
        """Return the open files; each process opens them once."""
        if self._contents is None or self._contents[0] != os.getpid():
            self._contents = os.getpid(), [self.place.open(name) for name in self.names]
        return self._contents[1]


class Shards(IterableDataset[dict[str, Any]]):
    """Read samples from tar files, each shard by one worker of one rank.

    Adjacent members with the same name up to the first dot are one sample: a dict of the extension ("jpg", "cls", …) →
    bytes, and "__key__". An item is `decode(sample)`, by default the bytes as tensors. The bytes are memoryviews of the
    mapped shard, without a copy.

    Within `Loader` the order of the shards changes every epoch, and samples are shuffled in a buffer of `shuffle`
    samples (0: in the order of the shard). Raises UsageError where there are fewer shards than workers of all ranks.
    """

    def __init__(
        self,
        where: str,
        *,
        pattern: str = "*.tar",
        decode: Callable[[dict[str, Any]], Any] | None = None,
        shuffle: int = SHUFFLE_BUFFER,
        cache: str | None = None,
        socket: str | None = None,
    ) -> None:
        self.place = open_folder(where, cache=cache, socket=socket)
        self.names = [name for name in self.place.names() if fnmatch.fnmatch(name, pattern)]
        if not self.names:
            raise PathNotFoundError(self.place.name, why=f"the directory has no {pattern}")
        self._decode = _tensors if decode is None else decode
        self._buffer = shuffle
        self._order: EpochOrder | None = None

    def in_order(self, order: EpochOrder) -> None:
        """Set the order of the next iteration."""
        self._order = order

    def __iter__(self) -> Iterator[Any]:
        order, worker = self._order or EpochOrder(), get_worker_info()
        count = 1 if worker is None else worker.num_workers
        worker_number = 0 if worker is None else (worker.id + order.first) % count
        part, parts = order.rank * count + worker_number, order.world * count
        if parts > len(self.names):
            raise UsageError(
                f"{len(self.names)} shards of {self.place.name}",
                why=f"{order.world} ranks with {count} workers each need {parts}",
                hint="use fewer workers, or smaller shards",
            )
        names, random_source = list(self.names), random.Random(f"{order.seed} {order.epoch}")
        if order.shuffled:
            random_source.shuffle(names)
        samples = self._samples(names[part::parts])
        if order.shuffled and self._buffer > 1:
            samples = _mixed(samples, self._buffer, random.Random(f"{order.seed} {order.epoch} {part}"))
        for sample_number, sample in enumerate(samples):
            if sample_number >= order.samples_done.get(worker_number, 0):
                yield self._decode(sample)

    def _samples(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        for name in names:
            yield from samples_of(self.place.map(name), name)


def samples_of(shard: memoryview, name: str) -> Iterator[dict[str, Any]]:
    """Yield the samples of one tar file. Raises UsageError for a file that is not a tar file."""
    sample: dict[str, Any] = {}
    try:
        for file_name, data in files_of(shard):
            folder, slash, last = file_name.rpartition("/")
            stem, _, extension = last.partition(".")
            key = folder + slash + stem
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            sample["__key__"] = key
            sample[extension.lower()] = data
    except tarfile.TarError as error:
        raise UsageError(name, why=f"not a tar file: {error}") from None
    if sample:
        yield sample


class EpochOrder:
    """Describe how one epoch runs on one rank.

    samples_done: samples that each worker has already yielded in this epoch. first: the worker whose batch is next; a
    DataLoader takes batches from its workers in turn and begins with the first.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffled: bool = False,
        samples_done: dict[int, int] | None = None,
        first: int = 0,
    ) -> None:
        self.seed, self.epoch, self.rank, self.world = seed, epoch, rank, world
        self.shuffled = shuffled
        self.samples_done = dict(samples_done or {})
        self.first = first


class Loader:
    """Shuffle a data set, distribute it to ranks, and resume. One `for` over a loader is one epoch.

    A `state_dict` taken at any time describes the batches that were yielded, not the ones that workers have read ahead.

    data: a data set of this module, or any data set of torch with a length. workers: processes. rank, world: by default
    those of torch.distributed if it is initialized, else RANK and WORLD_SIZE. drop_last: as in DataLoader. For data
    sets with a length all ranks get the same number of batches: some samples are left out (drop_last) or repeated.
    pin_memory: by default True if CUDA is available. Other options go to the DataLoader. in_order=False is for Shards.

    order: "seeded", or "cached-first" for Samples of a node: samples that are cached on this host and were not read in
    this epoch go first. Each sample is still read once an epoch, but the order depends on the cache.
    """

    def __init__(
        self,
        data: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        workers: int = 0,
        rank: int | None = None,
        world: int | None = None,
        drop_last: bool = True,
        collate: Callable[[list[Any]], Any] = default_collate,
        pin_memory: bool | None = None,
        order: str = "seeded",
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size {batch_size}", why="it must be at least 1")
        if order not in ORDERS:
            raise UsageError(f"order {order!r}", why="unknown", hint=f"use one of {', '.join(ORDERS)}")
        self.data = data
        self._batch_size, self._drop_last = batch_size, drop_last
        self._shuffle, self._seed, self._workers = shuffle, seed, workers
        self._rank, self._world = _rank_and_world(rank, world)
        self._collate = _Tagged(collate)
        self._options = {
            **options,
            "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
        }
        self._epochs = _EpochBatches(
            _Share(self._rank, self._world, batch_size, drop_last), seed if shuffle else None
        )
        self._is_watched = False
        self._substitution: Substitution | None = None
        if options.get("in_order") is False and isinstance(data, Sized):
            raise UsageError("in_order=False", why="the state of the loader counts batches in their order")
        if order == CACHED_FIRST:
            self._substitution = Substitution(data, rank=self._rank, world=self._world, drop_last=drop_last)
        self.epoch = 0
        self._batches = self._next = 0
        self._samples_done: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the batches of an epoch on this rank. Raises TypeError for shards, whose sample count is unknown."""
        if not isinstance(self.data, Sized):
            raise TypeError(f"{type(self.data).__name__} has no length")
        return self._epochs.count(len(self.data))

    def __iter__(self) -> Iterator[Any]:
        """Yield the remaining batches of a resumed epoch, or a full epoch."""
        first, workers = self._next, max(1, self._workers)
        loader, substituted = self._loader()
        for worker, count, batch in loader:
            if substituted is not None:
                substituted.confirm()
            number = (worker + first) % workers
            self._batches, self._next = self._batches + 1, (number + 1) % workers
            self._samples_done[number] = self._samples_done.get(number, 0) + count
            yield batch
        self.epoch += 1
        self._batches, self._next, self._samples_done = 0, 0, {}
        if self._substitution is not None:
            self._substitution.load(None)

    def state_dict(self) -> dict[str, Any]:
        state = {
            "format": STATE_FORMAT,
            "epoch": self.epoch,
            "batches": self._batches,
            "taken": dict(self._samples_done),
            "next": self._next,
            "about": self._identity(),
        }
        return state if self._substitution is None else {**state, CACHED_FIRST: self._substitution.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the batch after the state's last one.

        Raises UsageError where the data or the loader differ from the state's: there is no "next batch" then.
        """
        self._check(state, self._identity())
        self.epoch, self._batches = state["epoch"], state["batches"]
        taken, self._next = (state["taken"], state["next"]) if state["batches"] else ({}, 0)
        self._samples_done = {int(worker): count for worker, count in taken.items()}  # JSON has texts as keys
        if self._substitution is not None:
            self._substitution.load(state[CACHED_FIRST] if state["batches"] else None)

    def load_state_dicts(self, states: Sequence[dict[str, Any]]) -> None:
        """Continue from the states of all ranks, taken after the same batch, with any number of ranks.

        Only for order="cached-first". Raises UsageError as `load_state_dict`, or if a rank is missing.
        """
        if self._substitution is None:
            raise UsageError("states of all ranks", why='only order="cached-first" can use them')
        if len({(state.get("epoch"), state.get("batches")) for state in states}) != 1:
            raise UsageError("states of all ranks", why="they were not taken after the same batch")
        identity = {key: value for key, value in self._identity().items() if key != "world"}
        for state in states:
            self._check(state, identity)
        self.epoch, self._batches = states[0]["epoch"], states[0]["batches"]
        self._samples_done, self._next = {}, 0
        if self._batches:
            self._substitution.load_all([state[CACHED_FIRST] for state in states])
        else:
            self._substitution.load(None)

    def _check(self, state: dict[str, Any], identity: dict[str, Any]) -> None:
        """Raise UsageError where the state is not of such a loader."""
        if state.get("format") != STATE_FORMAT:
            raise UsageError(
                "state of a loader", why=f"its format is {state.get('format')!r}, not {STATE_FORMAT}"
            )
        changed = [
            f"{key} was {state['about'].get(key)}, is {now}"
            for key, now in identity.items()
            if state["about"].get(key) != now
        ]
        if (CACHED_FIRST in state) != (self._substitution is not None):
            changed.append(f'order="{CACHED_FIRST}" is only in one of them')
        if changed and state["batches"]:
            raise UsageError(
                "state of a loader",
                why="; ".join(changed),
                hint="start a new epoch by state['batches'] = 0, or create the loader as it was",
            )

    def _identity(self) -> dict[str, Any]:
        identity = {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "batch_size": self._batch_size,
            "world": self._world,
        }
        identity["drop_last"] = self._drop_last
        if isinstance(self.data, Sized):
            return {**identity, "samples": len(self.data)}
        names = getattr(self.data, "names", [])
        return {**identity, "workers": self._workers, "shards": len(names)}

    def _loader(self) -> tuple[Iterator[tuple[int, int, Any]], CachedFirstBatches | None]:
        """Return the batches that are left, and what must confirm each of them."""
        options = {"num_workers": self._workers, "collate_fn": self._collate, **self._options}
        if self._substitution is not None:
            assert isinstance(self.data, Sized)
            order = _epoch_order(len(self.data), self._seed if self._shuffle else None, self.epoch)
            chosen = self._substitution.batches(order, self._batch_size)
            return iter(DataLoader(self.data, batch_sampler=cast(Any, chosen), **options)), chosen
        if isinstance(self.data, Sized):
            self._epochs.begin(len(self.data), self.epoch, skipped=self._batches)
            loader = DataLoader(self.data, batch_sampler=self._epochs, **options)
            self._watch(loader)
            return iter(loader), None
        if isinstance(self.data, Shards):
            self.data.in_order(
                EpochOrder(
                    seed=self._seed,
                    epoch=self.epoch,
                    rank=self._rank,
                    world=self._world,
                    shuffled=self._shuffle,
                    samples_done=self._samples_done,
                    first=self._next,
                )
            )
        elif self._samples_done:
            raise UsageError(
                type(self.data).__name__, why="only Shards and data sets with a length can be resumed"
            )
        loader = DataLoader(self.data, batch_size=self._batch_size, drop_last=self._drop_last, **options)
        return iter(loader), None

    def _watch(self, loader: DataLoader[Any]) -> None:
        """Let the node of this host know the order of a data set that is in the cache, with the first epoch. Without
        such a node nothing changes."""
        data, is_first, self._is_watched = self.data, not self._is_watched, True
        if not (is_first and isinstance(data, Samples | TokenWindows) and is_cached_path(data.place.name)):
            return
        try:
            watch(loader, **data.node)
        except HeadraceError as error:
            log.info("the loader runs without a plan error=%s", error)


class _Share(NamedTuple):
    """The part of an epoch that one rank reads, and how it is divided into batches."""

    rank: int
    world: int
    batch_size: int
    drop_last: bool


class _EpochBatches(Sampler[list[int]]):
    """Divide this rank's samples of an epoch into batches. seed: of the shuffled order, or None. It refers to no data
    set: the hook of plans copies it, and sets the copy to the next epoch (`hook/samplers.py`)."""

    def __init__(self, share: _Share, seed: int | None) -> None:
        self._share, self._seed = share, seed
        self._total = 0
        self.epoch = 0
        self._samples: list[int] = []

    def begin(self, total: int, epoch: int, *, skipped: int) -> None:
        """Begin an epoch of a data set of `total` samples. skipped: batches that were yielded before."""
        self._total = total
        self.set_epoch(epoch)
        del self._samples[: skipped * self._share.batch_size]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        order, share = _epoch_order(self._total, self._seed, epoch), self._share
        if share.drop_last:
            order = order[: self._total // share.world * share.world]
        else:
            order += (order * share.world)[: -self._total % share.world]
        self._samples = order[share.rank :: share.world]
        if share.drop_last:
            del self._samples[len(self._samples) // share.batch_size * share.batch_size :]

    def count(self, total: int) -> int:
        """Return the batches of a whole epoch."""
        share = self._share
        if share.drop_last:
            return total // share.world // share.batch_size
        return math.ceil(math.ceil(total / share.world) / share.batch_size)

    def __len__(self) -> int:
        return -(-len(self._samples) // self._share.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        size = self._share.batch_size
        for start in range(0, len(self._samples), size):
            yield self._samples[start : start + size]


def _epoch_order(total: int, seed: int | None, epoch: int) -> list[int]:
    """Return all sample numbers of an epoch, in order; not shuffled without a seed."""
    if seed is None:
        return list(range(total))
    order: list[int] = torch.randperm(total, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    return order


class _Tagged:
    """Tag a batch with the worker that built it and the number of its samples."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> tuple[int, int, Any]:
        worker = get_worker_info()
        return (0 if worker is None else worker.id), len(samples), self._collate(samples)


def _mixed(samples: Iterator[Any], size: int, random_source: random.Random) -> Iterator[Any]:
    """Yield the samples through a buffer of `size` samples, from which a random one leaves."""
    buffer: list[Any] = []
    for sample in samples:
        if len(buffer) < size:
            buffer.append(sample)
            continue
        index = random_source.randrange(size)
        yield buffer[index]
        buffer[index] = sample
    random_source.shuffle(buffer)
    yield from buffer


def _rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None or world is None or not 0 <= rank < world:
        raise UsageError(f"rank {rank} of {world}", why="give both or neither, with 0 <= rank < world")
    return rank, world


def _as_bytes(body: bytes, name: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.empty(0, dtype=torch.uint8)


def _tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        key: torch.frombuffer(value, dtype=torch.uint8)
        if isinstance(value, memoryview) and len(value)
        else value
        for key, value in sample.items()
    }


def _of(suffixes: tuple[str, ...]) -> str:
    return f" with {', '.join(suffixes)}" if suffixes else ""
