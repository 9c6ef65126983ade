"""torch.distributed.checkpoint with its own writer and reader for fsspec, over `headrace://`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headrace.base.errors import NodeUnavailableError
from tests.integration.door.conftest import MakeDoor, left_in_work, tree_of
from tests.integration.gloo import run_ranks
from tests.lazy_module import lazy_module

dcp = lazy_module("torch.distributed.checkpoint")
pytestmark = pytest.mark.timeout(200)


def test_two_ranks_save_at_once_and_later_and_load(make_door: MakeDoor, tmp_path: Path) -> None:
    """In mode through: what was saved is at the origin, bit by bit."""
    host, fs = make_door(write="through")
    folder = tmp_path / "ranks"
    folder.mkdir()
    run_ranks("tests.integration.door.door_ranks", folder, "headrace:///saved/run7", limit_s=150)
    assert sorted(file.name for file in folder.glob("seen-*")) == ["seen-0", "seen-1"]
    names = {".metadata", "__0_0.distcp", "__1_0.distcp"}
    for step in ("step-1", "step-2"):
        assert {Path(path).name for path in fs.ls(f"/saved/run7/{step}", detail=False)} == names
    saved = {f"/saved/{name}": held for name, held in tree_of(host.truth / "saved").items() if held != "dir"}
    assert {name: held.hex() for name, held in fs.cat("/saved", recursive=True).items()} == saved
    assert len(saved) == 6
    assert left_in_work(host) == []


def test_without_a_node_a_save_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path))
    with pytest.raises(dcp.CheckpointException) as caught:
        dcp.save({"x": torch.ones(3)}, checkpoint_id="headrace:///saved", no_dist=True)
    (error,) = [failure[0] for failure in caught.value.failures.values()]
    assert isinstance(error, NodeUnavailableError)
    assert "headrace up" in str(error)
