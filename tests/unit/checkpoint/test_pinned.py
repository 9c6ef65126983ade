"""Staging memory that is pinned for a device: it is unpinned before it is freed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from headrace.checkpoint import SaveOptions, Saver, load
from headrace.checkpoint.memory import SMALL_BYTES

MIB = 1 << 20
OPTIONS = SaveOptions(chunk_bytes=MIB, slot_bytes=MIB, budget_bytes=4 * MIB)


class FakeRuntime:
    """Notes what is pinned, as the driver does: by address, whoever maps it. Its calls return cudaError_t."""

    def __init__(self, result: int = 0) -> None:
        self.result = result
        self.pinned: dict[int, int] = {}
        self.unpinned = 0
        self.unmapped_when_unpinned: list[int] = []

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        if not self.result:
            self.pinned[address] = size_bytes
        return self.result

    def cudaHostUnregister(self, address: int) -> int:
        self.unpinned += 1
        if not is_mapped(address, self.pinned.pop(address)):
            self.unmapped_when_unpinned.append(address)
        return 0


def is_mapped(address: int, size_bytes: int) -> bool:
    """Return whether one mapping of this process has all these bytes."""
    with open("/proc/self/maps") as table:
        for line in table:
            start, end = (int(text, 16) for text in line.split(" ", 1)[0].split("-"))
            if start <= address and address + size_bytes <= end:
                return True
    return False


@pytest.fixture
def use_runtime(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeRuntime], None]:
    def use(runtime: FakeRuntime) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)

    return use


def save_twice(folder: Path) -> None:
    """Save with two savers, one after the other, and check what they saved."""
    for step in (1, 2):
        state = {"w": torch.full((2 * MIB,), step, dtype=torch.uint8)}
        with Saver(str(folder), options=OPTIONS) as saver:
            saver.save(state, step)
        assert torch.equal(load(str(folder), step)["w"], state["w"])


def test_memory_is_unpinned_while_it_is_still_mapped(
    tmp_path: Path, use_runtime: Callable[[FakeRuntime], None]
) -> None:
    assert MIB >= SMALL_BYTES, "each slot is a mapping of its own"
    runtime = FakeRuntime()
    use_runtime(runtime)
    save_twice(tmp_path)
    gc.collect()
    assert runtime.unpinned >= 4
    assert (runtime.pinned, runtime.unmapped_when_unpinned) == ({}, [])


def test_memory_that_could_not_be_pinned_is_not_unpinned(
    tmp_path: Path, use_runtime: Callable[[FakeRuntime], None]
) -> None:
    runtime = FakeRuntime(result=712)  # cudaErrorHostMemoryAlreadyRegistered
    use_runtime(runtime)
    save_twice(tmp_path)
    gc.collect()
    assert runtime.unpinned == 0


def test_a_forked_child_unpins_nothing(tmp_path: Path, use_runtime: Callable[[FakeRuntime], None]) -> None:
    runtime = FakeRuntime()
    use_runtime(runtime)
    saver = Saver(str(tmp_path), options=OPTIONS)
    saver.reserve(2 * MIB)
    child = os.fork()
    if child == 0:
        del saver
        gc.collect()
        os._exit(runtime.unpinned)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    saver.close()
    assert (runtime.unpinned, runtime.pinned) == (2, {}), "its memory is freed though it is still referred to"
