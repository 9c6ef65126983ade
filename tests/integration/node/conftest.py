"""Provide a node over a folder of random files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.node.node_process import SIZES, NodeProcess
from tests.random_bytes import random_bytes


@pytest.fixture
def running(tmp_path: Path) -> Iterator[NodeProcess]:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    for name, size in SIZES.items():
        (source / name).write_bytes(random_bytes(name, size))
        (source / "folder" / name).write_bytes(random_bytes(f"folder/{name}", size))
    node = NodeProcess(tmp_path)
    yield node
    node.process.kill()
    node.process.wait(60)
