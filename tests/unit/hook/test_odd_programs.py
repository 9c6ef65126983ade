"""Programs that use loaders in odd ways are the same with the hook, also below a node that never answers."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace.hook
from headrace.hook.loaders import MOUNTS, SOCKET
from tests import fork_server

PROGRAM = Path(__file__).with_name("odd_program.py")
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


@pytest.mark.timeout(200)
def test_odd_programs_are_unchanged(tmp_path: Path, silent_node: Path) -> None:
    (tmp_path / "file").touch()
    plain: dict[str, Any] = json.loads(run(tmp_path, None, str(PROGRAM), str(tmp_path))[0])
    watched: dict[str, Any] = json.loads(run(tmp_path, silent_node, str(PROGRAM), str(tmp_path))[0])
    for name, result in plain.items():
        assert watched[name] == result, name


ENDING = """
import time, torch
from torch.utils.data import DataLoader
loader = DataLoader(range(100), 4, shuffle=True)
iterator = iter(loader)
next(iterator)
time.sleep(0.5)
begin_s = time.monotonic()
print(begin_s, flush=True)
"""


def test_the_exit_of_a_program_waits_little_for_a_node_that_never_answers(
    tmp_path: Path, silent_node: Path
) -> None:
    begin_s = float(run(tmp_path, silent_node, "-c", ENDING)[0])
    assert time.monotonic() - begin_s < 20  # without a limit of its own it is that of requests, 30 s
