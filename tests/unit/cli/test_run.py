"""`headrace run` becomes the program, which finds all as it would without that command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def started_plainly_and_by_run(tmp_path: Path, *command: str) -> list[str]:
    """Return what a program prints, without `headrace run` and with it."""
    environment = {"PATH": os.environ["PATH"], "HEADRACE_RUN_FOLDER": str(tmp_path)}
    for name in ("PYTHONPATH", "HOME"):
        if name in os.environ:
            environment[name] = os.environ[name]
    run = (sys.executable, "-m", "headrace", "run", "--")
    return [
        subprocess.run(
            [*before, *command], env=environment, stdout=subprocess.PIPE, check=True, timeout=60, text=True
        ).stdout
        for before in ((), run)
    ]


def test_a_program_ignores_the_signals_that_it_would_ignore(tmp_path: Path) -> None:
    """Else a program whose reader has gone does not end by SIGPIPE, but goes on with errors."""
    plain, below_run = started_plainly_and_by_run(
        tmp_path, "grep", "-E", "^Sig(Blk|Ign|Cgt)", "/proc/self/status"
    )
    assert below_run == plain


def test_a_program_has_the_environment_of_its_caller(tmp_path: Path) -> None:
    """Without a node. In the locale C, Python adds a variable."""
    plain, below_run = started_plainly_and_by_run(tmp_path, "env", "-0")
    assert below_run == plain


def test_a_script_without_its_directory_is_refused_with_the_path_to_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    command = [sys.executable, "-m", "headrace", "run", "--", "train.py"]
    environment = {**os.environ, "HEADRACE_RUN_FOLDER": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 127
    assert "train.py: no such program on PATH (for the file in this directory: ./train.py)" in done.stderr
