"""Programs that use loaders in odd ways are the same with the hook, also below a node that never answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hook.hooked_programs import run, silent_node

__all__ = ["silent_node"]
PROGRAM = Path(__file__).with_name("odd_program.py")


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
