"""docs/examples/trainer.py, killed while it trains, ends as if it had not been."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headrace.checkpoint import PosixStorage, steps
from tests import fork_server

SCRIPT = Path(__file__).parents[3] / "docs/examples/trainer.py"
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def trainer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("trainer", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainer"] = module
    spec.loader.exec_module(module)
    return module


def test_killed_and_resumed(trainer: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    undisturbed = trainer.main([str(tmp_path / "whole"), "--steps", "60", "--every", "7"])
    killed = str(tmp_path / "killed")
    kill_at("save.manifest:3", killed)
    assert steps(PosixStorage(killed)) == [7, 14]
    kill_at("save.renamed:4", killed)  # resumed from 14: at 21, 28, 35 and 42
    assert steps(PosixStorage(killed)) == [28, 35, 42]
    capfd.readouterr()
    assert trainer.main([killed, "--steps", "60", "--every", "7"]) == undisturbed
    assert capfd.readouterr().out.startswith("from step 42\n")
    assert steps(PosixStorage(killed)) == [49, 56]


def kill_at(failpoint: str, folder: str) -> None:
    """kill -9 of the trainer at that step of a commit, which is in the background: training may be further."""
    words = [sys.executable, str(SCRIPT), folder, "--steps", "60", "--every", "7"]
    done = fork_server.run_with_torch(
        words,
        env={**os.environ, "HEADRACE_FAILPOINT": failpoint},
        stdout=subprocess.DEVNULL,
        timeout=150,
    )
    assert done.returncode == -signal.SIGKILL
