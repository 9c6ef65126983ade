"""Names that another user put into a shared checkpoint directory: saves, lists and prunes continue."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.base.errors import CorruptCheckpointError
from headrace.checkpoint import PosixStorage, Retention, Saver, load, save
from headrace.checkpoint import folder as checkpoint_folder
from headrace.checkpoint.prune import prune

STATE = {"w": np.arange(1000)}
Plant = Callable[[Path], object]


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(path))


PLANTS: dict[str, Plant] = {
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "directory": lambda path: path.mkdir(),
    "fifo": lambda path: os.mkfifo(path),
    "socket": _socket,
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PosixStorage:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    place = PosixStorage(str(tmp_path))
    save(STATE, place, 1)
    return place


@pytest.mark.expected_warnings("headrace.checkpoint")
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_manifest_that_is_no_file_is_corrupt(plant: Plant, place: PosixStorage, tmp_path: Path) -> None:
    plant(tmp_path / "manifests" / f"{9:012d}")
    with Saver(place) as saver:
        assert saver.save(STATE, 2).wait().step == 2
    with pytest.raises(CorruptCheckpointError, match="not a regular file"):
        checkpoint_folder.head(place, 9)
    with pytest.raises(CorruptCheckpointError, match="not a regular file"):
        load(place)
    assert load(place, 2)["w"].shape == (1000,)
    assert prune(place, Retention()).corrupt == [9]


@pytest.mark.expected_warnings("headrace.checkpoint.prune")
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_a_claim_that_is_no_file_has_no_owner(plant: Plant, place: PosixStorage, tmp_path: Path) -> None:
    folder = tmp_path / "saves" / "000000000009-a-0"
    folder.mkdir()
    plant(folder / "0.claim")
    is_removable = not (folder / "0.claim").is_dir()
    assert not place.is_claimed("saves/000000000009-a-0/0.claim")
    assert prune(place, Retention()).saves == ([folder.name] if is_removable else [])
    assert folder.exists() is not is_removable


@pytest.mark.parametrize("plant", [value for name, value in PLANTS.items() if name != "directory"])
def test_a_prune_passes_over_a_save_that_is_no_directory(
    plant: Plant, place: PosixStorage, tmp_path: Path
) -> None:
    plant(tmp_path / "saves" / "x")
    assert prune(place, Retention()).saves == []
    assert os.path.lexists(tmp_path / "saves" / "x")


@pytest.mark.expected_warnings("headrace.checkpoint.prune")
def test_a_prune_passes_over_an_incomplete_manifest_that_is_a_directory(
    place: PosixStorage, tmp_path: Path
) -> None:
    (tmp_path / "manifests" / "x.new").mkdir()
    assert prune(place, Retention()).corrupt == []
