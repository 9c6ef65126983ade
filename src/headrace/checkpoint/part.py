"""What one rank writes of a checkpoint: its pack and its part. Used by save.py and by the writer of torch's own
checkpoints.

A `PartSaver` lives as long as the training does, and knows the base: the last committed checkpoint, whose chunks the
next one refers to. Saves of one rank follow each other; only one is in here at a time.
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


@dataclass(frozen=True, slots=True)
class BaseSave:
    """What a save may refer to: the chunks of a committed checkpoint, as this rank sees it."""

    step: int
    save: str
    chunks: Mapping[Key, Stored]
    pack_bytes: Mapping[str, int]
    """Of the packs that they are in."""


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """The part, durable but for its own file. full: it refers to no older pack. stored_bytes: of its new pack."""

    part: RankPart
    full: bool
    stored_bytes: int


class PartSaver:
    def __init__(self, place: CheckpointStorage, options: SaveOptions, rank: int) -> None:
        self._place = place
        self._options = options
        self._rank = rank
        self._base: BaseSave | None = None
        self._base_known = False
        self._write_bytes_s = 0.0
        self._writer: PackWriter | None = None

    def claim(self, attempt: Attempt, *, full: bool) -> BaseSave | None:
        """The base, safe from whoever prunes; None: refer to nothing."""
        if not self._base_known:
            self._base, self._base_known = newest_base(self._place, self._rank), True
        base = None if full else self._base
        attempt.begin(base.pack_bytes if base is not None else ())
        if base is None:
            return None
        try:
            if folder.head(self._place, base.step).save == base.save:
                return base
        except (CheckpointNotFoundError, CorruptCheckpointError):
            pass
        return None

    def write(self, one: SaveJob, attempt: Attempt, tree: Any, base: BaseSave | None) -> WrittenPart:
        """Takes the slots of the job until all are staged. On return what is new is durable. After an error: `drop`."""
        codecs = [job.item_bytes_of(leaf) if self._options.compress == "always" else 0 for leaf in one.leaves]
        name = layout.pack_name(attempt.save, self._rank)
        writer = self._writer = PackWriter(self._place, layout.PACKS, name, codecs)
        done = job.write_slots(
            one,
            writer,
            base.chunks if base is not None else {},
            lambda slots: self._choose_codecs(attempt, slots, one.leaves, codecs),
            len(base.pack_bytes) if base is not None else 0,
        )
        writer.finish()
        if writer.written_bytes:
            self._write_bytes_s = writer.size_bytes / max(writer.write_s / self._options.threads, 1e-6)
        part = _part_of(self._rank, tree, one, done, writer, base)
        return WrittenPart(part, set(part.packs) <= {writer.name}, writer.size_bytes)

    def remember(self, attempt: Attempt, part: RankPart) -> None:
        """It is committed: the next save's base."""
        self._writer = None
        self._base, self._base_known = base_of(attempt.step, attempt.save, [part]), True

    def drop(self, attempt: Attempt) -> None:
        """The pack of a save that failed goes, unless somebody may refer to it; then it is pruned some day."""
        writer, self._writer = self._writer, None
        if writer is not None and not attempt.promised:
            with contextlib.suppress(HeadraceError):
                writer.drop()

    def _choose_codecs(
        self, attempt: Attempt, slots: list[Slot], leaves: Sequence[Leaf], codecs: list[int]
    ) -> None:
        """Fills in `codecs`, where the options leave it to a sample."""
        if self._options.compress != "auto" or not slots:
            return
        rate = self._write_bytes_s or _probe(self._place, layout.save_folder(attempt.save), self._rank)
        found = job.codecs_that_pay(slots, leaves, write_bytes_s=rate, threads=self._options.threads)
        log.info("compression chosen write_bytes_s=%d codecs=%s", rate, found)
        for place, leaf in enumerate(leaves):
            codecs[place] = found.get(job.item_bytes_of(leaf), 0)


def manifest_of(
    attempt: Attempt, parts: list[RankPart], *, metadata: dict[str, Any], kind: str = "state", dcp: Any = None
) -> Manifest:
    """Of all ranks' parts."""
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
    )
    return Manifest(head, Body(parts, dcp))


def _part_of(
    rank: int, tree: Any, one: SaveJob, done: job.WritePlan, writer: PackWriter, base: BaseSave | None
) -> RankPart:
    """The leaves with their chunks. Packs are numbered as they are met."""
    packs: dict[str, int] = {}
    sizes = {**(base.pack_bytes if base is not None else {}), writer.name: writer.size_bytes}
    found: list[list[Chunk]] = [[] for _ in one.leaves]
    for place, start in sorted(done.chunks):
        stored, (digest, length) = done.chunks[place, start], done.keys[place, start]
        number = packs.setdefault(stored.pack, len(packs))
        found[place].append(Chunk(digest, number, stored.offset, stored.stored_bytes, length, stored.codec))
    leaves = [
        msgspec.structs.replace(leaf, inline=inline, chunks=chunks)
        for leaf, inline, chunks in zip(one.leaves, one.inline, found, strict=True)
    ]
    return RankPart(rank, tree, leaves, list(packs), [sizes[name] for name in packs], writer.written_bytes)


def base_of(step: int, save: str, parts: list[RankPart]) -> BaseSave:
    chunks: dict[Key, Stored] = {}
    sizes: dict[str, int] = {}
    for part in parts:
        sizes.update(zip(part.packs, part.pack_bytes, strict=True))
        for leaf in part.leaves:
            for chunk in leaf.chunks:
                stored = Stored(part.packs[chunk.pack], chunk.offset, chunk.stored_bytes, chunk.codec)
                chunks[chunk.hash, chunk.length] = stored
    return BaseSave(step, save, chunks, sizes)


def newest_base(place: CheckpointStorage, rank: int) -> BaseSave | None:
    """The newest checkpoint there is, as this rank sees it: its own part, else all of them."""
    try:
        manifest = folder.manifest(place, folder.newest(place))
    except CheckpointNotFoundError:
        return None
    except CorruptCheckpointError as error:
        log.warning("the newest checkpoint is not referred to error=%s", error)
        return None
    own = [part for part in manifest.body.parts if part.rank == rank]
    return base_of(manifest.head.step, manifest.head.save, own or manifest.body.parts)


def _probe(place: CheckpointStorage, where: str, rank: int) -> float:
    """Bytes a second that the place takes, durably; by writing some."""
    name = f"{where}/{rank}.probe"
    data = page_aligned(PROBE_BYTES)
    start_s = time.perf_counter()
    sink = place.create(name)
    try:
        sink.write(data.data, 0)
        sink.sync()
        return PROBE_BYTES / (time.perf_counter() - start_s)
    finally:
        sink.close()
        place.remove(name)
