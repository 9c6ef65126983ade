"""Links that drop every packet without a word, both ways or one: readers elsewhere get right bytes in bounded time, and
after the link heals the node behind it is asked again. Nodes in network namespaces, with an etcd and an object store
of their own."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import HeadraceError
from headrace.lab import network, services
from headrace.lab.lab import Lab, LabPlan
from headrace.testing.etcd import find_etcd
from headrace.testing.servers import ServerMissing, find_program
from headrace.testing.waiting import wait_for
from tests import service_logs
from tests.fork_server import forking
from tests.integration.cli.host import READER
from tests.integration.cluster.conftest import UNREACHABLE

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(300),
    pytest.mark.expected_warnings(*UNREACHABLE),
    pytest.mark.skipif(
        bool(network.why_no_namespaces()), reason="no network namespaces for these tests of FUSE"
    ),
]
WAYS = ("", "in", "out")
BEHIND = 1
"""The node whose link is cut."""
OTHERS = (2, 3)
FILES = 16
PROBES = 150
CUT_LIMIT_S = 60.0
"""The limit for reading a directory while the link is cut. A second or two pass before a silent peer is given up.
The rest is for a machine that does other things."""
HEAL_LIMIT_S = 90.0
"""A peer that was given up is probed after 15 s at most."""


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("links") / "truth"
    chance = random.Random(7)
    for way in WAYS:
        for number in range(FILES):
            put(folder / f"cut-{way}" / f"{number}", chance.randbytes(60_000 + number))
        put(folder / f"cut-{way}" / "large", chance.randbytes((9 << 20) + 7))
        for number in range(PROBES):
            put(folder / f"heal-{way}" / f"{number:03d}", chance.randbytes(100 + number))
    return folder


def put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, truth: Path) -> Iterator[Lab]:
    try:
        find_program("weed", hint="")
        find_etcd()
    except (ServerMissing, HeadraceError) as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("lab")
    # A lease of 120 s does not end while a link is cut, however busy the machine. Predictions would fetch the files of
    # a later test from the node whose link it cuts.
    settings = {"sync_interval_s": "3600", "lease_s": "120", "predict_reads": "false"}
    with forking(), service_logs.following(Lab(str(folder / "lab.json")), folder / "lab") as lab:
        lab.up(LabPlan(nodes=3, settings=settings, sample=False, folder=str(folder / "lab")))
        store = services.client_of(lab.store())
        for path in sorted(truth.rglob("*")):
            if path.is_file():
                store.put(str(path.relative_to(truth)), path.read_bytes())
        words = [*services.python_words(), "sync", lab.mountpoint(BEHIND)]
        subprocess.run(words, env=lab.environment(BEHIND), capture_output=True, timeout=60, check=True)
        for number in (BEHIND, *OTHERS):  # names are known before a link is cut
            done = subprocess.run(
                ["find", lab.mountpoint(number), "-type", "f"], capture_output=True, timeout=60, check=True
            )
            assert len(done.stdout.splitlines()) == len(WAYS) * (FILES + 1 + PROBES)
        ports = (folder / "lab/origin" / services.PORTS).read_text().split()
        sockets = [glob(f"/tmp/seaweedfs-*-{port}.sock") for port in ports]
        assert any(sockets)
        yield lab
    assert not any(map(os.path.exists, chain(*sockets)))


def read(lab: Lab, number: int, truth: Path, names: list[str]) -> None:
    """All of them, right, in time."""
    words = [sys.executable, str(READER), "read", lab.mountpoint(number), str(truth), *names]
    done = subprocess.run(words, capture_output=True, timeout=CUT_LIMIT_S, check=True)
    for row in map(json.loads, done.stdout.splitlines()):
        size_bytes = (truth / row["name"]).stat().st_size
        assert row == {"name": row["name"], "bytes": size_bytes, "error": "", "wrong": -1}


def below(truth: Path, folder: str) -> list[str]:
    return sorted(str(path.relative_to(truth)) for path in (truth / folder).iterdir())


def peer(lab: Lab, asker: int, asked: int) -> dict[str, Any]:
    row: dict[str, Any] = lab.report(asker)["cluster"]["peers"].get(
        f"node-{asked}", {"files": 0, "requests": 0}
    )
    return row


def all_are_members(lab: Lab) -> bool:
    return all(len(lab.report(number)["cluster"]["members"]) == 3 for number in (BEHIND, *OTHERS))


def read_until_answered(lab: Lab, truth: Path, probes: Iterator[str]) -> None:
    """Read until the node behind the link returns a file. One that seemed dead, as also on a busy machine, is given up
    for some seconds."""
    before = peer(lab, OTHERS[0], BEHIND)["files"]
    end_s = time.monotonic() + HEAL_LIMIT_S
    while peer(lab, OTHERS[0], BEHIND)["files"] == before:
        assert time.monotonic() < end_s, "the node behind the link is not asked"
        read(lab, OTHERS[0], truth, [next(probes)])


@pytest.mark.parametrize("way", WAYS)
def test_readers_on_the_other_nodes_go_on_and_come_back(lab: Lab, truth: Path, way: str) -> None:
    names = below(truth, f"cut-{way}")
    kept = below(truth, f"heal-{way}")[:5]
    probes = iter(below(truth, f"heal-{way}"))
    read(lab, BEHIND, truth, kept)
    wait_for(lambda: all_are_members(lab), HEAL_LIMIT_S)
    read_until_answered(lab, truth, probes)
    asked = peer(lab, OTHERS[0], BEHIND)["requests"]
    lab.cut(BEHIND, one_way=way)
    try:
        with ThreadPoolExecutor(len(OTHERS)) as pool:
            reading = [pool.submit(read, lab, number, truth, names) for number in OTHERS]
            for future in reading:
                future.result()
        read(lab, BEHIND, truth, kept)  # what it has, it serves
    finally:
        lab.heal(BEHIND)
    assert peer(lab, OTHERS[0], BEHIND)["requests"] > asked
    wait_for(lambda: all_are_members(lab), HEAL_LIMIT_S)
    read_until_answered(lab, truth, probes)
    read(lab, BEHIND, truth, names)
