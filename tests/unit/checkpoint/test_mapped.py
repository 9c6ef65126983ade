"""Restoring without a copy: what the page cache has is mapped, and is as right, and as much one's own, as a copy."""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.base.errors import CorruptCheckpointError
from headrace.checkpoint import SaveOptions, Saver, load, save
from headrace.checkpoint.memory import is_own_mapping, page_aligned, touch
from tests.unit.checkpoint.states import same

CHUNK = 256 << 10
OPTIONS = SaveOptions(chunk_bytes=CHUNK, slot_bytes=4 * CHUNK)


def state_of(seed: int = 0) -> dict[str, Any]:
    """Leaves of whole pages, with a rest, too small to be mapped, and inline."""
    noise = np.random.default_rng(seed)
    return {
        "pages": torch.from_numpy(noise.integers(0, 256, 8 * CHUNK, np.uint8)),
        "rest": noise.integers(0, 256, 5 * CHUNK + 777, np.uint8),
        "small": torch.from_numpy(noise.standard_normal(9000)),
        "inline": torch.ones(3),
        "step": 5,
    }


def the_pack(folder: Path) -> Path:
    (path,) = (folder / "packs").iterdir()
    return path


def maps_of(path: Path) -> int:
    return sum(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(state_of(), str(tmp_path), 1, options=OPTIONS)
    the_pack(tmp_path).read_bytes()  # the page cache has it
    state = load(str(tmp_path), mapped=True)
    if not maps_of(the_pack(tmp_path)) and tuple(map(int, os.uname().release.split(".")[:2])) < (6, 5):
        pytest.skip("cachestat came with Linux 6.5")
    del state
    return tmp_path


def test_what_is_cached_lies_in_the_pack_and_is_right(saved: Path) -> None:
    for threads in (1, 4):
        state = load(str(saved), mapped=True, threads=threads)
        assert maps_of(the_pack(saved)) > 0
        assert same(state, state_of())
        del state
        assert maps_of(the_pack(saved)) == 0
    assert maps_of(the_pack(saved)) == 0
    kept = load(str(saved))
    assert maps_of(the_pack(saved)) == 0  # unless it is wanted
    assert same(kept, state_of())


def test_it_is_ones_own_and_stays_when_the_pack_is_pruned(saved: Path) -> None:
    before = the_pack(saved).read_bytes()
    state, other = load(str(saved), mapped=True), load(str(saved), mapped=True)
    state["pages"].fill_(7)
    state["rest"][:] = 9
    assert the_pack(saved).read_bytes() == before
    with Saver(str(saved), options=OPTIONS) as saver:
        saver.save(state_of(1), 2, full=True).wait()
    for path in (saved / "packs").iterdir():
        if path.read_bytes() == before:
            path.unlink()
    assert same(other, state_of())
    assert bool((state["pages"] == 7).all()) and bool((state["rest"] == 9).all())
    assert same(load(str(saved), mapped=True), state_of(1))


def test_what_is_not_cached_is_read(saved: Path) -> None:
    fd = os.open(the_pack(saved), os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    assert same(load(str(saved), mapped=True), state_of())


def test_targets_that_need_a_copy_are_filled_out_of_the_pack(saved: Path) -> None:
    wide = torch.zeros(8 * CHUNK, 2, dtype=torch.uint8)
    target = {**state_of(1), "pages": wide[:, 0]}  # not contiguous
    state = load(str(saved), into=target)
    assert torch.equal(wide[:, 0], state_of()["pages"]) and not wide[:, 1].any()
    assert maps_of(the_pack(saved)) == 0
    assert same({**state, "pages": wide[:, 0]}, state_of())


def test_a_flipped_bit_is_noticed(saved: Path) -> None:
    data = bytearray(the_pack(saved).read_bytes())
    data[len(data) // 2] ^= 1
    the_pack(saved).write_bytes(data)
    with pytest.raises(CorruptCheckpointError):
        load(str(saved), mapped=True)


def test_memory_is_there_once_it_was_touched() -> None:
    large, small = page_aligned(8 << 20), page_aligned(100)
    assert is_own_mapping(large) and is_own_mapping(large[4096:8192]) and not is_own_mapping(small)
    before = resident_bytes()
    touch(large)
    assert resident_bytes() - before > 7 << 20
    assert not large.any()


@pytest.mark.parametrize("mapped", [False, True])
def test_a_state_that_is_let_go_is_gone_at_once(saved: Path, mapped: bool) -> None:
    gc.disable()  # it must not take a collection
    try:
        state = load(str(saved), mapped=mapped)
        kept = weakref.ref(state["rest"])
        del state
        assert kept() is None
    finally:
        gc.enable()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
