"""Scripts each made slow in one known way, and healthy ones: what `headrace diagnose --pid` says of them first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.integration.diagnose.job_fork_server import JobForkServer

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to tell one from all"),
]
MOSTLY = 0.3
"""Of the time: each script is made to lose far more, and the machine of a test is never idle."""


def first(found: dict[str, Any]) -> dict[str, Any]:
    assert found["causes"], found
    assert found["moments"] > 20, found
    cause: dict[str, Any] = found["causes"][0]
    assert not found["healthy"], found
    assert cause["share"] >= MOSTLY, found
    assert cause["gain"] > 1, found
    return cause


@pytest.mark.parametrize(
    ("script", "cause", "evidence"),
    [
        ("decoding", "loader.processor", "Packed.__getitem__"),
        ("in_main", "loader.in_main_process", "augment"),
        ("too_few_workers", "loader.too_few_workers", "augment"),
        ("starved", "loader.starved", "3 of 4 workers are idle"),
        ("hand_over", "loader.hand_over", "hand_over.py"),
        ("restarts", "loader.restarts", "worker processes"),
        ("copies", "copies", "copies.py"),
        ("small_batches", "compute.small_batches", "optimizer"),
        ("one_core", "compute.unparallel", "beam_search"),
        ("interpreter_lock", "compute.interpreter_lock", "score"),
    ],
)
def test_the_known_cause_is_ranked_first(
    job_server: JobForkServer, script: str, cause: str, evidence: str
) -> None:
    found = first(job_server.diagnose(script))
    assert found["cause"] == cause, found
    assert evidence in " ".join(found["evidence"]), found


def test_checkpoints_that_stop_training_are_ranked_first(job_server: JobForkServer, tmp_path: Path) -> None:
    found = first(job_server.diagnose("checkpoint_stalls", tmp_path))
    assert found["cause"] == "checkpoint", found


def test_the_hook_counts_the_steps_of_small_batches(job_server: JobForkServer) -> None:
    found = job_server.diagnose("small_batches", "watch")
    assert first(found)["cause"] == "compute.small_batches"
    assert found["steps"] > 20
    assert found["samples"] == found["steps"] or found["samples"] - found["steps"] in (-1, 1)


@pytest.mark.parametrize("script", ["healthy", "healthy_processor"])
def test_a_healthy_job_is_called_healthy(job_server: JobForkServer, script: str) -> None:
    found = job_server.diagnose(script)
    assert found["healthy"], found
    assert found["moments"] > 20
