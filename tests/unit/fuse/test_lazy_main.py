"""The process of a lazy seal's layer, whose start fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from headrace.base.interpreter import module_command


def start(folder: Path, control: socket.socket) -> str:
    """Start a layer whose control socket this is, and return what it logs until its end."""
    words = ["--catalogue", str(folder), "--seal", "a@1", "--socket", str(folder / "no.sock")]
    with control:
        done = subprocess.run(
            module_command("headrace.fuse.lazy_main", *words, "--control-fd", str(control.fileno())),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # until the layer, a child of this process, has ended
            pass_fds=(control.fileno(),),
            text=True,
            timeout=60,
            check=False,
        )
    return done.stderr


def test_a_layer_whose_command_was_killed_ends_without_an_error(tmp_path: Path) -> None:
    """The supervisor starts another one, and each of them would log a trace."""
    ours, theirs = socket.socketpair()
    ours.close()
    assert start(tmp_path, theirs) == ""


@pytest.mark.parametrize("error", ["missing", "unreadable"])
def test_what_keeps_a_layer_from_its_start_is_said_to_the_command_only(error: str, tmp_path: Path) -> None:
    """The supervisor prints each reason once, however often it tries again."""
    if error == "unreadable":
        os.makedirs(tmp_path / "a@1" / "seal.json")
    ours, theirs = socket.socketpair()
    with ours:
        assert start(tmp_path, theirs) == ""
        answer = json.loads(ours.recv(1 << 16))
    assert "a@1" in answer["what"]
    assert answer["why"] or error == "missing"
