"""A benchmark refuses wrong input before it does anything."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import NotADirectoryPathError, PathNotFoundError, UsageError
from headrace.bench import checkpoints, compare, training
from headrace.bench.storage import where
from headrace.bench.training import TrainingPlan


def train(place: Path, **changed: Any) -> None:
    plan = TrainingPlan(
        workload="resnet50", where=where(str(place)), **{"sizes": 0.001, "epochs": 1, **changed}
    )
    training.run(plan, say=print, progress=lambda _done, _total: None)


def test_a_folder_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match="mkdir -p"):
        train(tmp_path / "mnt/data")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryPathError):
        train(tmp_path / "file")
    with pytest.raises(NotADirectoryPathError):
        train(tmp_path / "file/below/..")


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 1},
        {"steps": -5},
        {"epochs": 0},
        {"accelerators": -1},
        {"readers": -1},
        {"seed": -1},
        {"sizes": 0.0},
        {"sizes": -1.0},
        {"sizes": math.nan},
        {"times": math.inf},
    ],
    ids=str,
)
def test_numbers_that_make_no_run(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        train(tmp_path, **wrong)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "wrong", [{"folders": ["/no/such/nas"]}, {"work": "/no/such/disk"}, {"nodes": -1}], ids=str
)
def test_what_a_comparison_refuses(wrong: dict[str, Any]) -> None:
    plan = TrainingPlan(workload="resnet50", where=compare.NOWHERE)
    with pytest.raises((UsageError, PathNotFoundError)):
        compare.run(
            compare.ComparePlan(training=plan, **wrong), say=print, progress=lambda _done, _total: None
        )


@pytest.mark.parametrize(
    "wrong", [{"scale": math.nan}, {"scale": -1.0}, {"writes": 0}, {"reads": -1}], ids=str
)
def test_what_a_benchmark_of_checkpoints_refuses(wrong: dict[str, Any], tmp_path: Path) -> None:
    plan = checkpoints.CheckpointPlan(**{"model": "llama3-8b", "folders": [(str(tmp_path), ())], **wrong})
    with pytest.raises(UsageError):
        checkpoints.run(plan, say=print)
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_of_checkpoints_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    plan = checkpoints.CheckpointPlan(model="llama3-8b", folders=[(str(tmp_path / "missing"), ())])
    with pytest.raises(PathNotFoundError, match=f"mkdir -p {tmp_path}/missing"):
        checkpoints.run(plan, say=print)
