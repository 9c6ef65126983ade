"""Save and load by torch.distributed.checkpoint: `HeadraceWriter` for save and async_save, `HeadraceReader` for load.

    writer = HeadraceWriter("/mnt/checkpoints/run7")           # one for the whole training
    dcp.save(state, checkpoint_id="4000", storage_writer=writer)   # 4000 is the step
    dcp.load(state, storage_reader=HeadraceReader("/mnt/checkpoints/run7"))

torch/distributed/checkpoint/storage.py defines the order of the calls. torch's planner decides which rank writes what,
also for another number of ranks. Here each rank writes a part as in headrace.checkpoint, and `finish`, which torch
calls on the coordinator only, commits. This module pickles nothing. torch's planner pickles values that are not tensors
(torch.save), and its loading unpickles them: load only checkpoints that you trust.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from headrace.base.decoding import convert
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
from headrace.checkpoint.data_versions import Data, resolve_versions
from headrace.checkpoint.job import SaveJob, SlotInbox, StageEvent
from headrace.checkpoint.manifest import Leaf, Manifest, RankPart
from headrace.checkpoint.memory import Bytes, page_aligned
from headrace.checkpoint.open_storage import storage_at
from headrace.checkpoint.part import PartSaver, manifest_of
from headrace.checkpoint.prune import prune
from headrace.checkpoint.restore import THREADS, PackReaders, Read, fetch, open_checkpoint, reads_of
from headrace.checkpoint.retention import Retention
from headrace.checkpoint.save import available_bytes
from headrace.checkpoint.saving import SaveHandle, SaveOptions
from headrace.checkpoint.stage import Arena, Stager, pin
from headrace.checkpoint.storage import CheckpointStorage
from headrace.checkpoint.tensors import HostLeaf
from headrace.checkpoint.worker_pool import WorkerPool

log = logging.getLogger(__name__)

THROUGH_MEMORY_BYTES_MAX = 256 << 20
"""Memory that a rank's load uses at a time for shards of which it needs only a part, in addition to the tensors."""
Id = str | os.PathLike[str] | None
Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class SaveOrder:
    """Carry the coordinator's instructions to a rank, with its plan."""

    save: layout.SaveId
    step: int
    rank: int
    ranks: int


@dataclass(frozen=True, slots=True)
class Planned(HostLeaf):
    """Hold a tensor that the planner creates when it is copied. value: the planner and its item."""

    def bytes(self) -> Any:
        planner, item = self.value
        tensor = planner.resolve_data(item)
        if tensor.device.type != "cpu":
            torch.accelerator.synchronize(tensor.device)
        return replace(self, value=tensor).plain_bytes()

    def plain_bytes(self) -> Any:
        return HostLeaf.bytes(self)


class HeadraceWriter(StorageWriter):
    """Write checkpoints of torch.distributed.checkpoint, many with one writer.

    A writer keeps the staging memory and knows which chunks the last checkpoint has. where: the directory of all
    checkpoints of this training. step: of the next save, where checkpoint_id does not name it. data: the sealed
    versions that it is trained on, as for `Saver.save`; the coordinator looks them up when a save begins.
    """

    def __init__(
        self,
        where: str | CheckpointStorage,
        *,
        step: int | None = None,
        options: SaveOptions | None = None,
        data: Data = None,
    ) -> None:
        super().__init__()
        self._data = data
        self._versions: dict[str, str] = {}
        self._storage = storage_at(where)
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
        """Set the step of the next save. checkpoint_id: the step, or a path that ends in it."""
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """Begin a new save. Raises UsageError without a step."""
        if not kwargs.get("use_collectives", True):
            raise NotSupportedError(
                "use_collectives=False", why="one rank commits a checkpoint for all ranks"
            )
        if self._step is None:
            raise UsageError("checkpoint_id", why="it names no step", hint='for example checkpoint_id="4000"')
        if is_coordinator:
            self._versions = resolve_versions(self._data)
        self._end_attempt()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name the attempt and number the ranks, on the coordinator. Raises NotSupportedError for a cached plan: a rank
        would take its own of an earlier save in the place of this one, with the name of that save."""
        assert self._step is not None
        if not all(getattr(rank_plan, "usable", True) for rank_plan in plans):
            raise NotSupportedError(
                "enable_plan_caching=True",
                why="a cached plan names the save that it was made for",
                hint="use a planner without it",
            )
        save = layout.save_id(self._step, self._run, self._saves)
        self._saves += 1
        return [
            replace(rank_plan, storage_data=SaveOrder(save, self._step, rank, len(plans)))
            for rank, rank_plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's part. Blocks until the part is durable."""
        order: SaveOrder = plan.storage_data
        self._attempt = Attempt(
            self._storage, order.save, order.step, order.rank, order.ranks, self._options.timeout_s
        )
        if self._parts is None:
            self._parts = PartSaver(self._storage, self._options, order.rank)
        leaves = [_host_leaf_of(item, planner) for item in plan.items]
        try:
            self._part = self._write(self._attempt, self._parts, leaves)
            self._attempt.deliver(self._part)
        except BaseException:
            self._parts.drop(self._attempt)
            raise
        results = [
            WriteResult(item.index, leaf.size_bytes, (order.rank, index))
            for index, (item, leaf) in enumerate(zip(plan.items, leaves, strict=True))
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def _write(self, attempt: Attempt, parts: PartSaver, host_leaves: list[HostLeaf]) -> RankPart:
        """Copy and write at the same time, in slots: host memory for two slots is enough."""
        size = sum(leaf.size_bytes for leaf in host_leaves)
        budget = self._options.budget_bytes or plan.budget(
            size // 2, slot_bytes=self._options.slot_bytes, available_bytes=available_bytes()
        )
        self._arena.allow(budget)
        base = parts.claim(attempt, full=False)
        pool = WorkerPool(self._options.threads, f"checkpoint-{attempt.step}")
        leaves = [
            Leaf(each.name, each.kind, each.size_bytes, each.dtype, list(each.shape)) for each in host_leaves
        ]
        handle, inbox = SaveHandle(attempt.step), SlotInbox(attempt.step, self._arena)
        job = SaveJob(handle, leaves, self._arena, self._options, pool, inbox)
        staging = threading.Thread(target=self._stage, args=(job, host_leaves), name="checkpoint-stage")
        try:
            staging.start()
        except RuntimeError:  # the system refuses a thread
            pool.close()
            raise
        try:
            return parts.write(job, attempt, ["n"], base).part
        finally:
            job.inbox.drain()
            staging.join()
            pool.close()
            if job.failure is not None:
                raise job.failure

    def _stage(self, job: SaveJob, host_leaves: list[HostLeaf]) -> None:
        try:
            # a pool of concurrent.futures takes no work once the interpreter exits, as after an async_save
            with closing(WorkerPool(self._options.copy_threads, "checkpoint-copy")) as copiers:
                stager = Stager(self._arena, copiers, chunk_bytes=self._options.chunk_bytes)
                job.inline = stager.stage(
                    host_leaves, job.inbox.put, lambda: job.inbox.put(StageEvent.STARVED)
                )
        except BaseException as error:
            job.failure = error
            job.inbox.put(StageEvent.CANCELLED)
            if not isinstance(error, Exception):
                raise
            log.debug("staging failed", exc_info=True)
            return
        job.inbox.put(StageEvent.STAGED)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit the checkpoint, on the coordinator only. On return the checkpoint exists and is durable."""
        attempt = self._attempt
        assert attempt is not None
        dcp_metadata = encode_metadata(metadata, results)
        manifest = manifest_of(
            attempt, attempt.gather(), metadata={}, data=self._versions, kind="dcp", dcp=dcp_metadata
        )
        attempt.publish(manifest)
        self._committed = True
        self._end_attempt()
        try:
            prune(self._storage, self._options.retention or Retention(), saved=attempt.step)
        except HeadraceError as error:  # the checkpoint is committed
            log.warning(
                "deleting old checkpoint files failed step=%d error=%s",
                attempt.step,
                error,
            )

    def _end_attempt(self) -> None:
        """End the previous save and remember its part if it was committed; other ranks look at the manifest."""
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
    """Read checkpoints of torch.distributed.checkpoint.

    step: the checkpoint to load, where checkpoint_id does not name it; None: the newest. All ranks must find the same
    checkpoint. unsafe_pickles: load values that are not tensors from any pickle, which can run code of everyone who can
    write to the directory. By default only pickles that `torch.load(weights_only=True)` accepts are loaded.
    """

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
        self._storage = storage_at(where)
        self._step = step
        self._threads = threads
        self._manifest: Manifest | None = None
        self._readers = PackReaders()
        self._leaf_numbers: dict[MetadataIndex, tuple[int, int]] = {}

    def reset(self, checkpoint_id: Id = None) -> None:
        self._readers.close()
        self._manifest = None
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    def read_metadata(self, *args: Any, **named: Any) -> Metadata:
        self._readers.close()
        self._manifest, self._readers = open_checkpoint(self._storage, self._step)
        if self._manifest.head.kind != "dcp":
            raise CheckpointMismatchError(
                f"{self._storage.name}, step {self._manifest.head.step}",
                why="torch.distributed.checkpoint did not save it",
                hint="load it with headrace.checkpoint.load",
            )
        return decode_metadata(self._manifest.body.dcp)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, **kwargs: Any) -> None:  # noqa: FBT001
        if self._manifest is None:  # torch read the metadata on another rank
            self.read_metadata()
        self._leaf_numbers = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._manifest is not None
        return replace(plan, storage_data=self._manifest.head.save)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        saves = {rank_plan.storage_data for rank_plan in plans}
        if len(saves) > 1:
            raise CheckpointFailedError(
                f"load from {self._storage.name}",
                why=f"the ranks read different checkpoints: {', '.join(sorted(saves))}",
                hint="name the step",
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read complete shards straight into the tensors, and parts of shards through limited memory."""
        for batch in self._batches(plan.items, planner):
            fetch([read for item in batch for read in item.reads], self._readers, threads=self._threads)
            for item in batch:
                if item.target is None and not self._unsafe_pickles:
                    item.check_pickle()
                item.give(planner)
        self._readers.close()
        self._manifest, self._readers = None, PackReaders()
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _batches(self, items: list[ReadItem], planner: LoadPlanner) -> Iterator[list[WantedItem]]:
        batch: list[WantedItem] = []
        size = 0
        for item in items:
            wanted_item = self._wanted(item, planner)
            batch.append(wanted_item)
            size += wanted_item.memory.nbytes if wanted_item.through_memory else 0
            if size >= THROUGH_MEMORY_BYTES_MAX:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _wanted(self, item: ReadItem, planner: LoadPlanner) -> WantedItem:
        assert self._manifest is not None
        if item.storage_index not in self._leaf_numbers:
            raise CorruptCheckpointError(item.storage_index.fqn, why="the manifest lists no bytes for it")
        part_number, leaf_number = self._leaf_numbers[item.storage_index]
        try:
            part = self._manifest.body.parts[part_number]
            leaf = part.leaves[leaf_number]
        except IndexError:
            raise CorruptCheckpointError(
                item.storage_index.fqn, why="the manifest lists its bytes in a part that does not exist"
            ) from None
        if item.type == LoadItemType.BYTE_IO:
            memory = page_aligned(leaf.size_bytes)
            return WantedItem(item, leaf, None, memory, 0, _reads(part, leaf, memory))
        target = planner.resolve_tensor(item).detach()
        if list(target.shape) != list(item.lengths) or str(target.dtype) != f"torch.{leaf.dtype}":
            why = f"saved as {leaf.dtype} {list(item.lengths)}, to be loaded as {target.dtype} {list(target.shape)}"
            raise CheckpointMismatchError(item.storage_index.fqn, why=why)
        target_bytes = tensors.bytes_of_target(target) if list(item.lengths) == leaf.shape else None
        if target_bytes is not None:
            return WantedItem(
                item, leaf, target, target_bytes, 0, _reads(part, leaf, target_bytes), through_memory=False
            )
        start, end = _hull(leaf, item)
        memory = page_aligned(end - start)
        return WantedItem(item, leaf, target, memory, start, _reads(part, leaf, memory, start, end))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Id) -> bool:
        return HeadraceWriter.validate_checkpoint_id(checkpoint_id)


@dataclass(frozen=True, slots=True)
class WantedItem:
    """Describe how to load one item of a plan.

    memory: bytes of the leaf from `start` on: the target's own, or a buffer (through_memory).
    """

    item: ReadItem
    leaf: Leaf
    target: torch.Tensor | None
    memory: Bytes
    start: int
    reads: list[Read]
    through_memory: bool = True

    def check_pickle(self) -> None:
        """Raise NotSupportedError for a value whose pickle could run code; the planner loads it unchecked."""
        try:
            torch.load(io.BytesIO(self.memory.tobytes()), weights_only=True)
        except Exception as error:  # noqa: BLE001  # whatever error torch raises, the value is not loaded
            raise NotSupportedError(
                self.leaf.name,
                why=f"it is a pickle that could run code: {str(error).splitlines()[0]}",
                hint="if you trust everyone who can write there, use HeadraceReader(..., unsafe_pickles=True)",
            ) from None

    def give(self, planner: LoadPlanner) -> None:
        """Pass the bytes, once read, to the tensor and to the planner."""
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
    """Return the number at the end: "4000", "step-4000", "run7/4000". Raises UsageError without one."""
    digits = re.search(r"(\d+)/?$", os.fspath(checkpoint_id))
    if digits is None:
        raise UsageError(f"checkpoint_id {checkpoint_id!r}", why="it does not end in the number of a step")
    return int(digits.group(1))


def encode_metadata(metadata: Metadata, results: list[list[WriteResult]]) -> dict[str, Any]:
    """Convert torch's metadata to plain JSON, for the manifest."""
    encoded_tensors: dict[str, Any] = {}
    blob_names: list[str] = []
    for name, described in metadata.state_dict_metadata.items():
        if isinstance(described, BytesStorageMetadata):
            blob_names.append(name)
            continue
        encoded_tensors[name] = {
            "dtype": str(described.properties.dtype).removeprefix("torch."),
            "layout": str(described.properties.layout).removeprefix("torch."),
            "memory_format": str(described.properties.memory_format).removeprefix("torch."),
            "requires_grad": described.properties.requires_grad,
            "pin_memory": described.properties.pin_memory,
            "size": list(described.size),
            "chunks": [[list(chunk.offsets), list(chunk.sizes)] for chunk in described.chunks],
        }
    tree, leaves = tensors.flatten(metadata.planner_data)
    if leaves:
        raise NotSupportedError("planner_data", why="tensors in a planner's metadata can't be saved")
    items = [
        [
            result.index.fqn,
            None if result.index.offset is None else list(result.index.offset),
            *result.storage_data,
        ]
        for rank_results in results
        for result in rank_results
    ]
    return {"tensors": encoded_tensors, "bytes": blob_names, "planner": tree, "items": items}


def decode_metadata(encoded: dict[str, Any]) -> Metadata:
    """Return torch's metadata; its storage_data maps an index to (number of the part, number of the leaf)."""
    try:
        return _decode_metadata(convert(encoded, _Metadata))
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
    """Define the JSON. items: name, offsets of a shard, number of its part, number of its leaf."""

    tensors: dict[str, _TensorMetadata]
    bytes: list[str]
    planner: Any
    items: list[tuple[str, list[Count] | None, Count, Count]]


def _torch_object(name: str, kind: type) -> Any:
    """Return torch's object of that name and kind; a manifest can name no other attribute of torch."""
    value = getattr(torch, name, None)
    if not isinstance(value, kind):
        raise CorruptCheckpointError(
            "the manifest's metadata", why=f"torch has no {kind.__name__} {name[:40]!r}"
        )
    return value


def _decode_metadata(encoded: _Metadata) -> Metadata:
    metadata: dict[str, Any] = {name: BytesStorageMetadata() for name in encoded.bytes}
    for name, tensor in encoded.tensors.items():
        properties = TensorProperties(
            dtype=_torch_object(tensor.dtype, torch.dtype),
            layout=_torch_object(tensor.layout, torch.layout),
            requires_grad=tensor.requires_grad,
            memory_format=_torch_object(tensor.memory_format, torch.memory_format),
            pin_memory=tensor.pin_memory,
        )
        chunks = [ChunkStorageMetadata(torch.Size(start), torch.Size(size)) for start, size in tensor.chunks]
        metadata[name] = TensorStorageMetadata(properties, torch.Size(tensor.size), chunks)
    leaf_numbers = {
        MetadataIndex(name, None if offset is None else torch.Size(offset)): (part, leaf_number)
        for name, offset, part, leaf_number in encoded.items
    }
    planner_data = tensors.build(encoded.planner, lambda leaf_number, path: None, lambda name: True)
    return Metadata(metadata, planner_data=planner_data, storage_data=leaf_numbers)


def _host_leaf_of(item: WriteItem, planner: SavePlanner) -> HostLeaf:
    name = item.index.fqn
    if item.type == WriteItemType.BYTE_IO:
        data = planner.resolve_data(item)
        assert isinstance(data, io.BytesIO)
        memory = np.frombuffer(data.getbuffer(), np.uint8)
        return HostLeaf(name, "blob", "", (), memory.nbytes, memory)
    tensor_data = item.tensor_data
    assert tensor_data is not None
    if tensor_data.properties.layout != torch.strided:
        raise NotSupportedError(
            name, why=f"a tensor with the layout {tensor_data.properties.layout} can't be saved"
        )
    shape = tuple(tensor_data.chunk.sizes)
    dtype = tensor_data.properties.dtype
    size = int(np.prod(shape, dtype=np.int64)) * torch.empty(0, dtype=dtype).element_size()
    return Planned(name, "torch", str(dtype).removeprefix("torch."), shape, size, (planner, item))


def _reads(part: RankPart, leaf: Leaf, memory: Bytes, start: int = 0, end: int | None = None) -> list[Read]:
    if leaf.inline:
        memory[:] = np.frombuffer(leaf.inline, np.uint8)[start:end]
    return reads_of(part, leaf, memory, start, end)


def _hull(leaf: Leaf, item: ReadItem) -> tuple[int, int]:
    """Return the byte range of the leaf that has the item's region, widened to full chunks, the units of checksums."""
    if 0 in item.lengths or not leaf.size_bytes:
        return 0, 0
    strides = _strides(leaf.shape)
    count = int(np.prod(leaf.shape, dtype=np.int64))
    item_bytes = leaf.size_bytes // count
    first = sum(o * s for o, s in zip(item.storage_offsets, strides, strict=True))
    last = first + sum((length - 1) * s for length, s in zip(item.lengths, strides, strict=True))
    start, end, position = first * item_bytes, (last + 1) * item_bytes, 0
    if not leaf.chunks:
        return 0, leaf.size_bytes
    range_start, range_end = leaf.size_bytes, 0
    for chunk in leaf.chunks:
        if position < end and position + chunk.length > start:
            range_start, range_end = min(range_start, position), max(range_end, position + chunk.length)
        position += chunk.length
    return range_start, range_end


def _strides(shape: list[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
