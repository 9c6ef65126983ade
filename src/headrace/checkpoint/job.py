"""Pass one save from the trainer's thread to the save's thread: staged slots, which the save's threads hash and write.

The trainer's thread sends slots, and an event when it waits for free ones. Every slot returns to the arena, also after
a failure, so that the trainer never blocks forever.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum

from headrace.base.errors import CancelledByUserError
from headrace.checkpoint import compression, plan
from headrace.checkpoint.manifest import Leaf
from headrace.checkpoint.pack import Base, Hashed, PackWriter, Stored, hash_slot
from headrace.checkpoint.saving import SaveHandle, SaveOptions
from headrace.checkpoint.stage import Arena, Slot
from headrace.checkpoint.worker_pool import WorkerPool


class StageEvent(Enum):
    """List the events that the trainer's thread sends besides slots."""

    STARVED = "the trainer waits for a slot"
    STAGED = "the state is staged"
    CANCELLED = "staging failed"


class SlotInbox:
    """Pass slots and events from the trainer's thread to the save's thread. step: the checkpoint's, for messages."""

    def __init__(self, step: int, arena: Arena) -> None:
        self._step = step
        self._arena = arena
        self._queue: queue.SimpleQueue[Slot | StageEvent] = queue.SimpleQueue()
        self.put = self._queue.put
        self.is_over = False

    def receive(self) -> Slot | StageEvent:
        """Return the next slot or event. Blocks. Raises CancelledByUserError if staging failed."""
        message = self._queue.get()
        self.is_over = message in (StageEvent.STAGED, StageEvent.CANCELLED)
        if message is StageEvent.CANCELLED:
            raise CancelledByUserError(f"checkpoint of step {self._step}", why="copying its state failed")
        return message

    def drain(self) -> None:
        """Return to the arena the slots that still arrive after a failure."""
        while not self.is_over:
            try:
                message = self.receive()
            except CancelledByUserError:
                return
            if isinstance(message, Slot):
                self._arena.release(message)


@dataclass
class SaveJob:
    """Describe one save, which two threads share.

    leaves: without the tensors, which the trainer continues to use. inline: bytes of small leaves, once staged.
    """

    handle: SaveHandle
    leaves: Sequence[Leaf]
    arena: Arena
    options: SaveOptions
    pool: WorkerPool
    inbox: SlotInbox
    inline: list[bytes] = field(default_factory=list)
    failure: BaseException | None = None
    """The error of the staging, if it ran in a thread of its own."""


@dataclass
class WrittenChunks:
    """Hold the location and the key of each chunk, by (leaf, start). full: no chunk refers to the base."""

    full: bool
    chunks: dict[tuple[int, int], Stored]
    keys: dict[tuple[int, int], tuple[str, int]]


def write_slots(
    job: SaveJob, writer: PackWriter, base: Base, choose_codecs: Callable[[list[Slot]], None], chain: int
) -> WrittenChunks:
    """Write the chunks of the slots that the base does not have. On return all are written, but not durable.

    Slots are held back until all are staged, or the trainer waits for a free one. Until then the copies have the
    processor and the memory bandwidth for themselves, while training stands still. The share of changed chunks is known
    by then, too.

    chain: number of packs that the base refers to. choose_codecs: decides on compression, given the first slots.
    """
    slots = _SlotWriter(job, writer, base)
    held_slots: list[Slot] = []
    is_decided = False
    try:
        while not job.inbox.is_over:
            message = job.inbox.receive()
            if isinstance(message, Slot):
                slots.submit(message) if is_decided else held_slots.append(message)
            elif not is_decided:
                is_decided = True
                choose_codecs(list(held_slots))
                slots.decide(held_slots, chain)
                while held_slots:
                    slots.submit(held_slots.pop(0))
    finally:
        slots.wait(held_slots)
    return _collected(slots.written, full=slots.is_full)


class _SlotWriter:
    """Hash and write slots in the job's threads, and release each to the arena. After a failure, other slots are
    released unwritten."""

    def __init__(self, job: SaveJob, writer: PackWriter, base: Base) -> None:
        self._job = job
        self._writer = writer
        self._base = base
        self._hashed: dict[int, Future[list[Hashed]]] = {}
        self._has_failed = False
        self.is_full = not base
        self.written: list[Future[tuple[list[Hashed], dict[tuple[int, int], Stored]]]] = []

    def decide(self, slots: list[Slot], chain: int) -> None:
        """Hash the first slots, and decide by the share of changed chunks whether the save is full."""
        if self.is_full:
            return
        options = self._job.options
        hashed = [self._job.pool.submit(hash_slot, slot, options.chunk_bytes) for slot in slots]
        self._hashed = {id(slot): future for slot, future in zip(slots, hashed, strict=True)}
        self.is_full = _is_full(hashed, self._base, options, chain)

    def submit(self, slot: Slot) -> None:
        self.written.append(self._job.pool.submit(self._write, slot, self._hashed.pop(id(slot), None)))

    def wait(self, held_slots: list[Slot]) -> None:
        """Release the slots that were not submitted, and wait until the threads have released the others."""
        for slot in held_slots:
            hashed = self._hashed.pop(id(slot), None)
            if hashed is not None:
                hashed.exception()
            self._job.arena.release(slot)
        for write in self.written:
            write.exception()

    def _write(
        self, slot: Slot, hashed: Future[list[Hashed]] | None
    ) -> tuple[list[Hashed], dict[tuple[int, int], Stored]]:
        try:
            if self._has_failed:
                return [], {}
            chunks = hashed.result() if hashed else hash_slot(slot, self._job.options.chunk_bytes)
            return chunks, self._writer.put(slot, chunks, {} if self.is_full else self._base)
        except BaseException:
            self._has_failed = True
            raise
        finally:
            self._job.arena.release(slot)


def _collected(
    written: list[Future[tuple[list[Hashed], dict[tuple[int, int], Stored]]]], *, full: bool
) -> WrittenChunks:
    result = WrittenChunks(full, {}, {})
    for write in written:
        chunks, stored = write.result()
        result.chunks.update(stored)
        result.keys.update({(chunk.piece.leaf, chunk.piece.start): chunk.key for chunk in chunks})
    return result


def _is_full(hashed: list[Future[list[Hashed]]], base: Base, options: SaveOptions, chain: int) -> bool:
    chunks = [chunk for future in hashed for chunk in future.result()]
    return plan.is_full(
        base_packs=chain,
        chain_max=options.chain_max,
        total_bytes=sum(chunk.key[1] for chunk in chunks),
        changed_bytes=sum(chunk.key[1] for chunk in chunks if chunk.key not in base),
        full_share=options.full_share,
    )


def item_bytes_of(leaf: Leaf) -> int:
    """Return the size of one item of the leaf in bytes; 1 for a blob or an empty leaf."""
    count = 1
    for length in leaf.shape:
        count *= length
    return max(leaf.size_bytes // count, 1) if count and leaf.kind != "blob" else 1


def codecs_that_pay(
    slots: list[Slot], leaves: Sequence[Leaf], *, write_bytes_s: float, threads: int
) -> dict[int, int]:
    """Return the codec for each item size of the slots: 0 if compression would be slower. Takes some milliseconds per
    size."""
    codecs: dict[int, int] = {}
    for slot in slots:
        for piece in slot.pieces:
            item_bytes = item_bytes_of(leaves[piece.leaf])
            if item_bytes in codecs or piece.end - piece.start < compression.SAMPLE_BYTES // 16:
                continue
            sample = compression.measure(
                slot.memory[piece.offset : piece.offset + piece.end - piece.start], item_bytes
            )
            is_worthwhile = compression.pays(sample, write_bytes_s=write_bytes_s, threads=threads)
            codecs[item_bytes] = item_bytes if is_worthwhile else 0
    return codecs
