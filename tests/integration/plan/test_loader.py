"""Headrace's own Loader reports its plan by itself, and the next epoch while this one runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

FILES = 64
SCRIPT = """
import json, sys, time
from headrace.client.connection import Connection
from headrace.client.discovery import find_node
from headrace.integrations.torch_data import Loader, Samples
from headrace.wire.messages import PlanList

loader = Loader(Samples(sys.argv[1]), batch_size=8, workers=2, seed=7)
batches = iter(loader)
sums = [next(batches)[0][0].sum().item()]
connection = Connection(find_node(), role="cli")
for _ in range(500):
    rows = connection.ask(PlanList()).rows
    if rows and rows[0].position + rows[0].ahead_samples == 2 * len(loader.data):
        break
    time.sleep(0.02)
row = rows[0] if rows else None
sums += [batch[0][0].sum().item() for batch in batches]
sums += [batch[0][0].sum().item() for batch in loader]
print(json.dumps({"sums": sums, "row": row and [row.state, row.position + row.ahead_samples]}))
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        for number in range(FILES):
            host.put(f"images/{number % 4}/{number}.bin", 2000)
        host.up()
        yield host
    finally:
        host.close()


def load(host: Host, where: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, where],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=host.environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_two_epochs_are_planned_as_the_first_one_begins(host: Host) -> None:
    by_mount, by_namespace = load(host, str(host.mount / "images")), load(host, "headrace:///images")
    assert f'"row": ["planned", {2 * FILES}]' in by_mount
    assert by_namespace == by_mount


def test_a_directory_outside_the_mounts_has_no_plan(host: Host) -> None:
    planned = load(host, "headrace:///images")
    plain = load(host, str(host.truth / "images"))
    assert plain.partition('"row"')[0] == planned.partition('"row"')[0]
    assert '"row": null' in plain
