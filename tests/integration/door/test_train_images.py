"""docs/examples/train_images.py: from the node, from the mount, and resumed, the losses are the same."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import fork_server
from tests.integration.door.conftest import Host

pytestmark = [
    pytest.mark.fuse,
    pytest.mark.timeout(120),
]
SCRIPT = Path(__file__).parents[3] / "docs/examples/train_images.py"
IMAGES = 1797


def run(host: Host, *words: object) -> list[str]:
    done = fork_server.run_with_torch(
        [sys.executable, SCRIPT, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **host.environment, "OMP_NUM_THREADS": "1"},
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout).splitlines()


def test_mount_and_node_train_alike(tmp_path: Path) -> None:
    host = Host(tmp_path)
    try:
        run(host, host.truth / "digits", "--make")
        assert sum(1 for _ in (host.truth / "digits").glob("*/*.pgm")) == IMAGES
        host.up()
        by_node = run(host, "headrace:///digits", "--epochs", 2)
        assert [line.split(":")[0] for line in by_node] == ["epoch 0", "epoch 1"]
        assert float(by_node[-1].rsplit(" ", 1)[1]) > 0.9, by_node
        assert run(host, host.mount / "digits", "--epochs", 2, "--workers", 0) == by_node
        state = tmp_path / "state.pt"
        first = run(host, "headrace:///digits", "--epochs", 1, "--state", state)
        assert first + run(host, "headrace:///digits", "--epochs", 2, "--state", state) == by_node
    finally:
        host.close()
