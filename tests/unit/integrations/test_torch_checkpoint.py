"""torch.distributed.checkpoint in one process; tests/integration/checkpoint has it with several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner

from headrace.checkpoint import PosixStorage, Retention, SaveOptions, steps
from headrace.integrations.torch_checkpoint import HeadraceReader, HeadraceWriter


def saved(writer: HeadraceWriter, step: int, value: float, *, caches: bool = False) -> dict[str, Any]:
    """Save a state of which most is the same at each step, and return it."""
    state = {"steady": torch.arange(50_000.0), "weights": torch.full((30_000,), value)}
    planner = DefaultSavePlanner(enable_plan_caching=caches)
    dcp.save(state, checkpoint_id=str(step), storage_writer=writer, planner=planner, no_dist=True)
    return state


def assert_loads(folder: Path, step: int, state: dict[str, Any]) -> None:
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    reader = HeadraceReader(str(folder))
    dcp.load(target, checkpoint_id=str(step), storage_reader=reader, no_dist=True)
    assert all(torch.equal(target[name], state[name]) for name in state)


@pytest.fixture
def no_cached_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a cache of its own: torch keeps cached plans in the class."""
    for name, value in list(vars(SavePlanner).items()):
        if name.startswith("_cached_") and isinstance(value, dict):
            monkeypatch.setattr(SavePlanner, name, {})


@pytest.mark.usefixtures("no_cached_plans")
@pytest.mark.parametrize("later", [1.0, 2.0])  # the same state again, and another one
def test_a_cached_plan_of_an_earlier_save_is_refused(tmp_path: Path, later: float) -> None:
    """Else a rank would write the earlier step again, and the later one would be missing."""
    writer = HeadraceWriter(str(tmp_path))
    first = saved(writer, 1, 1.0, caches=True)
    with pytest.raises(CheckpointException, match="enable_plan_caching"):
        saved(writer, 2, later, caches=True)
    assert steps(PosixStorage(str(tmp_path))) == [1]
    third = saved(writer, 3, later)
    assert_loads(tmp_path, 1, first)
    assert_loads(tmp_path, 3, third)


def test_a_training_that_continues_from_an_earlier_checkpoint_keeps_its_own(tmp_path: Path) -> None:
    options = SaveOptions(retention=Retention(last=1))
    for step in (800, 900):
        saved(HeadraceWriter(str(tmp_path), options=options), step, step)
    writer = HeadraceWriter(str(tmp_path), options=options)
    for step in (100, 200):
        state = saved(writer, step, step)
        assert steps(PosixStorage(str(tmp_path))) == [step, 900]
        assert_loads(tmp_path, step, state)
