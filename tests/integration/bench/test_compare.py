"""The ways side by side, from end to end at a small size: what the origin served, what was read, and the pages."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing.servers import ServerMissing, find_program
from tests import fork_server

pytestmark = [pytest.mark.timeout(110), pytest.mark.fuse]
SMALL = ("--scale-sizes", "0.002", "--scale-times", "0.05", "--steps", "3", "--epochs", "2", "--readers", "2")


@pytest.fixture(autouse=True)
def _needs(needs_fuse: None) -> None:
    try:
        find_program("weed", hint="")
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def work() -> Iterator[Path]:
    """With a short path: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="hr-test-") as folder:
        yield Path(folder)


def compare(work: Path, *words: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "headrace",
        "bench",
        "compare",
        "unet3d",
        *SMALL,
        *words,
        "--json",
        "--keep-cache",
    ]
    done = fork_server.run_with_torch(
        [*command, "--work", str(work)], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    with open("/proc/self/mounts") as mounts:
        assert str(work) not in mounts.read()
    assert list(work.iterdir()) == []
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_ways_on_one_host(work: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    ways = "local,obstore,s3fs-fuse,headrace"
    comparison = compare(work, "--only", ways, "--report", str(report), "--origin-latency-ms", "1")
    local, obstore, s3fs, ours = comparison["ways"]
    size, files = comparison["dataset_bytes"], 3 * 7
    assert [(row["bytes"], row["requests"]) for row in local["served"]] == [(0, 0), (0, 0)]
    assert [(row["bytes"], row["gets"]) for row in obstore["served"]] == [(size, files), (size, files)]
    assert [row["bytes"] for row in ours["served"]] == [size, 0]  # each byte once
    assert ours["served"][0]["cost"] > 0 == ours["served"][1]["cost"]
    assert ours["disk_bytes"] >= size
    assert obstore["disk_bytes"] == 0
    for way in (local, obstore, ours):
        assert way["training"]["failed"] == 0
        assert way["training"]["called"] == "MLPerf Storage workload, scaled"
        assert way["processor_s_gib"] > 0
        assert [epoch["bytes_read"] for epoch in way["training"]["epochs"]] == [
            epoch["bytes_read"] for epoch in local["training"]["epochs"]
        ]
    assert s3fs["training"] is not None or s3fs["not_run"]
    page = (report / "compare.html").read_text()
    assert "Headrace" in page
    assert "<svg" in page
    assert "src=" not in page  # nothing that a network would have to bring
    assert (report / "compare.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_lab_of_two_nodes_asks_the_origin_once(work: Path) -> None:
    comparison = compare(
        work, "--only", "headrace", "--nodes", "2", "--rate", "1Gbit", "--shuffle", "--epochs", "3"
    )
    (ours,) = comparison["ways"]
    assert (ours["training"]["hosts"], ours["training"]["accelerators"]) == (2, 2)
    assert sum(epoch["bytes"] for epoch in ours["served"]) == comparison["dataset_bytes"]
    assert ours["training"]["failed"] == 0
