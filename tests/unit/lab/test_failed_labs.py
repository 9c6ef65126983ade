"""A lab that can't begin leaves nothing, and is in the way of no other one."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import StoreError
from headrace.lab import lab as labs
from headrace.lab import state
from headrace.lab.lab import Lab, LabPlan


def test_a_lab_whose_state_can_not_be_written_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").mkdir()
    monkeypatch.setattr(labs, "_large_folder", lambda: str(tmp_path / "large"))
    (tmp_path / "run" / "lab.json.new").mkdir(parents=True)
    with pytest.raises(StoreError, match="state of the lab"):
        Lab(str(tmp_path / "run/lab.json")).up(LabPlan(nodes=1))
    assert list((tmp_path / "large").iterdir()) == []


def test_a_lab_whose_directory_can_not_be_made_leaves_no_state(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lab = Lab(str(tmp_path / "run/lab.json"))
    with pytest.raises(NotADirectoryError, match="file/lab"):
        lab.up(LabPlan(nodes=1, folder=str(tmp_path / "file/lab")))
    assert not (tmp_path / "run").exists()


def test_a_lab_whose_directory_has_become_a_file_ends(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "lab.json")
    state.write(path, state.LabState(folder=str(tmp_path / "file"), network="loopback"))
    Lab(path).down()
    assert state.read(path) is None
