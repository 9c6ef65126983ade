"""Restoring a checkpoint: open this first. `load` is the journey; saving is save.py.

The manifest is read and checked; memory is made, or the caller's is taken; then some threads read chunks straight into
it, in the order of the packs, and hold each against its hash. What can't be read straight (compressed, not contiguous,
on a device) passes through a buffer of its thread. What may be mapped, and is in the page cache, is not read at all:
the pack's own pages are laid in its place.
"""

from __future__ import annotations

import fnmatch
import threading
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
from headrace.checkpoint.pack import key_of
from headrace.checkpoint.storage import ALIGN_BYTES, CheckpointStorage, FileReader, place_of
from headrace.checkpoint.worker_pool import WorkerPool

THREADS = 4
MAPPED_MAX = 20_000
"""Chunks that one load maps at most: each may be a mapping of its own, of which a process has 65,530."""


@dataclass(frozen=True, slots=True)
class Read:
    """One chunk of a leaf. target: its memory; None: check it only. mapped: pages of the pack may take its place."""

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
    """The state that a rank saved, of the newest checkpoint or of a step. Blocks.

    only: patterns of names (`model.*`; keys joined by dots); what none matches is left out of dicts and is None in
    lists and tuples. into: a state of the same form, whose tensors and arrays are restored in place; the answer
    holds them. mapped: what the page cache has is not copied; new tensors lie in the pages of the packs, also when
    those are pruned, and a page is copied when it is first written to. Each chunk is held against its hash:
    CorruptCheckpointError, and what is in `into` then is undefined. CheckpointNotFoundError; CheckpointMismatchError
    when `into` has another form.
    """
    place = place_of(where)
    return with_sources(
        place,
        step,
        lambda manifest, sources: _load(place, manifest, sources, _Wanted(rank, only, into, threads, mapped)),
    )


@dataclass(frozen=True, slots=True)
class _Wanted:
    rank: int
    only: Sequence[str]
    into: Any
    threads: int
    mapped: bool


def _load(place: CheckpointStorage, manifest: Manifest, sources: PackReaders, wanted: _Wanted) -> Any:
    part = part_of(manifest, wanted.rank, place)
    taker = _Targets(part, wanted.into, mapped=wanted.mapped)
    name_wanted = matcher(wanted.only)
    # every tensor gets its memory before the first byte is read: a mismatch changes nothing
    state = tensors.build(part.tree, taker.take, name_wanted)
    if state is tensors.MISSING:
        raise CheckpointNotFoundError(
            f"{place.name}, step {manifest.head.step}", why=f"nothing is named as {', '.join(wanted.only)}"
        )
    fetch(taker.reads, sources, threads=wanted.threads)
    for leaf, target, memory in taker.through_memory:
        tensors.fill(target, leaf, memory)
    return tensors.build(part.tree, taker.give, name_wanted) if taker.scalars else state


class _Targets:
    """Where the leaves of a part go, and what has to be read for them."""

    def __init__(self, part: RankPart, into: Any, *, mapped: bool) -> None:
        self._part = part
        self._into = into
        self._mapped = mapped
        self._made: dict[int, Any] = {}
        self._memory: dict[int, Bytes] = {}
        self.reads: list[Read] = []
        self.through_memory: list[tuple[Leaf, Any, Bytes]] = []
        self.scalars = False

    def take(self, place: int, path: tensors.Path) -> Any:
        if place >= len(self._part.leaves):
            raise CorruptCheckpointError(tensors.where(path), why=f"there is no leaf {place}")
        leaf = self._part.leaves[place]
        if leaf.kind == "scalar":
            self.scalars = True
        if self._into is not None and leaf.kind != "scalar":
            return self._given(place, leaf, path)
        if place not in self._made:
            value, memory = tensors.new_value(leaf)
            self._read(leaf, memory, mapped=self._mapped and is_own_mapping(memory))
            self._made[place] = value
        return self._made[place]

    def give(self, place: int, path: tensors.Path) -> Any:
        """The finished value."""
        leaf = self._part.leaves[place]
        if self._into is not None and leaf.kind != "scalar":
            return tensors.inner(self._into, path)
        return tensors.finished(leaf, self._made[place])

    def _given(self, place: int, leaf: Leaf, path: tensors.Path) -> Any:
        target = tensors.inner(self._into, path)
        if target is tensors.MISSING:
            raise CheckpointMismatchError(
                tensors.where(path),
                why="it was saved, and `into` has no such place",
                hint="leave it out by `only`",
            )
        tensors.check_target(leaf, target)
        memory = tensors.bytes_of_target(target)
        if memory is None:
            if place not in self._memory:
                memory = self._memory[place] = page_aligned(leaf.size_bytes)
                self._read(leaf, memory, mapped=is_own_mapping(memory))  # nobody keeps it
            self.through_memory.append((leaf, target, self._memory[place]))
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
    """Of the chunks that lie in [start, end) of the leaf, both at a chunk's edge; memory holds just that range."""
    reads, at = [], 0
    end = leaf.size_bytes if end is None else end
    for chunk in leaf.chunks:
        if start <= at < end:
            target = None if memory is None else memory[at - start : at - start + chunk.length]
            reads.append(Read(leaf, part.packs[chunk.pack], chunk, target))
        at += chunk.length
    return reads


def fetch(reads: Iterable[Read], sources: PackReaders, *, threads: int) -> None:
    """All of them, checked. The first error is raised once all threads have ended."""
    ordered = sorted(reads, key=lambda read: (read.pack, read.chunk.offset))
    if not ordered:
        return
    crew = WorkerPool(min(threads, len(ordered)), "checkpoint-read")
    failed = threading.Event()
    buffers = threading.local()

    def one(read: Read) -> None:
        if failed.is_set():
            return
        try:
            _fetch_one(read, sources, buffers)
        except BaseException:
            failed.set()
            raise

    try:
        futures: list[Future[None]] = [crew.submit(one, read) for read in ordered]
    finally:
        crew.close()
    for future in futures:
        future.result()


def _fetch_one(read: Read, sources: PackReaders, buffers: threading.local) -> None:
    chunk, target = read.chunk, read.target
    source = sources.of(read.pack)
    straight = target is not None and not chunk.codec and chunk.length % ALIGN_BYTES == 0
    if straight and target is not None and target.ctypes.data % ALIGN_BYTES == 0:
        if not (read.mapped and source.map_into(target.data, chunk.offset)):
            source.read_into(target.data, chunk.offset)
    else:
        packed = _buffer(buffers, "packed", chunk.stored_bytes)
        source.read_into(packed.data, chunk.offset)
        if target is None:
            target = _buffer(buffers, "plain", chunk.length)[: chunk.length]
        if chunk.codec:
            decompress(packed[: chunk.stored_bytes].data, target, chunk.codec, _said(read))
        else:
            target[:] = packed[: chunk.length]
    if key_of(target) != (chunk.hash, chunk.length):
        raise CorruptCheckpointError(
            _said(read), why="its bytes do not match their checksum", hint="load another step"
        )


def _said(read: Read) -> str:
    return f"{read.leaf.name}, in {read.pack} at {read.chunk.offset}"


def _buffer(buffers: threading.local, name: str, size_bytes: int) -> Bytes:
    """This thread's, at least so long; of whole pages."""
    padded = plan.align(size_bytes, ALIGN_BYTES)
    found: Bytes | None = getattr(buffers, name, None)
    if found is None or len(found) < padded:
        found = page_aligned(padded)
        setattr(buffers, name, found)
    return found[:padded]


@dataclass
class PackReaders:
    """The packs of a manifest, open: who has them open reads on, whatever is pruned."""

    by_name: dict[str, FileReader] = field(default_factory=dict)

    def of(self, pack: str) -> FileReader:
        return self.by_name[pack]

    def close(self) -> None:
        for source in self.by_name.values():
            source.close()


def with_sources(
    place: CheckpointStorage, step: int | None, use: Callable[[Manifest, PackReaders], Any]
) -> Any:
    """Calls `use` with the manifest of a step, or the newest, and its packs open."""
    manifest, sources = open_checkpoint(place, step)
    try:
        return use(manifest, sources)
    finally:
        sources.close()


def open_checkpoint(place: CheckpointStorage, step: int | None) -> tuple[Manifest, PackReaders]:
    """The manifest of a step, or the newest, and its packs open; to be closed by the caller.

    A checkpoint that is replaced or pruned between the two is looked for again.
    """
    before: Manifest | None = None
    while True:
        manifest = folder.manifest(place, folder.newest(place) if step is None else step)
        sources = PackReaders()
        try:
            for name in manifest.head.packs:
                sources.by_name[name] = place.open(f"{layout.PACKS}/{name}")
            return manifest, sources
        except PathNotFoundError as error:
            sources.close()
            if before is not None and before.head.save == manifest.head.save:
                raise CorruptCheckpointError(
                    f"checkpoint of step {manifest.head.step}",
                    why=f"a pack is gone: {error}",
                    hint="load another step",
                ) from None
            before = manifest


def part_of(manifest: Manifest, rank: int, place: CheckpointStorage) -> RankPart:
    """CheckpointNotFoundError when that rank saved nothing; CheckpointMismatchError for torch's own form."""
    if manifest.head.kind != "state":
        raise CheckpointMismatchError(
            f"{place.name}, step {manifest.head.step}",
            why="saved by torch.distributed.checkpoint",
            hint="load it with HeadraceReader of headrace.integrations.torch_checkpoint",
        )
    for part in manifest.body.parts:
        if part.rank == rank:
            return part
    raise CheckpointNotFoundError(
        f"{place.name}, step {manifest.head.step}: rank {rank}", why=f"saved by {manifest.head.ranks} ranks"
    )


def verify(where: str | CheckpointStorage, step: int | None = None, *, threads: int = THREADS) -> int:
    """Reads every chunk and checks it; the bytes checked. CorruptCheckpointError names the first that is wrong."""
    place = place_of(where)

    def check(manifest: Manifest, sources: PackReaders) -> int:
        parts = manifest.body.parts
        reads = [read for part in parts for leaf in part.leaves for read in reads_of(part, leaf, None)]
        once = {(read.pack, read.chunk.offset, read.chunk.hash): read for read in reads}
        fetch(once.values(), sources, threads=threads)
        return sum(read.chunk.length for read in once.values())

    checked: int = with_sources(place, step, check)
    return checked


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a name matches one of them; without any, all do."""

    def matches(name: str) -> bool:
        return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    return matches
