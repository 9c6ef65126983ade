"""`--loader tensorflow`: the same bytes as by our own reader, failures counted; refused where it can't be."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import NotSupportedError, UsageError
from headrace.bench.storage import where
from headrace.bench.training import TrainingPlan, run

pytestmark = pytest.mark.timeout(110)
SMALL = (
    "--scale-sizes",
    "0.01",
    "--scale-times",
    "0.05",
    "--steps",
    "3",
    "--epochs",
    "2",
    "--keep-cache",
    "--json",
)
HERE = importlib.util.find_spec("tensorflow") is not None
only_with_tensorflow = pytest.mark.skipif(not HERE, reason="tensorflow is not installed")


def bench(workload: str, folder: Path, *words: str, loader: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "headrace", "bench", "training", workload, str(folder), *SMALL, *words]
    done = subprocess.run(
        [*command, "--loader", loader], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def refusal(folder: Path, workload: str, loader: str) -> Exception:
    plan = TrainingPlan(workload=workload, where=where(str(folder)), loader=loader, steps=3, epochs=1)
    with pytest.raises((UsageError, NotSupportedError)) as exception:
        run(plan, say=lambda _line: None, progress=lambda _done, _total: None)
    assert list(folder.iterdir()) == []
    return exception.value


def test_what_it_can_not_read_is_refused(tmp_path: Path) -> None:
    assert "tfrecords" in str(refusal(tmp_path, "unet3d", "tensorflow"))
    assert "unknown" in str(refusal(tmp_path, "cosmoflow", "dali"))


@pytest.mark.skipif(HERE, reason="tensorflow is installed")
def test_without_tensorflow_it_is_refused(tmp_path: Path) -> None:
    assert "not installed" in str(refusal(tmp_path, "cosmoflow", "tensorflow"))


@only_with_tensorflow
@pytest.mark.parametrize("workload", ["cosmoflow", "resnet50"])
def test_it_reads_what_our_own_reader_reads(workload: str, tmp_path: Path) -> None:
    status, ours = bench(workload, tmp_path, loader="torch")
    assert status == 0
    status, report = bench(workload, tmp_path, loader="tensorflow")
    assert (status, report["failed"], report["loader"]) == (0, 0, "tensorflow")
    read = [epoch["bytes_read"] for epoch in report["epochs"]]
    assert [epoch["steps"] for epoch in report["epochs"]] == [3, 3]
    assert read == [epoch["bytes_read"] for epoch in ours["epochs"]]


@only_with_tensorflow
def test_a_broken_file_is_counted(tmp_path: Path) -> None:
    bench("cosmoflow", tmp_path, loader="torch")
    broken = min((tmp_path / "train").iterdir())
    body = bytearray(broken.read_bytes())
    body[len(body) // 2] ^= 1
    broken.write_bytes(body)
    status, report = bench("cosmoflow", tmp_path, loader="tensorflow")
    assert (status, report["epochs"][0]["failed"]) == (50, 1)
