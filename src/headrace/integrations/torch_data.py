"""Training data for PyTorch, from `headrace:///PATH` or any folder: docs/torch.md. Needs torch, and no other package.

    loader = Loader(Samples("headrace:///images", decode=to_tensor), batch_size=256, workers=8, seed=7)
    for epoch in range(90):
        for images, labels in loader: ...
    torch.save(loader.state_dict(), …)            # in mid-epoch too: the next run goes on with the next batch

Three kinds of data: `Samples`, a folder with a file for each sample; `Shards`, tar files of samples as WebDataset has
them (https://github.com/webdataset/webdataset#the-webdataset-format); `TokenWindows`, large files of numbers that
are read in windows. Each is a plain data set of torch's. `Loader` shuffles them, deals them to ranks and workers,
and resumes."""

from __future__ import annotations

import bisect
import fnmatch
import io
import itertools
import os
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any

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

from headrace.base.errors import PathNotFoundError, UsageError
from headrace.sdk.folder import files_at, open_folder
from headrace.sdk.streams import Content

STATE_FORMAT = 1
SHUFFLE_BUFFER = 1000
Decode = Callable[[bytes, str], Any]


class Samples(Dataset[Any]):
    """A folder with a file for each sample. An item is (what `decode(bytes, name)` makes of it, label): the label is
    the number of the sample's top folder, as `classes` has them, or what `label(name)` says. Without decode: a tensor
    of bytes. A whole batch is read at once (`__getitems__`), so what is not cached is fetched in parallel.

    where: `headrace:///PATH` or a folder. suffixes: only such files. PathNotFoundError where there is none."""

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
        self.names = [name for name in self.place.names() if not suffixes or name.lower().endswith(suffixes)]
        if not self.names:
            raise PathNotFoundError(self.place.name, why=f"no samples{_of(suffixes)} in it")
        self.classes = sorted({name.split("/", 1)[0] for name in self.names if "/" in name})
        self._class_numbers = {one: number for number, one in enumerate(self.classes)}
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

    def label_of(self, name: str) -> Any:
        if self._label is not None:
            return self._label(name)
        return self._class_numbers.get(name.split("/", 1)[0], -1)


class TokenWindows(Dataset[torch.Tensor]):
    """Numbers of one type, in files that are read in windows of `window` of them, `stride` apart (else `window`). An
    item is a tensor of that type, over memory that belongs to nobody else. Of a file that is not cached only the
    windows are fetched. where: as of Samples, or one file; a folder's files are taken in the order of their names, a
    window lies in one."""

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
            raise UsageError(f"window {window}, stride {stride}", why="both are 1 or more")
        self._contents: tuple[int, list[Content]] | None = None
        counts = [self._windows_of(one.size_bytes) for one in self._open()]
        self._ends = list(itertools.accumulate(counts))
        if not self._ends or not self._ends[-1]:
            raise PathNotFoundError(
                self.place.name, why=f"no file{_of(suffixes)} with a window of {window} in it"
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
        left = size_bytes // self._dtype.itemsize - self._window
        return left // self._stride + 1 if left >= 0 else 0

    def _open(self) -> list[Content]:
        """Once a process."""
        if self._contents is None or self._contents[0] != os.getpid():
            self._contents = os.getpid(), [self.place.open(name) for name in self.names]
        return self._contents[1]


class Shards(IterableDataset[dict[str, Any]]):
    """Tar files of samples: neighbours of one name up to the first dot are one sample, a dict of what comes after the
    dot ("jpg", "cls", …) → bytes, and "__key__"; `decode(sample)` makes of it what is given out; else the bytes become
    tensors. They are memoryviews of the mapped shard: nothing is copied.

    Shards are dealt to ranks and workers, each to one; within `Loader` in another order each epoch, and samples in a
    buffer of `shuffle` of them (0: in the order of the shard). UsageError where there are fewer shards than that."""

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
            raise PathNotFoundError(self.place.name, why=f"no {pattern} in it")
        self._decode = _tensors if decode is None else decode
        self._buffer = shuffle
        self._order: EpochOrder | None = None

    def in_order(self, order: EpochOrder) -> None:
        """For the next iteration."""
        self._order = order

    def __iter__(self) -> Iterator[Any]:
        order, worker = self._order or EpochOrder(), get_worker_info()
        count = 1 if worker is None else worker.num_workers
        number = 0 if worker is None else (worker.id + order.first) % count
        part, parts = order.rank * count + number, order.world * count
        if parts > len(self.names):
            raise UsageError(
                f"{len(self.names)} shards of {self.place.name}",
                why=f"{order.world} ranks with {count} workers each need {parts}",
                hint="use fewer workers, or smaller shards",
            )
        names, chance = list(self.names), random.Random(f"{order.seed} {order.epoch}")
        if order.shuffled:
            chance.shuffle(names)
        samples = self._samples(names[part::parts])
        if order.shuffled and self._buffer > 1:
            samples = _mixed(samples, self._buffer, random.Random(f"{order.seed} {order.epoch} {part}"))
        for at, sample in enumerate(samples):
            if at >= order.taken.get(number, 0):
                yield self._decode(sample)

    def _samples(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        for name in names:
            yield from samples_of(self.place.map(name), name)


def samples_of(shard: memoryview, name: str) -> Iterator[dict[str, Any]]:
    """Of one tar file. UsageError where it is none."""
    sample: dict[str, Any] = {}
    try:
        with tarfile.open(fileobj=_Mapped(shard), mode="r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, slash, last = member.name.rpartition("/")
                stem, _, extension = last.partition(".")
                key = folder + slash + stem
                if sample and sample["__key__"] != key:
                    yield sample
                    sample = {}
                sample["__key__"] = key
                sample[extension.lower()] = shard[member.offset_data : member.offset_data + member.size]
    except tarfile.TarError as error:
        raise UsageError(name, why=f"no tar file: {error}") from None
    if sample:
        yield sample


class _Mapped(io.RawIOBase):
    """A file of memory, without a copy of all of it."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        count = min(len(target), max(0, len(self._view) - self._at))
        target[:count] = self._view[self._at : self._at + count]
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self._view)}[whence]
        return self._at

    def tell(self) -> int:
        return self._at


class EpochOrder:
    """How one epoch goes on one rank. taken: samples that each worker gave out before, in this epoch. first: the one
    that is next: a DataLoader takes batches of its workers in turn, and begins with the first."""

    def __init__(
        self,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world: int = 1,
        shuffled: bool = False,
        taken: dict[int, int] | None = None,
        first: int = 0,
    ) -> None:
        self.seed, self.epoch, self.rank, self.world = seed, epoch, rank, world
        self.shuffled = shuffled
        self.taken = dict(taken or {})
        self.first = first


class Loader:
    """A DataLoader that shuffles, deals to ranks, and resumes: one `for` over it is one epoch, and `state_dict`, taken
    at any time, is of the batches that were given out, whatever the workers have read ahead.

    data: a data set of this module, or any of torch's with a length. workers: processes. rank, world: of
    torch.distributed where it runs, else of RANK and WORLD_SIZE. drop_last: as of DataLoader; all ranks have the same
    number of batches in any case: of data sets with a length by leaving out (drop_last) or repeating some samples.
    pin_memory: where CUDA is, unless it is said. More words go to the DataLoader."""

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
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size {batch_size}", why="it is 1 or more")
        self.data = data
        self._batch_size, self._drop_last = batch_size, drop_last
        self._shuffle, self._seed, self._workers = shuffle, seed, workers
        self._rank, self._world = _place_among_ranks(rank, world)
        self._collate = _Tagged(collate)
        self._options = {
            **options,
            "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
        }
        self.epoch = 0
        self._batches = self._next = 0
        self._taken: dict[int, int] = {}

    def __len__(self) -> int:
        """Batches of an epoch, on this rank. TypeError for shards: how many samples they have is not known."""
        if not isinstance(self.data, Sized):
            raise TypeError(f"{type(self.data).__name__} has no length")
        return len(_Batches(self._sampled(), 0, self._batch_size, drop_last=self._drop_last))

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch that was begun, or a whole one."""
        first, workers = self._next, max(1, self._workers)
        for worker, count, batch in self._loader():
            number = (worker + first) % workers
            self._batches, self._next = self._batches + 1, (number + 1) % workers
            self._taken[number] = self._taken.get(number, 0) + count
            yield batch
        self.epoch += 1
        self._batches, self._next, self._taken = 0, 0, {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "format": STATE_FORMAT,
            "epoch": self.epoch,
            "batches": self._batches,
            "taken": dict(self._taken),
            "next": self._next,
            "about": self._about(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """UsageError where data or loader are others than those of the state: then "the next batch" means nothing."""
        if state.get("format") != STATE_FORMAT:
            raise UsageError(
                "state of a loader", why=f"its format is {state.get('format')!r}, not {STATE_FORMAT}"
            )
        changed = [
            f"{key} was {state['about'].get(key)}, is {now}"
            for key, now in self._about().items()
            if state["about"].get(key) != now
        ]
        if changed and state["batches"]:
            raise UsageError(
                "state of a loader",
                why="; ".join(changed),
                hint="begin a new epoch: state['batches'] = 0, or make the loader as it was",
            )
        self.epoch, self._batches = state["epoch"], state["batches"]
        self._taken, self._next = (dict(state["taken"]), state["next"]) if state["batches"] else ({}, 0)

    def _about(self) -> dict[str, Any]:
        about = {
            "seed": self._seed,
            "shuffle": self._shuffle,
            "batch_size": self._batch_size,
            "world": self._world,
        }
        about["drop_last"] = self._drop_last
        if isinstance(self.data, Sized):
            return {**about, "samples": len(self.data)}
        names = getattr(self.data, "names", [])
        return {**about, "workers": self._workers, "shards": len(names)}

    def _loader(self) -> Iterator[tuple[int, int, Any]]:
        options = {"num_workers": self._workers, "collate_fn": self._collate, **self._options}
        if isinstance(self.data, Sized):
            sampled = self._sampled()
            batches = _Batches(sampled, self._batches, self._batch_size, drop_last=self._drop_last)
            return iter(DataLoader(self.data, batch_sampler=batches, **options))
        if isinstance(self.data, Shards):
            self.data.in_order(
                EpochOrder(
                    seed=self._seed,
                    epoch=self.epoch,
                    rank=self._rank,
                    world=self._world,
                    shuffled=self._shuffle,
                    taken=self._taken,
                    first=self._next,
                )
            )
        elif self._taken:
            raise UsageError(
                type(self.data).__name__, why="only Shards, and data with a length, can be resumed"
            )
        return iter(DataLoader(self.data, batch_size=self._batch_size, drop_last=self._drop_last, **options))

    def _sampled(self) -> list[int]:
        """This rank's samples of the epoch, in order."""
        assert isinstance(self.data, Sized)
        total = len(self.data)
        if self._shuffle:
            chance = torch.Generator().manual_seed(self._seed + self.epoch)
            order = torch.randperm(total, generator=chance).tolist()
        else:
            order = list(range(total))
        if self._drop_last:
            order = order[: total // self._world * self._world]
        else:
            order += (order * self._world)[: -total % self._world]
        return order[self._rank :: self._world]


class _Batches(Sampler[list[int]]):
    """skipped: batches that were given out before."""

    def __init__(self, samples: Sequence[int], skipped: int, size: int, *, drop_last: bool) -> None:
        end = len(samples) // size * size if drop_last else len(samples)
        self._samples, self._size = samples[skipped * size : end], size

    def __len__(self) -> int:
        return -(-len(self._samples) // self._size)

    def __iter__(self) -> Iterator[list[int]]:
        for at in range(0, len(self._samples), self._size):
            yield list(self._samples[at : at + self._size])


class _Tagged:
    """A batch with the worker that made it, and of how many samples."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> tuple[int, int, Any]:
        worker = get_worker_info()
        return (0 if worker is None else worker.id), len(samples), self._collate(samples)


def _mixed(samples: Iterator[Any], size: int, chance: random.Random) -> Iterator[Any]:
    """Through a buffer of that many: each goes to a place of its own chance."""
    buffer: list[Any] = []
    for sample in samples:
        if len(buffer) < size:
            buffer.append(sample)
            continue
        at = chance.randrange(size)
        yield buffer[at]
        buffer[at] = sample
    chance.shuffle(buffer)
    yield from buffer


def _place_among_ranks(rank: int | None, world: int | None) -> tuple[int, int]:
    if rank is None and world is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None or world is None or not 0 <= rank < world:
        raise UsageError(
            f"rank {rank} of {world}", why="both are given, or none, and the rank is one of them"
        )
    return rank, world


def _as_bytes(body: bytes, name: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(body), dtype=torch.uint8) if body else torch.empty(0, dtype=torch.uint8)


def _tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        word: torch.frombuffer(value, dtype=torch.uint8)
        if isinstance(value, memoryview) and len(value)
        else value
        for word, value in sample.items()
    }


def _of(suffixes: tuple[str, ...]) -> str:
    return f" with {', '.join(suffixes)}" if suffixes else ""
