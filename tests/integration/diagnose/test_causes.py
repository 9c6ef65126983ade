"""Scripts each made slow in one known way, and healthy ones: what `headrace diagnose --pid` says of them first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.diagnose.conftest import first_cause
from tests.integration.diagnose.job_fork_server import JobForkServer

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores to tell one from all"),
]


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
    top = first_cause(job_server.diagnose(script))
    assert top["cause"] == cause, top
    assert evidence in " ".join(top["evidence"]), top


def test_checkpoints_that_stop_training_are_ranked_first(job_server: JobForkServer, tmp_path: Path) -> None:
    top = first_cause(job_server.diagnose("checkpoint_stalls", tmp_path))
    assert top["cause"] == "checkpoint", top


def test_the_hook_counts_the_steps_of_small_batches(job_server: JobForkServer) -> None:
    report = job_server.diagnose("small_batches", "watch")
    assert first_cause(report)["cause"] == "compute.small_batches"
    assert report["steps"] > 20
    assert report["samples"] == report["steps"] or report["samples"] - report["steps"] in (-1, 1)


@pytest.mark.parametrize("script", ["healthy", "healthy_processor"])
def test_a_healthy_job_is_called_healthy(job_server: JobForkServer, script: str) -> None:
    # tests beside this one take 5 % of its steps, and a tenth makes a job ill: 100 samples would tell them badly apart
    report = job_server.diagnose(script, watched_s=4.0)
    assert report["healthy"], report
    assert report["moments"] > 20
