"""Each workload from end to end, at a small size: data made, read by real loaders on a folder and through a mount."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.bench import dataset, workloads
from headrace.bench.storage import where
from headrace.config.secret_options import option_words
from headrace.testing.servers import S3Server, ServerMissing, free_ports, seaweedfs_s3
from tests import fork_server
from tests.fork_server import TorchPopen
from tests.integration.cli.host import Host

pytestmark = pytest.mark.timeout(110)
SMALL = ("--steps", "3", "--epochs", "2", "--readers", "2", "--scale-times", "0.05", "--keep-cache", "--json")
SIZES = {
    "unet3d": "0.0005",
    "retinanet": "0.05",
    "resnet50": "0.002",
    "cosmoflow": "0.01",
    "imagefolder": "0.02",
    "tokens": "0.5",
}


def bench(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "bench", "training", *words]
    return fork_server.run_with_torch(
        command, capture_output=True, text=True, timeout=100, env={**os.environ, **(environment or {})}
    )


def result(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def check(report: dict[str, Any], folder: Path, *, accelerators: int = 1) -> None:
    assert report["failed"] == 0
    assert report["called"] != "MLPerf Storage workload"
    assert [epoch["steps"] for epoch in report["epochs"]] == [3, 3]
    size = sum(path.stat().st_size for path in folder.glob("train/**/*") if path.is_file())
    for epoch in report["epochs"]:
        assert 0 < epoch["au"] <= 1
        assert epoch["samples_s"] > 0
        if report["format"] != "tfrecord" or report["workload"] == "cosmoflow":
            assert size * 0.97 - 4000 <= epoch["bytes_read"] <= size  # all of it, less what the formats add
        assert epoch["bytes_read"] > 0
    assert report["samples"] == 3 * report["batch"] * accelerators


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.close()


def make(workload: str, folder: Path, *, accelerators: int = 1) -> dataset.DataSet:
    profile = workloads.workload(workload).scaled(sizes=float(SIZES[workload]), times=1)
    wanted = dataset.data_set(profile, steps=3, accelerators=accelerators, seed=42)
    return dataset.make(where(str(folder)), wanted, progress=lambda _done, _total: None)


@pytest.mark.fuse
@pytest.mark.parametrize("workload", SIZES)
def test_through_a_mount(workload: str, host: Host) -> None:
    make(workload, host.truth)
    host.up()
    words = (workload, str(host.mount), "--scale-sizes", SIZES[workload], *SMALL, "--no-generate")
    report = result(bench(*words))
    check(report, host.truth)
    assert (report["workload"], report["where"]) == (workload, str(host.mount))
    cached = host.status()["origin"]["bytes_read"]
    assert cached >= report["epochs"][0]["bytes_read"]  # it came through the node


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    try:
        with seaweedfs_s3() as server:
            yield server
    except ServerMissing as error:
        pytest.skip(str(error))


def origin_words(store: S3Server, folder: Path) -> list[str]:
    return option_words(store.options(), str(folder))


def test_on_an_object_store_by_both_libraries(store: S3Server, tmp_path: Path) -> None:
    words = (
        "unet3d",
        store.url("unet3d"),
        "--scale-sizes",
        SIZES["unet3d"],
        *SMALL,
        "--version",
        "v2.0",  # whose npz are decoded
        *origin_words(store, tmp_path),
    )
    first_run = result(bench(*words))
    second_run = result(bench(*words, "--by", "obstore", "--no-generate"))
    assert (first_run["failed"], second_run["failed"]) == (0, 0)
    assert [epoch["bytes_read"] for epoch in second_run["epochs"]] == [
        epoch["bytes_read"] for epoch in first_run["epochs"]
    ]
    assert second_run["dataset_bytes"] > first_run["epochs"][0]["bytes_read"] > 0


def two_free_ports() -> int:
    """Neighbours; the first one's number."""
    while True:
        (port,) = free_ports(1)
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
        except OSError:
            continue
        return port


def test_two_hosts(tmp_path: Path) -> None:
    """Two processes that meet: the second waits until the first has made the data set, and prints nothing."""
    meet = f"127.0.0.1:{two_free_ports()}"
    words = ["cosmoflow", str(tmp_path), "--scale-sizes", SIZES["cosmoflow"], *SMALL]
    words += ["--hosts", "2", "--meet", meet]
    command = [sys.executable, "-m", "headrace", "bench", "training", *words, "--host", "1"]
    other: TorchPopen[bytes] = TorchPopen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        report = result(bench(*words, "--host", "0"))
        out, _ = other.communicate(timeout=60)
    finally:
        other.kill()
        other.wait()
    assert (other.returncode, out) == (0, b"")
    check(report, tmp_path, accelerators=2)
    assert (report["hosts"], report["accelerators"]) == (2, 2)


def test_reads_that_fail_are_counted_and_the_run_ends(tmp_path: Path) -> None:
    words = ("unet3d", str(tmp_path), "--version", "v2.0", "--scale-sizes", SIZES["unet3d"], *SMALL)
    make("unet3d", tmp_path)
    files = sorted((tmp_path / "train").iterdir())
    os.truncate(files[0], 1000)
    body = bytearray(files[9].read_bytes())
    body[len(body) // 2] ^= 1
    files[9].write_bytes(body)
    done = bench(*words)
    assert done.returncode == 50
    report = json.loads(done.stdout)
    assert [epoch["failed"] for epoch in report["epochs"]] == [2, 2]
    assert not report["passed"]
    assert "BadZipFile" in done.stderr


def test_what_is_missing_is_made_again_and_another_set_is_refused(tmp_path: Path) -> None:
    data = make("cosmoflow", tmp_path)
    files = sorted((tmp_path / "train").iterdir())
    before = {path.name: path.read_bytes() for path in files}
    kept = files[0].stat().st_mtime_ns
    files[1].unlink()
    words = ("cosmoflow", str(tmp_path), "--scale-sizes", SIZES["cosmoflow"], *SMALL)
    assert "lacks 1 files" in bench(*words, "--no-generate").stderr
    assert make("cosmoflow", tmp_path) == data
    assert {path.name: path.read_bytes() for path in (tmp_path / "train").iterdir()} == before
    assert files[0].stat().st_mtime_ns == kept
    refused = bench("cosmoflow", str(tmp_path), "--scale-sizes", "0.02", *SMALL)
    assert refused.returncode == 2
    assert "another data set" in refused.stderr
    with pytest.raises(UsageError, match="smaller"):
        make("cosmoflow", tmp_path, accelerators=2)
