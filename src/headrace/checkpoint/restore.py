"""Restore a checkpoint; `load` is the entry point. save.py is the other direction.

`load` reads and checks the manifest, then allocates memory or uses the caller's. Threads then read chunks straight into
it, in the order of the packs, and compare each with its hash.

A compressed chunk, or one whose target is not contiguous or is on a device, passes through a buffer of its thread. A
chunk that may be mapped and is in the page cache is not read: the pack's own pages replace its memory.
"""

from __future__ import annotations

import fnmatch
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.base.errors import (
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CorruptCheckpointError,
    PathNotFoundError,
)
from headrace.checkpoint import folder, layout, plan, tensors
from headrace.checkpoint.compression import decompress
from headrace.checkpoint.manifest import Chunk, Leaf, Manifest, RankPart
from headrace.checkpoint.memory import Bytes, is_own_mapping, page_aligned
from headrace.checkpoint.open_storage import storage_at
from headrace.checkpoint.pack import key_of
from headrace.checkpoint.storage import ALIGN_BYTES, CheckpointStorage, FileReader
from headrace.checkpoint.worker_pool import WorkerPool

THREADS = 4
"""Threads that read and check chunks."""
MAPPED_MAX = 20_000
"""Most chunks that one load maps. Each can be a mapping of its own, and a process may have 65,530 of them."""


@dataclass(frozen=True, slots=True)
class Read:
    """Describe the read of one chunk of a leaf.

    target: its memory; None to only check the chunk. mapped: pages of the pack may replace the memory's pages.
    """

    leaf: Leaf
    pack: str
    chunk: Chunk
    target: Bytes | None
    mapped: bool = False


def load(
    where: str | CheckpointStorage,
    step: int | None = None,
    *,
    rank: int = 0,
    only: Sequence[str] = (),
    into: Any = None,
    threads: int = THREADS,
    mapped: bool = False,
) -> Any:
    """Return the state that a rank saved, of the newest checkpoint or of a step. Blocks.

    only: patterns of names (`model.*`; keys joined by dots). Values that match none are left out of dicts, and are None
    in lists and tuples. into: a state of the same form. Its tensors and arrays are restored in place, and the returned
    state contains them.

    mapped: chunks in the page cache are not copied. New tensors then point to pages of the packs, which remain valid
    when the packs are pruned; a page is copied at the first write.

    Every chunk is compared with its hash. Raises CorruptCheckpointError if one differs; the contents of `into` are then
    undefined. Raises CheckpointNotFoundError, and CheckpointMismatchError if `into` has another form.
    """
    storage = storage_at(where)
    return with_readers(
        storage,
        step,
        lambda manifest, readers: _load(
            storage, manifest, readers, _LoadRequest(rank, only, into, threads, mapped)
        ),
    )


@dataclass(frozen=True, slots=True)
class _LoadRequest:
    rank: int
    only: Sequence[str]
    into: Any
    threads: int
    mapped: bool


def _load(storage: CheckpointStorage, manifest: Manifest, readers: PackReaders, request: _LoadRequest) -> Any:
    """Return the state of one part. Every target is checked before the first byte is read."""
    part = part_of(manifest, request.rank, storage)
    targets = _Targets(part, request.into, mapped=request.mapped)
    is_selected = matcher(request.only)
    # every tensor gets its memory before the first byte is read, so a mismatch changes nothing
    state = tensors.build(part.tree, targets.prepare, is_selected)
    if state is tensors.MISSING:
        raise CheckpointNotFoundError(
            f"{storage.name}, step {manifest.head.step}", why=f"nothing is named as {', '.join(request.only)}"
        )
    fetch(targets.reads, readers, threads=request.threads)
    for leaf, target, memory in targets.through_memory:
        tensors.fill(target, leaf, memory)
    return tensors.build(part.tree, targets.restored, is_selected) if targets.has_scalars else state


class _Targets:
    """Collect the targets of a part's leaves, and the reads that fill them."""

    def __init__(self, part: RankPart, into: Any, *, mapped: bool) -> None:
        self._part = part
        self._into = into
        self._mapped = mapped
        self._values: dict[int, Any] = {}
        self._memory: dict[int, Bytes] = {}
        self.reads: list[Read] = []
        self.through_memory: list[tuple[Leaf, Any, Bytes]] = []
        self.has_scalars = False

    def prepare(self, leaf_number: int, path: tensors.Path) -> Any:
        """Return the value of a leaf before its bytes are read, and collect the reads that fill it."""
        if leaf_number >= len(self._part.leaves):
            raise CorruptCheckpointError(tensors.where(path), why=f"there is no leaf {leaf_number}")
        leaf = self._part.leaves[leaf_number]
        if leaf.kind == "scalar":
            self.has_scalars = True
        if self._into is not None and leaf.kind != "scalar":
            return self._prepare_target(leaf_number, leaf, path)
        if leaf_number not in self._values:
            value, memory = tensors.new_value(leaf)
            self._read(leaf, memory, mapped=self._mapped and is_own_mapping(memory))
            self._values[leaf_number] = value
        return self._values[leaf_number]

    def restored(self, leaf_number: int, path: tensors.Path) -> Any:
        """Return the value of a leaf after its bytes were read."""
        leaf = self._part.leaves[leaf_number]
        if self._into is not None and leaf.kind != "scalar":
            return tensors.inner(self._into, path)
        return tensors.finished(leaf, self._values[leaf_number])

    def _prepare_target(self, leaf_number: int, leaf: Leaf, path: tensors.Path) -> Any:
        target = tensors.inner(self._into, path)
        if target is tensors.MISSING:
            raise CheckpointMismatchError(
                tensors.where(path),
                why="it was saved, but `into` has no such place",
                hint="leave it out by `only`",
            )
        tensors.check_target(leaf, target)
        memory = tensors.bytes_of_target(target)
        if memory is None:
            if leaf_number not in self._memory:
                memory = self._memory[leaf_number] = page_aligned(leaf.size_bytes)
                self._read(leaf, memory, mapped=is_own_mapping(memory))  # the memory is only a buffer
            self.through_memory.append((leaf, target, self._memory[leaf_number]))
        else:
            self._read(leaf, memory, mapped=False)
        return target

    def _read(self, leaf: Leaf, memory: Bytes, *, mapped: bool) -> None:
        if leaf.inline:
            memory[:] = np.frombuffer(leaf.inline, np.uint8)
        for read in reads_of(self._part, leaf, memory):
            self.reads.append(replace(read, mapped=mapped and len(self.reads) < MAPPED_MAX))


def reads_of(
    part: RankPart, leaf: Leaf, memory: Bytes | None, start: int = 0, end: int | None = None
) -> list[Read]:
    """Return the reads of a leaf's chunks in [start, end), both at chunk boundaries; memory is that range only."""
    reads, position = [], 0
    end = leaf.size_bytes if end is None else end
    for chunk in leaf.chunks:
        if start <= position < end:
            target = None if memory is None else memory[position - start : position - start + chunk.length]
            reads.append(Read(leaf, part.packs[chunk.pack], chunk, target))
        position += chunk.length
    return reads


def fetch(reads: Iterable[Read], readers: PackReaders, *, threads: int) -> None:
    """Perform all reads and check the chunks. The first error is raised once all threads have ended."""
    ordered = sorted(reads, key=lambda read: (read.pack, read.chunk.offset))
    if not ordered:
        return
    pool = WorkerPool(min(threads, len(ordered)), "checkpoint-read")
    failed = threading.Event()
    buffers = threading.local()

    def fetch_unless_failed(read: Read) -> None:
        if failed.is_set():
            return
        try:
            _fetch_one(read, readers, buffers)
        except BaseException:
            failed.set()
            raise

    try:
        futures: list[Future[None]] = [pool.submit(fetch_unless_failed, read) for read in ordered]
    finally:
        pool.close()
    for future in futures:
        future.result()


def _fetch_one(read: Read, readers: PackReaders, buffers: threading.local) -> None:
    chunk, target = read.chunk, read.target
    reader = readers.of(read.pack)
    is_direct = target is not None and not chunk.codec and chunk.length % ALIGN_BYTES == 0
    if is_direct and target is not None and target.ctypes.data % ALIGN_BYTES == 0:
        if not (read.mapped and reader.map_into(target.data, chunk.offset)):
            reader.read_into(target.data, chunk.offset)
    else:
        packed = _buffer(buffers, "packed", chunk.stored_bytes)
        reader.read_into(packed.data, chunk.offset)
        if target is None:
            target = _buffer(buffers, "plain", chunk.length)[: chunk.length]
        if chunk.codec:
            decompress(packed[: chunk.stored_bytes].data, target, chunk.codec, _description(read))
        else:
            target[:] = packed[: chunk.length]
    if key_of(target) != (chunk.hash, chunk.length):
        raise CorruptCheckpointError(
            _description(read), why="its bytes do not match their checksum", hint="load another step"
        )


def _description(read: Read) -> str:
    return f"{read.leaf.name}, in {read.pack} at {read.chunk.offset}"


def _buffer(buffers: threading.local, name: str, size_bytes: int) -> Bytes:
    """Return this thread's buffer of at least that size, padded to full pages."""
    padded = plan.align(size_bytes, ALIGN_BYTES)
    buffer: Bytes | None = getattr(buffers, name, None)
    if buffer is None or len(buffer) < padded:
        buffer = page_aligned(padded)
        setattr(buffers, name, buffer)
    return buffer[:padded]


@dataclass
class PackReaders:
    """Hold the packs of a manifest open: open packs remain readable when they are pruned.

    They are closed by `close`, or when nothing refers to this object any more.
    """

    by_name: dict[str, FileReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weakref.finalize(self, _close_readers, self.by_name).atexit = False

    def of(self, pack: str) -> FileReader:
        return self.by_name[pack]

    def close(self) -> None:
        _close_readers(self.by_name)


def _close_readers(readers: dict[str, FileReader]) -> None:
    while readers:
        readers.popitem()[1].close()


def with_readers(
    storage: CheckpointStorage, step: int | None, use: Callable[[Manifest, PackReaders], Any]
) -> Any:
    """Call `use` with the manifest of a step, or the newest, and its open packs."""
    manifest, readers = open_checkpoint(storage, step)
    try:
        return use(manifest, readers)
    finally:
        readers.close()


def open_checkpoint(storage: CheckpointStorage, step: int | None) -> tuple[Manifest, PackReaders]:
    """Return the manifest of a step, or the newest, and its open packs, which the caller closes.

    A checkpoint that is replaced or pruned meanwhile is looked up again.
    """
    previous: Manifest | None = None
    while True:
        manifest = folder.manifest(storage, folder.newest(storage) if step is None else step)
        readers = PackReaders()
        try:
            for name in manifest.head.packs:
                readers.by_name[name] = storage.open(f"{layout.PACKS}/{name}")
            return manifest, readers
        except PathNotFoundError as error:
            readers.close()
            if previous is not None and previous.head.save == manifest.head.save:
                raise CorruptCheckpointError(
                    f"checkpoint of step {manifest.head.step}",
                    why=f"a pack is missing: {error}",
                    hint="load another step",
                ) from None
            previous = manifest


def part_of(manifest: Manifest, rank: int, storage: CheckpointStorage) -> RankPart:
    """Return a rank's part. Raises CheckpointNotFoundError if the rank saved none, and CheckpointMismatchError for
    torch's own form."""
    if manifest.head.kind != "state":
        raise CheckpointMismatchError(
            f"{storage.name}, step {manifest.head.step}",
            why="torch.distributed.checkpoint saved it",
            hint="load it with HeadraceReader of headrace.integrations.torch_checkpoint",
        )
    for part in manifest.body.parts:
        if part.rank == rank:
            return part
    raise CheckpointNotFoundError(
        f"{storage.name}, step {manifest.head.step}: rank {rank}", why=f"{manifest.head.ranks} ranks saved it"
    )


def verify(where: str | CheckpointStorage, step: int | None = None, *, threads: int = THREADS) -> int:
    """Read and check every chunk, and return the number of bytes. Raises CorruptCheckpointError for the first corrupt
    chunk."""
    storage = storage_at(where)

    def check(manifest: Manifest, readers: PackReaders) -> int:
        parts = manifest.body.parts
        reads = [read for part in parts for leaf in part.leaves for read in reads_of(part, leaf, None)]
        distinct = {(read.pack, read.chunk.offset, read.chunk.hash): read for read in reads}
        fetch(distinct.values(), readers, threads=threads)
        return sum(read.chunk.length for read in distinct.values())

    checked: int = with_readers(storage, step, check)
    return checked


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate for names that match one of the patterns. Without patterns every name matches."""

    def matches(name: str) -> bool:
        return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return matches
