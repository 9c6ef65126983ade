"""Training in a cluster of two hosts on slow links: reads that wait for the origin, and for the other host."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.lab import network, services
from headrace.lab.lab import Lab, LabPlan
from headrace.ring.view import NodeInfo, next_view
from headrace.testing.servers import ServerMissing
from tests import service_logs
from tests.integration.diagnose.conftest import first_cause
from tests.integration.diagnose.job_fork_server import JobForkServer

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        bool(network.why_no_namespaces()), reason="no network namespaces for these tests of FUSE"
    ),
    # both nodes end at once, while one still reads for the job of the last test
    pytest.mark.expected_warnings("a peer did not return bytes that it owns"),
]
RATE_BITS_S = 20_000_000
FILE_BYTES = 300_000
NAMES = [f"{number}.bin" for number in range(120)]
READ = 40


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    base = tmp_path_factory.mktemp("lab")
    try:
        with service_logs.following(Lab(str(base / "lab.json")), base / "lab") as lab:
            lab.up(
                LabPlan(
                    nodes=2,
                    rate_bits_s=RATE_BITS_S,
                    cache_bytes=256 << 20,
                    folder=str(base / "lab"),
                    sample=False,
                    settings={"predict_reads": "false"},  # of a walk, files that the job skips, too
                )
            )
            client = services.client_of(lab.store())
            for name in NAMES:
                client.put(name, random.Random(name).randbytes(FILE_BYTES))
            words = [*services.python_words(), "sync"]  # nodes have listed the origin when they began
            subprocess.run(words, env=lab.environment(1), stdout=subprocess.DEVNULL, check=True, timeout=60)
            yield lab
    except ServerMissing as error:
        pytest.skip(str(error))


def owned_by(lab: Lab, id: str) -> list[str]:
    """Names whose owner is that node, by the members that the first node sees."""
    nodes = {
        row["id"]: NodeInfo(
            row["id"], "", row["address"], row["zone"], row["capacity_bytes"], "", 1, row["draining"]
        )
        for row in lab.report(1)["cluster"]["members"]
    }
    assert len(nodes) == 2
    view = next_view(None, nodes, epoch=1)
    return [name for name in NAMES if view.owners(os.fsencode(f"/{name}"))[0].id == id]


def diagnosed(job_server: JobForkServer, lab: Lab, names: list[str], list_file: Path) -> dict[str, Any]:
    """Diagnose a job on the first node's host that reads the names once."""
    list_file.write_text("\n".join(f"{lab.mountpoint(1)}/{name}" for name in names))
    return job_server.diagnose("read_files", list_file, run_folder=lab.folder(1))


def used_mount(report: dict[str, Any], lab: Lab) -> dict[str, Any]:
    """Return the report's usage of the first node's mount. A job may read modules from the system's disk beside it."""
    usage: dict[str, Any]
    (usage,) = [each for each in report["places"] if each["mountpoint"] == lab.mountpoint(1)]
    return usage


def test_a_slow_origin_is_ranked_first(job_server: JobForkServer, lab: Lab, tmp_path: Path) -> None:
    report = diagnosed(job_server, lab, owned_by(lab, "node-1"), tmp_path / "list")
    assert first_cause(report)["cause"] == "storage.origin", report
    place = used_mount(report, lab)
    assert place["storage"] == "headrace"
    assert place["origin_bytes"] > 3 * FILE_BYTES
    assert lab.store().url in " ".join(report["causes"][0]["evidence"])


def test_a_slow_peer_is_ranked_first(job_server: JobForkServer, lab: Lab, tmp_path: Path) -> None:
    names = owned_by(lab, "node-2")[:READ]
    subprocess.run(["cat", *names], cwd=lab.mountpoint(2), stdout=subprocess.DEVNULL, check=True, timeout=60)
    report = diagnosed(job_server, lab, names, tmp_path / "list")
    assert first_cause(report)["cause"] == "storage.peer", report
    place = used_mount(report, lab)
    assert place["peer_bytes"] > 3 * FILE_BYTES
    assert place["peer_bytes"] > 10 * place["origin_bytes"]
