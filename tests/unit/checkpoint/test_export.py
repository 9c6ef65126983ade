"""The file of an export: durable with its name, and nothing of it after Ctrl-C."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from headrace.checkpoint import PosixStorage, save
from headrace.checkpoint.export import export

STATE = {"w": np.arange(5000.0), "b": np.ones(3000, np.float32)}


@pytest.fixture
def storage(tmp_path: Path) -> PosixStorage:
    save(STATE, str(tmp_path / "checkpoints"), 1)
    return PosixStorage(str(tmp_path / "checkpoints"))


def test_the_bytes_and_then_the_name_are_synced(
    storage: PosixStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), os.listdir(tmp_path / "out")))
        fsync(fd)

    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.chdir(folder)
    export(storage, "model.safetensors")  # a name without a directory
    assert synced == [
        (str(folder / "model.safetensors.new"), ["model.safetensors.new"]),
        (str(folder), ["model.safetensors"]),
    ]
    loaded = load_file(folder / "model.safetensors")
    assert all(np.array_equal(loaded[name], value) for name, value in STATE.items())


def test_ctrl_c_leaves_the_earlier_file(
    storage: PosixStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "out"
    folder.mkdir()
    export(storage, str(folder / "model.safetensors"))
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr("headrace.checkpoint.export.fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(storage, str(folder / "model.safetensors"))
    assert os.listdir(folder) == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == before
