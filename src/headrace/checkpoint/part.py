"""Write one rank's share of a checkpoint: its pack and its part. save.py and integrations/torch_checkpoint.py use it.

A `PartSaver` lives as long as the training. It keeps the base: the last committed checkpoint, whose chunks the next one
refers to. Saves of one rank run one after the other.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.errors import CheckpointNotFoundError, CorruptCheckpointError, HeadraceError
from headrace.checkpoint import folder, job, layout
from headrace.checkpoint.commit import Attempt
from headrace.checkpoint.job import SaveJob
from headrace.checkpoint.manifest import Body, Chunk, Head, Leaf, Manifest, RankPart
from headrace.checkpoint.memory import page_aligned
from headrace.checkpoint.pack import Key, PackWriter, Stored
from headrace.checkpoint.saving import SaveOptions
from headrace.checkpoint.stage import Slot
from headrace.checkpoint.storage import CheckpointStorage

log = logging.getLogger(__name__)

PROBE_BYTES = 32 << 20
"""Bytes of the write that measures the storage's rate."""


@dataclass(frozen=True, slots=True)
class BaseSave:
    """Describe the base of a save: the chunks of a committed checkpoint, as this rank sees it."""

    step: int
    save: str
    chunks: Mapping[Key, Stored]
    pack_bytes: Mapping[str, int]
    """Sizes of the packs that have the chunks, by name."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """Hold a part that is durable except for its own file. full: it refers to no older pack. stored_bytes: size of its
    new pack."""

    part: RankPart
    full: bool
    stored_bytes: int


class PartSaver:
    """Write the parts of one rank, save after save."""

    def __init__(self, storage: CheckpointStorage, options: SaveOptions, rank: int) -> None:
        self._storage = storage
        self._options = options
        self._rank = rank
        self._base: BaseSave | None = None
        self._has_base_been_read = False
        self._write_bytes_s = 0.0
        self._writer: PackWriter | None = None

    def claim(self, attempt: Attempt, *, full: bool) -> BaseSave | None:
        """Claim the base, so that no prune deletes its packs, and return it. Return None if the save must refer to no
        older pack."""
        if not self._has_base_been_read:
            self._base, self._has_base_been_read = newest_base(self._storage, self._rank), True
        base = None if full else self._base
        attempt.begin(base.pack_bytes if base is not None else ())
        if base is None:
            return None
        try:
            if folder.head(self._storage, base.step).save == base.save:
                return base
        except (CheckpointNotFoundError, CorruptCheckpointError):
            pass
        return None

    def write(self, save_job: SaveJob, attempt: Attempt, tree: Any, base: BaseSave | None) -> WrittenPart:
        """Write the slots of the job until all are staged. New chunks are durable on return. Call `drop` after an
        error."""
        codecs = [
            job.item_bytes_of(leaf) if self._options.compress == "always" else 0 for leaf in save_job.leaves
        ]
        name = layout.pack_name(attempt.save, self._rank)
        writer = self._writer = PackWriter(self._storage, layout.PACKS, name, codecs)
        chunks = job.write_slots(
            save_job,
            writer,
            base.chunks if base is not None else {},
            lambda slots: self._choose_codecs(attempt, slots, save_job.leaves, codecs),
            len(base.pack_bytes) if base is not None else 0,
        )
        writer.finish()
        if writer.written_bytes:
            self._write_bytes_s = writer.size_bytes / max(writer.write_s / self._options.threads, 1e-6)
        part = _part_of(self._rank, tree, save_job, chunks, writer, base)
        return WrittenPart(part, set(part.packs) <= {writer.name}, writer.size_bytes)

    def remember(self, attempt: Attempt, part: RankPart) -> None:
        """Use a committed part as the base of the next save."""
        self._writer = None
        self._base, self._has_base_been_read = base_of(attempt.step, attempt.save, [part]), True

    def drop(self, attempt: Attempt) -> None:
        """Delete the pack of a failed save. A pack that other saves may refer to stays until a prune."""
        writer, self._writer = self._writer, None
        if writer is not None and not attempt.promised:
            with contextlib.suppress(HeadraceError):
                writer.drop()

    def _choose_codecs(
        self, attempt: Attempt, slots: list[Slot], leaves: Sequence[Leaf], codecs: list[int]
    ) -> None:
        """Set the codecs by a sample if the options request it."""
        if self._options.compress != "auto" or not slots:
            return
        write_bytes_s = self._write_bytes_s or _probe(
            self._storage, layout.save_folder(attempt.save), self._rank
        )
        codec_of_size = job.codecs_that_pay(
            slots, leaves, write_bytes_s=write_bytes_s, threads=self._options.threads
        )
        log.info("compression chosen write_bytes_s=%d codecs=%s", write_bytes_s, codec_of_size)
        for number, leaf in enumerate(leaves):
            codecs[number] = codec_of_size.get(job.item_bytes_of(leaf), 0)


def manifest_of(
    attempt: Attempt,
    parts: list[RankPart],
    *,
    metadata: dict[str, Any],
    data: dict[str, str] | None = None,
    kind: str = "state",
    dcp: Any = None,
) -> Manifest:
    """Build the manifest from the parts of all ranks."""
    packs = {name: size for part in parts for name, size in zip(part.packs, part.pack_bytes, strict=True)}
    head = Head(
        step=attempt.step,
        save=attempt.save,
        created_ns=time.time_ns(),
        ranks=attempt.ranks,
        full=all(name.startswith(f"{attempt.save}-") for name in packs),
        data_bytes=sum(leaf.size_bytes for part in parts for leaf in part.leaves),
        written_bytes=sum(part.written_bytes for part in parts),
        packs=sorted(packs),
        pack_bytes=[packs[name] for name in sorted(packs)],
        kind=kind,
        metadata=metadata,
        data=data or {},
    )
    return Manifest(head, Body(parts, dcp))


def _part_of(
    rank: int,
    tree: Any,
    save_job: SaveJob,
    written: job.WrittenChunks,
    writer: PackWriter,
    base: BaseSave | None,
) -> RankPart:
    """Return the part: the leaves with their chunks. Packs are numbered in order of first use."""
    packs: dict[str, int] = {}
    sizes = {**(base.pack_bytes if base is not None else {}), writer.name: writer.size_bytes}
    chunks_of_leaves: list[list[Chunk]] = [[] for _ in save_job.leaves]
    for leaf_number, start in sorted(written.chunks):
        stored, (digest, length) = written.chunks[leaf_number, start], written.keys[leaf_number, start]
        number = packs.setdefault(stored.pack, len(packs))
        chunks_of_leaves[leaf_number].append(
            Chunk(digest, number, stored.offset, stored.stored_bytes, length, stored.codec)
        )
    leaves = [
        msgspec.structs.replace(leaf, inline=inline, chunks=chunks)
        for leaf, inline, chunks in zip(save_job.leaves, save_job.inline, chunks_of_leaves, strict=True)
    ]
    return RankPart(rank, tree, leaves, list(packs), [sizes[name] for name in packs], writer.written_bytes)


def base_of(step: int, save: str, parts: list[RankPart]) -> BaseSave:
    """Return the base that these parts of a committed save form."""
    chunks: dict[Key, Stored] = {}
    sizes: dict[str, int] = {}
    for part in parts:
        sizes.update(zip(part.packs, part.pack_bytes, strict=True))
        for leaf in part.leaves:
            for chunk in leaf.chunks:
                stored = Stored(part.packs[chunk.pack], chunk.offset, chunk.stored_bytes, chunk.codec)
                chunks[chunk.hash, chunk.length] = stored
    return BaseSave(step, save, chunks, sizes)


def newest_base(storage: CheckpointStorage, rank: int) -> BaseSave | None:
    """Return the newest checkpoint as this rank's base: its own part or, without one, the parts of all ranks."""
    try:
        manifest = folder.manifest(storage, folder.newest(storage))
    except CheckpointNotFoundError:
        return None
    except CorruptCheckpointError as error:
        log.warning("the newest checkpoint is unreadable, the next save will be full error=%s", error)
        return None
    own = [part for part in manifest.body.parts if part.rank == rank]
    return base_of(manifest.head.step, manifest.head.save, own or manifest.body.parts)


def _probe(storage: CheckpointStorage, directory: str, rank: int) -> float:
    """Measure the storage's durable write rate, in bytes per second, by a write of PROBE_BYTES."""
    name = f"{directory}/{rank}.probe"
    data = page_aligned(PROBE_BYTES)
    start_s = time.perf_counter()
    writer = storage.create(name)
    try:
        writer.write(data.data, 0)
        writer.sync()
        return PROBE_BYTES / (time.perf_counter() - start_s)
    finally:
        writer.close()
        storage.remove(name)
