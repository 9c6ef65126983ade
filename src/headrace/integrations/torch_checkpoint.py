"""torch.distributed.checkpoint on Headrace's checkpoints: `HeadraceWriter` for save and async_save, `HeadraceReader`.

    writer = HeadraceWriter("/mnt/checkpoints/run7")           # one for the whole training
    dcp.save(state, checkpoint_id="4000", storage_writer=writer)   # 4000 is the step
    dcp.load(state, storage_reader=HeadraceReader("/mnt/checkpoints/run7"))

The order of calls is torch/distributed/checkpoint/storage.py's. torch's planner says which rank writes what, also for
another number of ranks; here each rank writes a part as in headrace.checkpoint, and `finish`, which only the
coordinator is asked for, commits. Nothing here is pickled. What isn't a tensor torch's planner pickles itself
(torch.save), and its loading unpickles: load only what you trust.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from headrace.base.missing_extras import needs_extra

with needs_extra(__name__, extra="torch"):
    import numpy as np
    import torch
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        StorageMeta,
        TensorProperties,
        TensorStorageMetadata,
    )
    from torch.distributed.checkpoint.planner import (
        LoadItemType,
        LoadPlan,
        LoadPlanner,
        ReadItem,
        SavePlan,
        SavePlanner,
        WriteItem,
        WriteItemType,
    )
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
    from torch.futures import Future

from headrace.base.errors import (
    CheckpointFailedError,
    CheckpointMismatchError,
    CorruptCheckpointError,
    HeadraceError,
    NotSupportedError,
    UsageError,
)
from headrace.checkpoint import layout, plan, tensors
from headrace.checkpoint.commit import Attempt
from headrace.checkpoint.job import SaveJob, StageEvent
from headrace.checkpoint.manifest import Leaf, Manifest, RankPart
from headrace.checkpoint.memory import Bytes, page_aligned
from headrace.checkpoint.part import PartSaver, manifest_of
from headrace.checkpoint.prune import prune
from headrace.checkpoint.restore import THREADS, PackReaders, Read, fetch, open_checkpoint, reads_of
from headrace.checkpoint.retention import Retention
from headrace.checkpoint.save import available_bytes
from headrace.checkpoint.saving import SaveHandle, SaveOptions
from headrace.checkpoint.stage import Arena, Stager, pin
from headrace.checkpoint.storage import CheckpointStorage, place_of
from headrace.checkpoint.tensors import HostLeaf
from headrace.checkpoint.worker_pool import WorkerPool

log = logging.getLogger(__name__)

THROUGH_MEMORY_BYTES_MAX = 256 << 20
"""What a load reads beside the tensors themselves at a time, on a rank: where it needs parts of shards only."""
Id = str | os.PathLike[str] | None
Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """What the coordinator tells a rank with its plan."""

    save: layout.SaveId
    step: int
    rank: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Planned(HostLeaf):
    """A tensor that the planner makes when it is copied. value: the planner and its item."""

    def bytes(self) -> Any:
        planner, item = self.value
        tensor = planner.resolve_data(item)
        if tensor.device.type != "cpu":
            torch.accelerator.synchronize(tensor.device)
        return replace(self, value=tensor).plain_bytes()

    def plain_bytes(self) -> Any:
        return HostLeaf.bytes(self)


class HeadraceWriter(StorageWriter):
    """where: the folder of all checkpoints of this training. step: of the next save, where no checkpoint_id says it.

    One writer for many saves: it keeps the staging memory, and knows what the last checkpoint holds.
    """

    def __init__(
        self, where: str | CheckpointStorage, *, step: int | None = None, options: SaveOptions | None = None
    ) -> None:
        super().__init__()
        self._place = place_of(where)
        self._options = options or SaveOptions()
        self._step = step
        self._run = secrets.token_hex(6)
        self._saves = 0
        self._arena = Arena(self._options.slot_bytes, on_new=pin)
        self._parts: PartSaver | None = None
        self._attempt: Attempt | None = None
        self._part: RankPart | None = None
        self._committed = False

    def reset(self, checkpoint_id: Id = None) -> None:
        """checkpoint_id: the step; of a path its last word."""
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """A new save begins."""
        if not kwargs.get("use_collectives", True):
            raise NotSupportedError(
                "use_collectives=False", why="a checkpoint is committed once, for all ranks"
            )
        if self._step is None:
            raise UsageError("checkpoint_id", why="no step is given", hint='for example checkpoint_id="4000"')
        self._end_attempt()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """The coordinator names the attempt, and counts the ranks."""
        assert self._step is not None
        save = layout.save_id(self._step, self._run, self._saves)
        self._saves += 1
        return [
            replace(one, storage_data=SaveOrder(save, self._step, rank, len(plans)))
            for rank, one in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Blocks until this rank's part is durable."""
        order: SaveOrder = plan.storage_data
        self._attempt = Attempt(
            self._place, order.save, order.step, order.rank, order.ranks, self._options.timeout_s
        )
        if self._parts is None:
            self._parts = PartSaver(self._place, self._options, order.rank)
        held = [_held_of(item, planner) for item in plan.items]
        try:
            self._part = self._write(self._attempt, self._parts, held)
            self._attempt.deliver(self._part)
        except BaseException:
            self._parts.drop(self._attempt)
            raise
        results = [
            WriteResult(item.index, one.size_bytes, (order.rank, place))
            for place, (item, one) in enumerate(zip(plan.items, held, strict=True))
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write(self, attempt: Attempt, parts: PartSaver, held: list[HostLeaf]) -> RankPart:
        """Copies and writes at the same time, in slots: host memory for two of them is enough."""
        size = sum(one.size_bytes for one in held)
        budget = self._options.budget_bytes or plan.budget(
            size // 2, slot_bytes=self._options.slot_bytes, available_bytes=available_bytes()
        )
        self._arena.allow(budget)
        base = parts.claim(attempt, full=False)
        crew = WorkerPool(self._options.threads, f"checkpoint-{attempt.step}")
        leaves = [Leaf(one.name, one.kind, one.size_bytes, one.dtype, list(one.shape)) for one in held]
        job = SaveJob(SaveHandle(attempt.step), leaves, self._arena, self._options, crew)
        staging = threading.Thread(target=self._stage, args=(job, held), name="checkpoint-stage")
        staging.start()
        try:
            return parts.write(job, attempt, ["n"], base).part
        finally:
            job.drain()
            staging.join()
            crew.close()
            if job.failure is not None:
                raise job.failure

    def _stage(self, job: SaveJob, held: list[HostLeaf]) -> None:
        with ThreadPoolExecutor(self._options.copy_threads, "checkpoint-copy") as copiers:
            stager = Stager(self._arena, copiers, chunk_bytes=self._options.chunk_bytes)
            try:
                job.inline = stager.stage(held, job.inbox.put, lambda: job.inbox.put(StageEvent.STARVED))
            except BaseException as error:
                job.failure = error
                job.inbox.put(StageEvent.CANCELLED)
                if not isinstance(error, Exception):
                    raise
                log.debug("staging failed", exc_info=True)
                return
        job.inbox.put(StageEvent.STAGED)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The commit; on the coordinator only. On return the checkpoint is there."""
        attempt = self._attempt
        assert attempt is not None
        about = encode_metadata(metadata, results)
        attempt.publish(manifest_of(attempt, attempt.gather(), metadata={}, kind="dcp", dcp=about))
        self._committed = True
        self._end_attempt()
        try:
            prune(self._place, self._options.retention or Retention())
        except HeadraceError as error:  # the checkpoint is there all the same
            log.warning("leftovers of a checkpoint stay step=%d error=%s", attempt.step, error)

    def _end_attempt(self) -> None:
        """Of the save before: whether it was committed, the coordinator knows, and others see."""
        attempt, self._attempt = self._attempt, None
        if attempt is None or self._parts is None:
            return
        if self._part is not None and (self._committed or attempt.is_committed()):
            self._parts.remember(attempt, self._part)
        self._part, self._committed = None, False
        attempt.end()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return checkpoint_id is not None and re.search(r"(\d+)/?$", os.fspath(checkpoint_id)) is not None

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=str(self._step), save_id=f"{self._run}{self._saves}")


class HeadraceReader(StorageReader):
    """step: which checkpoint, where no checkpoint_id says it; None: the newest. All ranks must find the same one.
    unsafe_pickles: values that are no tensors may be any pickle, which runs code of whoever can write into the folder;
    else only what `torch.load(weights_only=True)` takes."""

    def __init__(
        self,
        where: str | CheckpointStorage,
        *,
        step: int | None = None,
        threads: int = THREADS,
        unsafe_pickles: bool = False,
    ) -> None:
        super().__init__()
        self._unsafe_pickles = unsafe_pickles
        self._place = place_of(where)
        self._step = step
        self._threads = threads
        self._manifest: Manifest | None = None
        self._sources = PackReaders()
        self._at: dict[MetadataIndex, tuple[int, int]] = {}

    def reset(self, checkpoint_id: Id = None) -> None:
        self._sources.close()
        self._manifest = None
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **named: Any) -> Metadata:
        self._sources.close()
        self._manifest, self._sources = open_checkpoint(self._place, self._step)
        if self._manifest.head.kind != "dcp":
            raise CheckpointMismatchError(
                f"{self._place.name}, step {self._manifest.head.step}",
                why="not saved by torch.distributed.checkpoint",
                hint="load it with headrace.checkpoint.load",
            )
        return decode_metadata(self._manifest.body.dcp)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, **kwargs: Any) -> None:  # noqa: FBT001
        if self._manifest is None:  # another rank has read the metadata
            self.read_metadata()
        self._at = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._manifest is not None
        return replace(plan, storage_data=self._manifest.head.save)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        found = {one.storage_data for one in plans}
        if len(found) > 1:
            raise CheckpointFailedError(
                f"load from {self._place.name}",
                why=f"the ranks found different checkpoints: {', '.join(sorted(found))}",
                hint="give the step",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Whole shards straight into the tensors; parts of shards through memory of a limited size."""
        for batch in self._batches(plan.items, planner):
            fetch([read for one in batch for read in one.reads], self._sources, threads=self._threads)
            for one in batch:
                if one.target is None and not self._unsafe_pickles:
                    one.check_pickle()
                one.give(planner)
        self._sources.close()
        self._manifest, self._sources = None, PackReaders()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _batches(self, items: list[ReadItem], planner: LoadPlanner) -> Iterator[list[WantedItem]]:
        batch: list[WantedItem] = []
        size = 0
        for item in items:
            one = self._wanted(item, planner)
            batch.append(one)
            size += one.memory.nbytes if one.through_memory else 0
            if size >= THROUGH_MEMORY_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _wanted(self, item: ReadItem, planner: LoadPlanner) -> WantedItem:
        assert self._manifest is not None
        if item.storage_index not in self._at:
            raise CorruptCheckpointError(item.storage_index.fqn, why="the manifest does not name its bytes")
        part_number, place = self._at[item.storage_index]
        try:
            part = self._manifest.body.parts[part_number]
            leaf = part.leaves[place]
        except IndexError:
            raise CorruptCheckpointError(item.storage_index.fqn, why="its bytes are nowhere") from None
        if item.type == LoadItemType.BYTE_IO:
            memory = page_aligned(leaf.size_bytes)
            return WantedItem(item, leaf, None, memory, 0, _reads(part, leaf, memory))
        target = planner.resolve_tensor(item).detach()
        if list(target.shape) != list(item.lengths) or str(target.dtype) != f"torch.{leaf.dtype}":
            why = f"saved as {leaf.dtype} {list(item.lengths)}, wanted as {target.dtype} {list(target.shape)}"
            raise CheckpointMismatchError(item.storage_index.fqn, why=why)
        own = tensors.bytes_of_target(target) if list(item.lengths) == leaf.shape else None
        if own is not None:
            return WantedItem(item, leaf, target, own, 0, _reads(part, leaf, own), through_memory=False)
        start, end = _hull(leaf, item)
        memory = page_aligned(end - start)
        return WantedItem(item, leaf, target, memory, start, _reads(part, leaf, memory, start, end))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return HeadraceWriter.validate_checkpoint_id(checkpoint_id)


@dataclass(frozen=True, slots=True)
class WantedItem:
    """What one item of a plan needs. memory: bytes of the leaf from `start` on, the target's own or beside it."""

    item: ReadItem
    leaf: Leaf
    target: torch.Tensor | None
    memory: Bytes
    start: int
    reads: list[Read]
    through_memory: bool = True

    def check_pickle(self) -> None:
        """Hold a value that is no tensor against what is safe to load; the planner loads it without a check."""
        try:
            torch.load(io.BytesIO(self.memory.tobytes()), weights_only=True)
        except Exception as error:  # noqa: BLE001  # whatever it is that stops torch, it is not loaded
            raise NotSupportedError(
                self.leaf.name,
                why=f"it is a pickle that could run code: {str(error).splitlines()[0]}",
                hint="HeadraceReader(..., unsafe_pickles=True) loads it, where you trust all who write to this folder",
            ) from None

    def give(self, planner: LoadPlanner) -> None:
        """The bytes are there: to the tensor, and to the planner."""
        if self.target is None:
            planner.load_bytes(self.item, io.BytesIO(self.memory.tobytes()))
            return
        if self.through_memory and self.memory.nbytes:
            flat = torch.from_numpy(self.memory).view(self.target.dtype)
            strides = _strides(self.leaf.shape)
            first = sum(o * s for o, s in zip(self.item.storage_offsets, strides, strict=True))
            first -= self.start // self.target.element_size()
            self.target.copy_(flat.as_strided(tuple(self.item.lengths), strides, first))
        planner.commit_tensor(self.item, self.target)


def step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    """The number at the end: "4000", "step-4000", "run7/4000"."""
    found = re.search(r"(\d+)/?$", os.fspath(checkpoint_id))
    if found is None:
        raise UsageError(f"checkpoint_id {checkpoint_id!r}", why="it does not end in a step's number")
    return int(found.group(1))


def encode_metadata(metadata: Metadata, results: list[list[WriteResult]]) -> dict[str, Any]:
    """What the manifest keeps of torch's metadata, plain."""
    kept: dict[str, Any] = {}
    plain: list[str] = []
    for name, one in metadata.state_dict_metadata.items():
        if isinstance(one, BytesStorageMetadata):
            plain.append(name)
            continue
        kept[name] = {
            "dtype": str(one.properties.dtype).removeprefix("torch."),
            "layout": str(one.properties.layout).removeprefix("torch."),
            "memory_format": str(one.properties.memory_format).removeprefix("torch."),
            "requires_grad": one.properties.requires_grad,
            "pin_memory": one.properties.pin_memory,
            "size": list(one.size),
            "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in one.chunks],
        }
    tree, held = tensors.flatten(metadata.planner_data)
    if held:
        raise NotSupportedError("planner_data", why="this planner keeps tensors in its metadata")
    items = [
        [one.index.fqn, None if one.index.offset is None else list(one.index.offset), *one.storage_data]
        for of_rank in results
        for one in of_rank
    ]
    return {"tensors": kept, "bytes": plain, "planner": tree, "items": items}


def decode_metadata(about: dict[str, Any]) -> Metadata:
    """storage_data: from an index to the part's number and the leaf's place in it."""
    try:
        return _decode_metadata(msgspec.convert(about, _Metadata))
    except msgspec.ValidationError as error:
        raise CorruptCheckpointError(
            "the manifest's metadata", why=str(error), hint="load another step"
        ) from None


class _TensorMetadata(msgspec.Struct, frozen=True):
    dtype: str
    layout: str
    memory_format: str
    requires_grad: bool
    pin_memory: bool
    size: list[Count]
    chunks: list[tuple[list[Count], list[Count]]]


class _Metadata(msgspec.Struct, frozen=True):
    """items: name, offsets of a shard, number of its part, place of its leaf."""

    tensors: dict[str, _TensorMetadata]
    bytes: list[str]
    planner: Any
    items: list[tuple[str, list[Count] | None, Count, Count]]


def _torch_word(word: str, kind: type) -> Any:
    """Return torch's object of that name, of that kind only: a manifest names no other attribute of torch."""
    value = getattr(torch, word, None)
    if not isinstance(value, kind):
        raise CorruptCheckpointError(
            "the manifest's metadata", why=f"torch has no {kind.__name__} {word[:40]!r}"
        )
    return value


def _decode_metadata(about: _Metadata) -> Metadata:
    kept: dict[str, Any] = {name: BytesStorageMetadata() for name in about.bytes}
    for name, tensor in about.tensors.items():
        properties = TensorProperties(
            dtype=_torch_word(tensor.dtype, torch.dtype),
            layout=_torch_word(tensor.layout, torch.layout),
            requires_grad=tensor.requires_grad,
            memory_format=_torch_word(tensor.memory_format, torch.memory_format),
            pin_memory=tensor.pin_memory,
        )
        chunks = [ChunkStorageMetadata(torch.Size(start), torch.Size(size)) for start, size in tensor.chunks]
        kept[name] = TensorStorageMetadata(properties, torch.Size(tensor.size), chunks)
    at = {
        MetadataIndex(name, None if offset is None else torch.Size(offset)): (part, place)
        for name, offset, part, place in about.items
    }
    planner_data = tensors.build(about.planner, lambda place, path: None, lambda name: True)
    return Metadata(kept, planner_data=planner_data, storage_data=at)


def _held_of(item: WriteItem, planner: SavePlanner) -> HostLeaf:
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        data = planner.resolve_data(item)
        assert isinstance(data, io.BytesIO)
        memory = np.frombuffer(data.getbuffer(), np.uint8)
        return HostLeaf(name, "blob", "", (), memory.nbytes, memory)
    about = item.tensor_data
    assert about is not None
    if about.properties.layout != torch.strided:
        raise NotSupportedError(name, why=f"a tensor that is {about.properties.layout} can't be saved")
    shape = tuple(about.chunk.sizes)
    dtype = about.properties.dtype
    size = int(np.prod(shape, dtype=np.int64)) * torch.empty(0, dtype=dtype).element_size()
    return Planned(name, "torch", str(dtype).removeprefix("torch."), shape, size, (planner, item))


def _reads(part: RankPart, leaf: Leaf, memory: Bytes, start: int = 0, end: int | None = None) -> list[Read]:
    if leaf.inline:
        memory[:] = np.frombuffer(leaf.inline, np.uint8)[start:end]
    return reads_of(part, leaf, memory, start, end)


def _hull(leaf: Leaf, item: ReadItem) -> tuple[int, int]:
    """The bytes of the leaf that hold the item's region, out to the edges of chunks, which are checked as a whole."""
    if 0 in item.lengths or not leaf.size_bytes:
        return 0, 0
    strides = _strides(leaf.shape)
    count = int(np.prod(leaf.shape, dtype=np.int64))
    each = leaf.size_bytes // count
    first = sum(o * s for o, s in zip(item.storage_offsets, strides, strict=True))
    last = first + sum((length - 1) * s for length, s in zip(item.lengths, strides, strict=True))
    start, end, at = first * each, (last + 1) * each, 0
    if not leaf.chunks:
        return 0, leaf.size_bytes
    low, high = leaf.size_bytes, 0
    for chunk in leaf.chunks:
        if at < end and at + chunk.length > start:
            low, high = min(low, at), max(high, at + chunk.length)
        at += chunk.length
    return low, high


def _strides(shape: list[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
