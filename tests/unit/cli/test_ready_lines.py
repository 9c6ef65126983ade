"""Lines that `node run` and the gateways print when they are ready end none of them if they can't be printed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import gateways, node, target
from headrace.cli.gateways import serve_here
from headrace.cli.state import RunState
from headrace.cli.target import Target
from headrace.http.process import Ready
from headrace.rest import main as rest

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "standard output")
STATE = RunState(kind="node", pid=os.getpid(), socket="s")


class EndOfProcess(Exception):
    """Is raised instead of `os._exit` in a test."""


def failing(error: Exception) -> Any:
    def fails(*_lines: object) -> None:
        raise error

    return fails


def test_a_gateway_serves_on_when_the_reader_of_its_first_line_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path / "run"))
    monkeypatch.setattr(target, "find_target", lambda *_: Target("socket"))
    served: list[str] = []

    def serve(_config: object, _socket: str, on_ready: Any) -> None:
        on_ready(Ready("127.0.0.1:1", "/cache/rest-token"))
        served.append("all")

    def say(line: str) -> None:
        if not line.startswith("ready"):
            raise BrokenPipeError

    def end(_status: int) -> None:
        raise EndOfProcess

    monkeypatch.setattr(rest, "serve", serve)
    monkeypatch.setattr(gateways, "say", say)
    monkeypatch.setattr(gateways, "log_to_stderr", lambda _level: None)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(EndOfProcess):
        serve_here(
            "rest", {}, file=None, socket=None, cache=None, default_address="127.0.0.1:0",
            ready=lambda *_: "ready", json=False,
        )  # fmt: skip
    assert served == ["all"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BrokenPipeError(), ""),
        (FULL, f"headrace: the node is ready, but that can't be printed: {FULL}\n"),
    ],
)
def test_a_node_runs_on_when_its_ready_line_can_not_be_printed(
    error: Exception,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(node, "say", failing(error))
    node._announce(str(tmp_path), STATE, {"socket": "s"}, as_json=False)
    assert capsys.readouterr().err == line
    assert (tmp_path / f"{os.getpid()}.json").exists()


def test_a_node_whose_state_can_not_be_written_says_that_it_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node._announce(str(tmp_path / "missing"), STATE, {"socket": "s"}, as_json=False)
    printed = capsys.readouterr()
    assert printed.out == "ready: s\n"
    assert printed.err.startswith(
        "headrace: the state of this command can't be written, so `headrace down` does not"
    )
