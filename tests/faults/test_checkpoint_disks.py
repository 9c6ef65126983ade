"""Checkpoints on a disk that is full, or answers EIO: an error that says so, and all that was committed is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import CheckpointFailedError, CheckpointNoSpaceError
from headrace.checkpoint import PosixStorage, Retention, SaveOptions, Saver, load, save, steps, verify
from headrace.checkpoint.prune import prune
from tests.faults.conftest import MakeDisk

MIB = 1 << 20
OPTIONS = SaveOptions(chunk_bytes=MIB, slot_bytes=4 * MIB)


def state_of(step: int) -> dict[str, Any]:
    return {"w": np.random.default_rng(step).integers(0, 256, 5 * MIB, dtype=np.uint8), "step": step}


def assert_right(folder: Path, wanted: list[int]) -> None:
    assert steps(PosixStorage(str(folder))) == wanted
    for step in wanted:
        state = load(str(folder), step)
        assert state["step"] == step and np.array_equal(state["w"], state_of(step)["w"])


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.expected_warnings("no space left on device")
def test_a_full_disk(tmp_path: Path, make_disk: MakeDisk, kind: str) -> None:
    folder = tmp_path / "disk"
    make_disk(folder, f"{kind}:{24 * MIB}")
    saver = Saver(str(folder), options=OPTIONS)
    done = []
    for step in range(1, 8):
        saving = saver.save(state_of(step), step)
        try:
            saving.wait()
            done.append(step)
        except CheckpointNoSpaceError as error:
            assert "no space left" in str(error)
    assert 2 <= len(done) <= 4
    assert_right(folder, done)
    prune(PosixStorage(str(folder)), Retention(last=1))
    saver.save(state_of(9), 9).wait()  # there is room again, and nothing of the failed ones takes any
    saver.close()
    assert_right(folder, [done[-1], 9])
    assert len(list((folder / "packs").iterdir())) == 2


@pytest.mark.expected_warnings("input/output error")
def test_a_disk_that_answers_eio(tmp_path: Path, make_disk: MakeDisk) -> None:
    folder = tmp_path / "disk"
    disk = make_disk(folder, f"ext4:{48 * MIB}")
    saver = Saver(str(folder), options=OPTIONS)
    saver.save(state_of(1), 1).wait()
    disk.break_down()
    with pytest.raises(CheckpointFailedError, match="input/output error"):
        saver.save(state_of(2), 2).wait()
    saver.close()
    with pytest.raises(OSError):
        load(str(folder), 1)


@pytest.mark.expected_warnings("read-only file system")
def test_a_disk_that_is_read_only(tmp_path: Path, make_disk: MakeDisk) -> None:
    folder = tmp_path / "disk"
    disk = make_disk(folder, f"ext4:{48 * MIB}")
    save(state_of(1), str(folder), 1, options=OPTIONS)
    disk.remount("ro")
    with pytest.raises(CheckpointFailedError, match="read-only file system"):
        save(state_of(2), str(folder), 2, options=OPTIONS)
    assert_right(folder, [1])
    verify(str(folder))
    disk.remount("rw")
    save(state_of(2), str(folder), 2, options=OPTIONS)
    assert_right(folder, [1, 2])
