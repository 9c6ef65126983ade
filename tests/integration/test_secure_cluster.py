"""A secure cluster the documented way (docs/security/tls.md): the commands that a person types, and their time."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.lab import network
from headrace.lab.lab import Lab, LabPlan
from tests import service_logs
from tests.fork_server import forking

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        bool(network.why_no_namespaces()), reason="no network namespaces for these tests of FUSE"
    ),
]
NODES = ("node-1", "node-2", "node-3")
COMMANDS_MAX, SECONDS_MAX = 8, 120


def typed(*words: str) -> int:
    """One command; 1."""
    if words[0] == "headrace":
        words = (sys.executable, "-P", "-m", *words)
    subprocess.run(words, check=True, capture_output=True, timeout=60)
    return 1


def test_three_hosts(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    truth = {f"{n}.bin": random.Random(n).randbytes(2_500_000 + n) for n in range(9)}
    for name, data in truth.items():
        (origin / name).write_bytes(data)
    authority, etc = tmp_path / "authority", tmp_path / "etc"
    etc.mkdir()
    began_s = time.monotonic()
    commands = typed("headrace", "tls", "init", "lab", "--folder", str(authority))
    commands += typed("headrace", "tls", "issue", *NODES, "--folder", str(authority))
    for node in NODES:
        commands += typed("cp", "-r", str(authority / node), str(etc / node))  # scp, to a host
    settings = {
        "tls_certificate": f"{etc}/{{node}}/certificate.pem",
        "tls_key": f"{etc}/{{node}}/key.pem",
        "tls_authority": f"{etc}/{{node}}/authority.pem",
    }
    folder = tmp_path / "lab"
    with forking(), service_logs.following(Lab(str(tmp_path / "lab.json")), folder) as lab:
        lab.up(LabPlan(nodes=3, origin=str(origin), settings=settings, folder=str(folder)))
        commands += len(NODES)  # headrace up, on each
        for number in (1, 2, 3):
            for name, data in truth.items():
                assert (Path(lab.mountpoint(number)) / name).read_bytes() == data
        took_s = time.monotonic() - began_s
        reports = [lab.report(number) for number in (1, 2, 3)]
    assert all(len(report["cluster"]["members"]) == 3 for report in reports)
    assert sum(report["origin"]["bytes_read"] for report in reports) == sum(map(len, truth.values()))
    print(f"commands={commands} seconds={took_s:.1f}")
    assert commands <= COMMANDS_MAX
    assert took_s < SECONDS_MAX
