"""torch.distributed.checkpoint in one process; tests/integration/checkpoint has it with several ranks."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.checkpoint import PosixStorage, Retention, SaveOptions, steps
from tests.lazy_module import lazy_module

if TYPE_CHECKING:
    from headrace.integrations.torch_checkpoint import HeadraceWriter

torch = lazy_module("torch")
dcp = lazy_module("torch.distributed.checkpoint")
torch_checkpoint = lazy_module("headrace.integrations.torch_checkpoint")


def saved(writer: HeadraceWriter, step: int, value: float, *, caches: bool = False) -> dict[str, Any]:
    """Save a state of which most is the same at each step, and return it."""
    state = {"steady": torch.arange(50_000.0), "weights": torch.full((30_000,), value)}
    planner = dcp.DefaultSavePlanner(enable_plan_caching=caches)
    dcp.save(state, checkpoint_id=str(step), storage_writer=writer, planner=planner, no_dist=True)
    return state


def assert_loads(folder: Path, step: int, state: dict[str, Any]) -> None:
    target = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    reader = torch_checkpoint.HeadraceReader(str(folder))
    dcp.load(target, checkpoint_id=str(step), storage_reader=reader, no_dist=True)
    assert all(torch.equal(target[name], state[name]) for name in state)


@pytest.fixture
def no_cached_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a cache of its own: torch keeps cached plans in the class."""
    for name, value in list(vars(dcp.SavePlanner).items()):
        if name.startswith("_cached_") and isinstance(value, dict):
            monkeypatch.setattr(dcp.SavePlanner, name, {})


@pytest.mark.usefixtures("no_cached_plans")
@pytest.mark.parametrize("later", [1.0, 2.0])  # the same state again, and another one
def test_a_cached_plan_of_an_earlier_save_is_refused(tmp_path: Path, later: float) -> None:
    """Else a rank would write the earlier step again, and the later one would be missing."""
    writer = torch_checkpoint.HeadraceWriter(str(tmp_path))
    first = saved(writer, 1, 1.0, caches=True)
    with pytest.raises(dcp.CheckpointException, match="enable_plan_caching"):
        saved(writer, 2, later, caches=True)
    assert steps(PosixStorage(str(tmp_path))) == [1]
    third = saved(writer, 3, later)
    assert_loads(tmp_path, 1, first)
    assert_loads(tmp_path, 3, third)


def test_a_training_that_continues_from_an_earlier_checkpoint_keeps_its_own(tmp_path: Path) -> None:
    options = SaveOptions(retention=Retention(last=1))
    for step in (800, 900):
        saved(torch_checkpoint.HeadraceWriter(str(tmp_path), options=options), step, step)
    writer = torch_checkpoint.HeadraceWriter(str(tmp_path), options=options)
    for step in (100, 200):
        state = saved(writer, step, step)
        assert steps(PosixStorage(str(tmp_path))) == [step, 900]
        assert_loads(tmp_path, step, state)


def open_packs(folder: Path) -> int:
    """Return how many descriptors of packs this process has."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(link.startswith(f"{folder}/packs/") for link in links)


def test_a_reader_that_is_dropped_keeps_no_pack_open(tmp_path: Path) -> None:
    saved(torch_checkpoint.HeadraceWriter(str(tmp_path)), 1, 1.0)
    reader = torch_checkpoint.HeadraceReader(str(tmp_path))
    assert set(reader.read_metadata().state_dict_metadata) == {"steady", "weights"}
    assert open_packs(tmp_path) > 0
    del reader
    assert open_packs(tmp_path) == 0
    reader = torch_checkpoint.HeadraceReader(str(tmp_path))
    with pytest.raises(dcp.CheckpointException, match="to be loaded as"):
        dcp.load({"steady": torch.zeros(50_000, dtype=torch.int64)}, storage_reader=reader, no_dist=True)
    del reader
    gc.collect()  # the error was in a cycle with its frames
    assert open_packs(tmp_path) == 0


LAST_SAVE = """
import concurrent.futures.thread, sys, time
import torch, torch.distributed.checkpoint as dcp
from headrace.integrations.torch_checkpoint import HeadraceWriter

class LateWriter(HeadraceWriter):
    def write_data(self, plan, planner):
        end_s = time.monotonic() + 60
        while not concurrent.futures.thread._shutdown and time.monotonic() < end_s:
            time.sleep(0.01)
        return super().write_data(plan, planner)

dcp.async_save(
    {"w": torch.arange(50_000.0)}, checkpoint_id="1", storage_writer=LateWriter(sys.argv[1]), no_dist=True
)
"""


def test_an_async_save_goes_on_while_the_interpreter_exits(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAST_SAVE, str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    assert steps(PosixStorage(str(tmp_path))) == [1], done.stderr
    assert_loads(tmp_path, 1, {"w": torch.arange(50_000.0)})
