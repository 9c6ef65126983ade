"""One save between the trainer's thread and its own: the slots that come over, and the writing of what is new in them.

The trainer's thread puts slots, and a word when it waits for free ones; the save's thread takes them. Whatever
happens, every slot goes back to the arena, so that the trainer is never stopped for good.
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
    STARVED = "the trainer waits for a slot"
    STAGED = "all is staged"
    CANCELLED = "staging failed"


@dataclass
class SaveJob:
    """leaves: without the tensors, which the trainer goes on with. inline: bytes of small ones, once staged."""

    saving: SaveHandle
    leaves: Sequence[Leaf]
    arena: Arena
    options: SaveOptions
    crew: WorkerPool
    inbox: queue.SimpleQueue[Slot | StageEvent] = field(default_factory=queue.SimpleQueue)
    inline: list[bytes] = field(default_factory=list)
    over: bool = False
    failure: BaseException | None = None
    """Why staging failed, for who stages in a thread of its own."""

    def take(self) -> Slot | StageEvent:
        word = self.inbox.get()
        self.over = word in (StageEvent.STAGED, StageEvent.CANCELLED)
        if word is StageEvent.CANCELLED:
            raise CancelledByUserError(
                f"checkpoint of step {self.saving.step}", why="its state could not be copied"
            )
        return word

    def drain(self) -> None:
        """After a failure: what still comes goes back."""
        while not self.over:
            try:
                word = self.take()
            except CancelledByUserError:
                return
            if isinstance(word, Slot):
                self.arena.give_back(word)


@dataclass
class WritePlan:
    """full: nothing refers to the base. chunks: where each is, by leaf and start."""

    full: bool
    chunks: dict[tuple[int, int], Stored]
    keys: dict[tuple[int, int], tuple[str, int]]


def write_slots(
    job: SaveJob, writer: PackWriter, base: Base, codecs_of: Callable[[list[Slot]], None], chain: int
) -> WritePlan:
    """Writes what is new in the slots; on return all are written, none is durable.

    Slots are held back until all is staged, or the trainer waits for room: while training stands still, the processor
    and the memory's bandwidth belong to the copies; and by then it is known how much has changed.
    chain: packs that the base refers to. codecs_of: decides on compression, by the first slots.
    """
    held: list[tuple[Slot, Future[list[Hashed]] | None]] = []
    written: list[Future[tuple[list[Hashed], dict[tuple[int, int], Stored]]]] = []
    decided = False
    full = not base
    failed: list[bool] = []

    def put(
        slot: Slot, hashed: Future[list[Hashed]] | None
    ) -> tuple[list[Hashed], dict[tuple[int, int], Stored]]:
        try:
            if failed:
                return [], {}
            chunks = hashed.result() if hashed else hash_slot(slot, job.options.chunk_bytes)
            return chunks, writer.put(slot, chunks, {} if full else base)
        except BaseException:
            failed.append(True)
            raise
        finally:
            job.arena.give_back(slot)

    try:
        while not job.over:
            word = job.take()
            if isinstance(word, Slot):
                if decided:
                    written.append(job.crew.submit(put, word, None))
                else:
                    held.append((word, None))
            elif not decided:
                decided = True
                codecs_of([slot for slot, _ in held])
                if not full:
                    chunk_bytes = job.options.chunk_bytes
                    held = [(slot, job.crew.submit(hash_slot, slot, chunk_bytes)) for slot, _ in held]
                    full = _is_full([hashed for _, hashed in held if hashed], base, job.options, chain)
                while held:
                    slot, hashed = held.pop(0)
                    written.append(job.crew.submit(put, slot, hashed))
    finally:
        for slot, hashed in held:
            if hashed is not None:
                hashed.exception()
            job.arena.give_back(slot)
        for one in written:
            one.exception()  # all slots are back
    return _gathered(written, full=full)


def _gathered(
    written: list[Future[tuple[list[Hashed], dict[tuple[int, int], Stored]]]], *, full: bool
) -> WritePlan:
    done = WritePlan(full, {}, {})
    for one in written:
        chunks, stored = one.result()
        done.chunks.update(stored)
        done.keys.update({(chunk.piece.leaf, chunk.piece.start): chunk.key for chunk in chunks})
    return done


def _is_full(hashed: list[Future[list[Hashed]]], base: Base, options: SaveOptions, chain: int) -> bool:
    chunks = [chunk for one in hashed for chunk in one.result()]
    return plan.is_full(
        base_packs=chain,
        chain_max=options.chain_max,
        seen_bytes=sum(chunk.key[1] for chunk in chunks),
        changed_bytes=sum(chunk.key[1] for chunk in chunks if chunk.key not in base),
        full_share=options.full_share,
    )


def item_bytes_of(leaf: Leaf) -> int:
    """Of one element; 1 where there is none."""
    count = 1
    for length in leaf.shape:
        count *= length
    return max(leaf.size_bytes // count, 1) if count and leaf.kind != "blob" else 1


def codecs_that_pay(
    slots: list[Slot], leaves: Sequence[Leaf], *, write_bytes_s: float, threads: int
) -> dict[int, int]:
    """By item size: the codec, of those seen in the slots. Some milliseconds for each size."""
    codecs: dict[int, int] = {}
    for slot in slots:
        for piece in slot.pieces:
            items = item_bytes_of(leaves[piece.leaf])
            if items in codecs or piece.end - piece.start < compression.SAMPLE_BYTES // 16:
                continue
            sample = compression.measure(
                slot.memory[piece.offset : piece.offset + piece.end - piece.start], items
            )
            good = compression.pays(sample, write_bytes_s=write_bytes_s, threads=threads)
            codecs[items] = items if good else 0
    return codecs
