"""Stage a state: copy it into host memory. Training stops only for this copy.

The memory consists of slots. Each returns to the arena when its contents are written. A second save can therefore be
staged while the first is being written, and waits only if no slot is free. A state may be larger than the budget.

One thread at a time stages: the trainer's. Slots may be released by any thread. A slot belongs to the stager until it
is emitted, then to the save that receives it.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.checkpoint import plan
from headrace.checkpoint.memory import Bytes, page_aligned, touch
from headrace.checkpoint.storage import ALIGN_BYTES
from headrace.checkpoint.tensors import HostLeaf
from headrace.checkpoint.worker_pool import WorkerPool


@dataclass(slots=True)
class Slot:
    """Hold one slot of staging memory. memory: all of it. pieces: its contents."""

    memory: Bytes
    pieces: list[plan.LeafRange] = field(default_factory=list)


class Arena:
    """Manage the slots of a budget. on_new: called with the memory of each new slot."""

    def __init__(self, slot_bytes: int, *, on_new: Callable[[Bytes], None] | None = None) -> None:
        self.slot_bytes = slot_bytes
        self._slots_max = 0
        self._slot_count = 0
        self._free: list[Slot] = []
        self._changed = threading.Condition()
        self._on_new = on_new

    def allow(self, budget_bytes: int) -> None:
        """Raise the budget, to at least two slots. It never becomes smaller."""
        with self._changed:
            self._slots_max = max(self._slots_max, budget_bytes // self.slot_bytes, 2)

    @property
    def budget_bytes(self) -> int:
        """Return the budget in whole slots."""
        return self._slots_max * self.slot_bytes

    def reserve(self, size_bytes: int) -> None:
        """Allocate and touch that much memory, within the budget, so that the first save has no page faults."""
        while self._slot_count * self.slot_bytes < min(size_bytes, self.budget_bytes):
            slot = self._new()
            touch(slot.memory)
            self.release(slot)

    def acquire(self, on_wait: Callable[[], None]) -> Slot:
        """Return a free slot. If there is none, call on_wait and block until one is released."""
        with self._changed:
            if self._free:
                return self._free.pop()
            if self._slot_count < self._slots_max:
                return self._new()
        on_wait()
        with self._changed:
            while not self._free:
                self._changed.wait()
            return self._free.pop()

    def release(self, slot: Slot) -> None:
        """Return a slot to the arena, and wake a waiting thread."""
        slot.pieces.clear()
        with self._changed:
            self._free.append(slot)
            self._changed.notify()

    def clear(self) -> None:
        """Free the memory of all free slots."""
        with self._changed:
            self._slot_count -= len(self._free)
            self._free.clear()

    def _new(self) -> Slot:
        with self._changed:
            self._slot_count += 1
        try:
            memory = page_aligned(self.slot_bytes)
            if self._on_new is not None:
                self._on_new(memory)
        except BaseException:  # a slot that does not exist is never released: `acquire` would wait for it
            with self._changed:
                self._slot_count -= 1
            raise
        return Slot(memory)


class Stager:
    """Copy leaves into slots in several threads, and emit each slot once its copies are done."""

    def __init__(self, arena: Arena, copiers: ThreadPoolExecutor | WorkerPool, *, chunk_bytes: int) -> None:
        self._arena = arena
        self._copiers = copiers
        self._chunk_bytes = chunk_bytes

    def stage(
        self, leaves: Sequence[HostLeaf], emit: Callable[[Slot], None], on_wait: Callable[[], None]
    ) -> list[bytes]:
        """Copy all leaves. Return the bytes of the small ones, one item per leaf (empty for the others).

        If copying fails, the slots that were not emitted return to the arena, and the error is raised.
        """
        _finish_kernels(leaves)
        inline = [b""] * len(leaves)
        in_progress: list[tuple[Slot, Future[None]]] = []
        slot: Slot | None = None
        copies: list[tuple[Bytes, Any]] = []
        try:
            for leaf_number, leaf in enumerate(leaves):
                if leaf.size_bytes <= plan.INLINE_BYTES_MAX:
                    inline[leaf_number] = _to_host(leaf.bytes()).tobytes()
                    continue
                source = leaf.bytes()
                for piece in self._pieces(leaf_number, leaf.size_bytes, slot):
                    if piece is None or slot is None:
                        if slot is not None:
                            in_progress.append((slot, self._copiers.submit(_copy, copies)))
                            self._emit_copied(in_progress, emit)
                        slot, copies = None, []
                        slot = self._arena.acquire(lambda: self._emit_all(in_progress, emit, on_wait))
                    if piece is not None:
                        target = slot.memory[piece.offset : piece.offset + piece.end - piece.start]
                        copies.append((target, source[piece.start : piece.end]))
                        slot.pieces.append(piece)
            if slot is not None:
                last, slot = slot, None
                in_progress.append((last, self._copiers.submit(_copy, copies)))
            self._emit_all(in_progress, emit, None)
        finally:
            for unemitted, future in in_progress:
                future.exception()  # wait for the copy
                self._arena.release(unemitted)
            if slot is not None:
                self._arena.release(slot)
        return inline

    def _pieces(
        self, leaf_number: int, size_bytes: int, slot: Slot | None
    ) -> Sequence[plan.LeafRange | None]:
        used_bytes = self._arena.slot_bytes
        if slot is not None:
            last = slot.pieces[-1]
            used_bytes = last.offset + last.end - last.start
        return list(
            plan.pieces_of(
                leaf_number,
                size_bytes,
                used_bytes,
                slot_bytes=self._arena.slot_bytes,
                chunk_bytes=self._chunk_bytes,
                align_bytes=ALIGN_BYTES,
            )
        )

    def _emit_copied(
        self, in_progress: list[tuple[Slot, Future[None]]], emit: Callable[[Slot], None]
    ) -> None:
        """Emit the first slots that are copied completely, without waiting."""
        while in_progress and in_progress[0][1].done():
            in_progress[0][1].result()
            emit(in_progress.pop(0)[0])

    def _emit_all(
        self,
        in_progress: list[tuple[Slot, Future[None]]],
        emit: Callable[[Slot], None],
        then: Callable[[], None] | None,
    ) -> None:
        """Wait for all copies, emit their slots, then call `then`."""
        while in_progress:
            in_progress[0][1].result()
            emit(in_progress.pop(0)[0])
        if then is not None:
            then()


def _copy(copies: list[tuple[Bytes, Any]]) -> None:
    """Copy large ranges. Above some MiB the C library bypasses the processor's caches, which is twice as fast (decision
    0009)."""
    device = None
    for target, source in copies:
        if isinstance(source, np.ndarray):
            np.copyto(target, source)
            continue
        torch = sys.modules["torch"]
        torch.from_numpy(target).copy_(source, non_blocking=True)
        device = source.device
    if device is not None:
        sys.modules["torch"].accelerator.synchronize(device)


def _finish_kernels(leaves: Sequence[HostLeaf]) -> None:
    """Wait for the devices' kernels in all streams, because other threads make the copies in streams of their own."""
    tensors = [leaf.value for leaf in leaves if hasattr(leaf.value, "device") and leaf.kind == "torch"]
    devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu"}
    for device in devices:
        sys.modules["torch"].accelerator.synchronize(device)


def _to_host(source: Any) -> Bytes:
    data: Bytes = source if isinstance(source, np.ndarray) else source.cpu().numpy()
    return data


def pin(memory: Bytes) -> None:
    """Pin the memory (page-lock it) if this process uses CUDA: copies from the device then run at bus speed.

    If that fails, the memory is used as it is. The memory is unpinned before it is freed. Otherwise the driver would
    keep its pages, and use them for whatever this process maps at the same address next.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    runtime, address = torch.cuda.cudart(), memory.ctypes.data
    if int(runtime.cudaHostRegister(address, memory.nbytes, 0)) == 0:
        # at the exit of the process the runtime may be gone before the memory
        weakref.finalize(memory, _unpin, runtime, address, os.getpid()).atexit = False


def _unpin(runtime: Any, address: int, pid: int) -> None:
    """Unpin memory. A forked child can't use its parent's device, and has no pinned memory."""
    if pid == os.getpid():
        runtime.cudaHostUnregister(address)
