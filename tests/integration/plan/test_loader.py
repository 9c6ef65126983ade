"""Headrace's own Loader reports its plan by itself, and the next epoch while this one runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import fork_server
from tests.integration.cli.host import Host

pytestmark = [pytest.mark.fuse, pytest.mark.timeout(120)]

FILES = 64
SCRIPT = """
import json, sys, time
from headrace.client.connection import Connection
from headrace.client.discovery import find_node
from headrace.integrations.torch_data import Loader, Samples, TokenWindows
from headrace.wire.messages import PlanList

def sum_of(batch):
    return (batch if is_tokens else batch[0])[0].sum().item()

is_tokens = sys.argv[1].endswith("tokens")
data = TokenWindows(sys.argv[1], window=1 << 15) if is_tokens else Samples(sys.argv[1])
loader = Loader(data, batch_size=8, workers=2, seed=7)
batches = iter(loader)
sums = [sum_of(next(batches))]
connection = Connection(find_node(), role="cli")
for _ in range(500):
    rows = [row for row in connection.ask(PlanList()).rows if row.stream]
    if rows and rows[0].position + rows[0].ahead_samples == 2 * len(loader.data):
        break
    time.sleep(0.02)
row = rows[0] if rows else None
sums += [sum_of(batch) for batch in batches]
sums += [sum_of(batch) for batch in loader]
print(json.dumps({"sums": sums, "row": row and [row.state, row.position + row.ahead_samples]}))
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        for number in range(FILES):
            host.put(f"images/{number % 4}/{number}.bin", 2000)
        for number in range(2):
            host.put(f"tokens/{number}.bin", 2 << 20)
        host.up()
        yield host
    finally:
        host.close()


def load(host: Host, where: str) -> str:
    done = fork_server.run_with_torch(
        [sys.executable, "-c", SCRIPT, where],
        capture_output=True,
        text=True,
        timeout=100,
        env=host.environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def test_two_epochs_are_planned_as_the_first_one_begins(host: Host) -> None:
    by_mount, by_namespace = load(host, str(host.mount / "images")), load(host, "headrace:///images")
    assert f'"row": ["planned", {2 * FILES}]' in by_mount
    assert by_namespace == by_mount


def test_windows_of_large_files_are_planned(host: Host) -> None:
    """4 MiB of tokens are 64 windows, which are in four extents."""
    by_mount, by_namespace = load(host, str(host.mount / "tokens")), load(host, "headrace:///tokens")
    assert '"row": ["planned", 128]' in by_mount
    assert by_namespace == by_mount
    assert load(host, str(host.truth / "tokens")).partition('"row"')[0] == by_mount.partition('"row"')[0]


def test_a_directory_outside_the_mounts_has_no_plan(host: Host) -> None:
    planned = load(host, "headrace:///images")
    plain = load(host, str(host.truth / "images"))
    assert plain.partition('"row"')[0] == planned.partition('"row"')[0]
    assert '"row": null' in plain
