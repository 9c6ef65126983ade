"""Staging: the copy of a state into host memory, for which training stands still. Nothing else here takes its time.

Memory comes in slots, which go back one by one as what they hold was written: a second save is staged while the
first one is being written, and waits only when no slot is left. A state larger than the budget passes through.

Rules: one thread stages at a time (the trainer's). Slots come back from any thread. A slot belongs to the stager until
it was emitted, then to the save that got it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.checkpoint import plan
from headrace.checkpoint.memory import Bytes, page_aligned, touch
from headrace.checkpoint.storage import ALIGN_BYTES
from headrace.checkpoint.tensors import HostLeaf


@dataclass(slots=True)
class Slot:
    """memory: all of it. pieces: what it holds."""

    memory: Bytes
    pieces: list[plan.LeafRange] = field(default_factory=list)


class Arena:
    """Slots within a budget. `on_new` is called with the memory of each new one."""

    def __init__(self, slot_bytes: int, *, on_new: Callable[[Bytes], None] | None = None) -> None:
        self.slot_bytes = slot_bytes
        self._slots_max = 0
        self._made = 0
        self._free: list[Slot] = []
        self._changed = threading.Condition()
        self._on_new = on_new

    def allow(self, budget_bytes: int) -> None:
        """At least two slots; never fewer than before."""
        with self._changed:
            self._slots_max = max(self._slots_max, budget_bytes // self.slot_bytes, 2)

    @property
    def budget_bytes(self) -> int:
        return self._slots_max * self.slot_bytes

    def reserve(self, size_bytes: int) -> None:
        """So much memory is there and touched on return, within the budget: the first save then pays no faults."""
        while self._made * self.slot_bytes < min(size_bytes, self.budget_bytes):
            slot = self._new()
            touch(slot.memory)
            self.give_back(slot)

    def take(self, on_wait: Callable[[], None]) -> Slot:
        """Blocks until there is one; on_wait is called before it does."""
        with self._changed:
            if self._free:
                return self._free.pop()
            if self._made < self._slots_max:
                return self._new()
        on_wait()
        with self._changed:
            while not self._free:
                self._changed.wait()
            return self._free.pop()

    def give_back(self, slot: Slot) -> None:
        slot.pieces.clear()
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def _new(self) -> Slot:
        with self._changed:
            self._made += 1
        memory = page_aligned(self.slot_bytes)
        if self._on_new is not None:
            self._on_new(memory)
        return Slot(memory)


class Stager:
    """Copies leaves into slots, by some threads, and emits each slot once it holds all that it is to hold."""

    def __init__(self, arena: Arena, copiers: ThreadPoolExecutor, *, chunk_bytes: int) -> None:
        self._arena = arena
        self._copiers = copiers
        self._chunk_bytes = chunk_bytes

    def stage(
        self, leaves: Sequence[HostLeaf], emit: Callable[[Slot], None], on_wait: Callable[[], None]
    ) -> list[bytes]:
        """On return all bytes are copied; those of small leaves are returned, one item a leaf (empty for the others).

        When copying fails, slots that were not emitted go back, and the error is raised.
        """
        _finish_kernels(leaves)
        inline = [b""] * len(leaves)
        under_way: list[tuple[Slot, Future[None]]] = []
        slot: Slot | None = None
        copies: list[tuple[Bytes, Any]] = []
        try:
            for place, held in enumerate(leaves):
                if held.size_bytes <= plan.INLINE_BYTES_MAX:
                    inline[place] = _to_host(held.bytes()).tobytes()
                    continue
                source = held.bytes()
                for piece in self._pieces(place, held.size_bytes, slot):
                    if piece is None or slot is None:
                        if slot is not None:
                            under_way.append((slot, self._copiers.submit(_copy, copies)))
                            self._emit_copied(under_way, emit)
                        slot, copies = None, []
                        slot = self._arena.take(lambda: self._emit_all(under_way, emit, on_wait))
                    if piece is not None:
                        target = slot.memory[piece.offset : piece.offset + piece.end - piece.start]
                        copies.append((target, source[piece.start : piece.end]))
                        slot.pieces.append(piece)
            if slot is not None:
                last, slot = slot, None
                under_way.append((last, self._copiers.submit(_copy, copies)))
            self._emit_all(under_way, emit, None)
        finally:
            for one, future in under_way:
                future.exception()  # waits
                self._arena.give_back(one)
            if slot is not None:
                self._arena.give_back(slot)
        return inline

    def _pieces(self, place: int, size_bytes: int, slot: Slot | None) -> Sequence[plan.LeafRange | None]:
        used = self._arena.slot_bytes
        if slot is not None:
            last = slot.pieces[-1]
            used = last.offset + last.end - last.start
        return list(
            plan.pieces_of(
                place,
                size_bytes,
                used,
                slot_bytes=self._arena.slot_bytes,
                chunk_bytes=self._chunk_bytes,
                align_bytes=ALIGN_BYTES,
            )
        )

    def _emit_copied(self, under_way: list[tuple[Slot, Future[None]]], emit: Callable[[Slot], None]) -> None:
        """Those at the front that are copied."""
        while under_way and under_way[0][1].done():
            under_way[0][1].result()
            emit(under_way.pop(0)[0])

    def _emit_all(
        self,
        under_way: list[tuple[Slot, Future[None]]],
        emit: Callable[[Slot], None],
        then: Callable[[], None] | None,
    ) -> None:
        while under_way:
            under_way[0][1].result()
            emit(under_way.pop(0)[0])
        if then is not None:
            then()


def _copy(copies: list[tuple[Bytes, Any]]) -> None:
    """Large runs: above some MiB the C library copies past the processor's caches, twice as fast (decision 0009)."""
    waits = None
    for target, source in copies:
        if isinstance(source, np.ndarray):
            np.copyto(target, source)
            continue
        torch = sys.modules["torch"]
        torch.from_numpy(target).copy_(source, non_blocking=True)
        waits = source.device
    if waits is not None:
        sys.modules["torch"].accelerator.synchronize(waits)


def _finish_kernels(leaves: Sequence[HostLeaf]) -> None:
    """What runs on a device in any stream is done: the copies are made by other threads, in their own streams."""
    tensors = [held.value for held in leaves if hasattr(held.value, "device") and held.kind == "torch"]
    devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
    for device in devices:
        sys.modules["torch"].accelerator.synchronize(device)


def _to_host(source: Any) -> Bytes:
    found: Bytes = source if isinstance(source, np.ndarray) else source.cpu().numpy()
    return found


def pin(memory: Bytes) -> None:
    """Page-locked where this process uses CUDA: the copy from the device then runs at the speed of the bus. Where that
    fails, the memory is used as it is."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    torch.cuda.cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0)
