"""A lab that can't begin leaves nothing, and is in the way of no other one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headrace.base.errors import StoreError
from headrace.config.schema import CacheVolume, Config
from headrace.lab import lab as labs
from headrace.lab import network, processes, state
from headrace.lab.lab import Lab, LabPlan
from headrace.lab.processes import NotReadyError
from headrace.seal import mountpoint
from headrace.seal.catalogue import Catalogue, Place, SealId


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


def fail_to_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: str) -> NotReadyError:
    """Start a lab whose node ends with an error of its own, and return the error of the lab."""
    (tmp_path / "large").mkdir()
    monkeypatch.setattr(labs, "_large_folder", lambda: str(tmp_path / "large"))
    monkeypatch.setattr(network, "choose", lambda directory, _: (network.Loopback(directory), ""))
    script = "import sys; print('headrace: file:///a: No such file'); sys.exit(13)"

    def start(lab_state: state.LabState, _: object, number: int) -> int:
        directory = f"{lab_state.folder}/node-{number}"
        return processes.spawn([sys.executable, "-c", script], directory, name="up", environment={})

    monkeypatch.setattr(labs, "_start_node", start)
    with pytest.raises(NotReadyError) as raised:
        Lab(str(tmp_path / "lab.json")).up(LabPlan(nodes=1, origin="/a", alone=True, folder=folder))
    return raised.value


def test_a_lab_ends_with_the_error_and_the_status_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = fail_to_start(monkeypatch, tmp_path, folder="")
    assert str(error) == "node 1 can't start: file:///a: No such file"  # its log is gone
    assert error.status == 13


def test_the_log_of_a_node_that_can_not_start_is_named_where_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = fail_to_start(monkeypatch, tmp_path, folder=str(tmp_path / "kept"))
    assert error.hint == f"see {tmp_path}/kept/node-1/up.log"


def test_the_seals_of_a_lab_are_unmounted_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, path = tmp_path / "lab", str(tmp_path / "lab.json")
    catalogue = Catalogue.of_cache(str(folder / "node-1/cache"))
    os.makedirs(catalogue.path(SealId("a", 1), ""))
    (tmp_path / "new").mkdir()
    (tmp_path / "kept").mkdir()
    inode = os.stat(tmp_path / "new").st_ino
    places = [Place(str(tmp_path / "new"), created_inode=inode), Place(str(tmp_path / "kept"))]
    catalogue.change_places(SealId("a", 1), lambda _: places)
    mounted = {catalogue.folder: {"a@1": [place.mountpoint for place in places]}}
    unmounted: list[str] = []
    monkeypatch.setattr(labs, "mountpoints", lambda catalogue: mounted.pop(catalogue.folder, {}))
    monkeypatch.setattr(labs, "unmount_seal", unmounted.append)
    monkeypatch.setattr(mountpoint, "only_root_moves", lambda _: True)
    record = state.LabState(folder=str(folder), network="loopback", nodes=[1, 2], made_folder=True)
    state.write(path, record)
    Lab(path).down()
    assert unmounted == [str(tmp_path / "new"), str(tmp_path / "kept")]
    assert not (tmp_path / "new").exists() and (tmp_path / "kept").is_dir()
    assert not folder.exists()


def test_the_status_names_the_socket_of_a_node(tmp_path: Path) -> None:
    path = str(tmp_path / "lab.json")
    state.write(path, state.LabState(folder=str(tmp_path), network="loopback", nodes=[1]))
    (row,) = Lab(path).status()
    config = Config(run_folder=f"{tmp_path}/node-1", cache=[CacheVolume(f"{tmp_path}/node-1/cache", 1 << 30)])
    assert row["socket"] == config.socket_path
