"""The file of an export: durable with its name, and nothing of it after Ctrl-C."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from headrace.base.errors import CheckpointFailedError
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
        names = [_without_token(name) for name in os.listdir(tmp_path / "out")]
        synced.append((_without_token(os.readlink(f"/proc/self/fd/{fd}")), names))
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


def _without_token(path: str) -> str:
    return re.sub(r"\.[0-9a-f]{8}\.new$", ".new", path)


def _link(path: Path) -> None:
    path.with_name("target").write_bytes(b"mine")
    path.symlink_to("target")


@pytest.mark.parametrize("make", [os.mkfifo, _link], ids=["pipe", "link"])
def test_what_is_no_file_is_not_replaced(
    make: Callable[[Path], None], storage: PosixStorage, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    make(folder / "model.safetensors")
    before = {path: path.lstat().st_ino for path in folder.iterdir()}
    with pytest.raises(CheckpointFailedError, match="it is a link, a device or a pipe, and no file"):
        export(storage, str(folder / "model.safetensors"))
    assert {path: path.lstat().st_ino for path in folder.iterdir()} == before


def test_an_export_follows_no_link_that_waits_for_it(storage: PosixStorage, tmp_path: Path) -> None:
    """Root may export into a directory where others can make links."""
    folder = tmp_path / "out"
    folder.mkdir()
    (tmp_path / "precious").write_bytes(b"precious")
    (folder / "model.safetensors.new").symlink_to(tmp_path / "precious")
    export(storage, str(folder / "model.safetensors"))
    assert (tmp_path / "precious").read_bytes() == b"precious"
    assert sorted(os.listdir(folder)) == ["model.safetensors", "model.safetensors.new"]
    assert load_file(folder / "model.safetensors").keys() == STATE.keys()
