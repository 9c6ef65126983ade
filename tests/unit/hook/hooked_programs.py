"""Run programs with the hook and without it, below a node that never answers."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace.hook
from headrace.hook.loaders import MOUNTS, SOCKET
from tests import fork_server

SITE = Path(headrace.hook.__file__).with_name("site")


@pytest.fixture
def silent_node(tmp_path: Path) -> Iterator[Path]:
    """A socket that accepts connections, and never answers."""
    path = tmp_path / "node"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        yield path


def run(folder: Path, node: Path | None, *command: str) -> tuple[str, str, float]:
    """Return stdout, stderr, and the seconds it took."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if node is not None:
        environment |= {"PYTHONPATH": str(SITE), SOCKET: str(node), MOUNTS: json.dumps([[str(folder), "/"]])}
    begin_s = time.monotonic()
    done = fork_server.run_with_torch(
        [sys.executable, *command], capture_output=True, text=True, env=environment, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr, time.monotonic() - begin_s
