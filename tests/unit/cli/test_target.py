"""The node that a command uses, by its PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base import mount_table
from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.base.mount_table import MountTableRow
from headrace.cli.exit_codes import EXIT_CODES
from headrace.cli.main import main
from headrace.cli.target import find_target

MOUNTS = {"/": "ext4", "/mnt": "ext4", "/mnt/data": "fuse.headrace", "/mnt/data/nested": "tmpfs"}


@pytest.fixture(autouse=True)
def no_known_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(tmp_path / "run"))
    rows = [MountTableRow(path, "0:1", "/", kind, "", ()) for path, kind in MOUNTS.items()]
    monkeypatch.setattr(mount_table, "mount_table", lambda: rows)


@pytest.mark.parametrize("path", ["/mnt/data", "/mnt/data/", "/mnt/data/folder/file", "/mnt/../mnt/data"])
def test_a_path_below_the_mount_of_another_node_is_refused(path: str) -> None:
    """`persist` took it for a path of the only known node, and said that nothing was left to persist."""
    with pytest.raises(
        UsageError, match="the node of the mount /mnt/data is not in the run directory"
    ) as raised:
        find_target(None, None, path)
    assert "HEADRACE_RUN_FOLDER" in raised.value.hint


@pytest.mark.parametrize("path", [None, "/", "/mnt", "/mnt/database", "/mnt/data/nested/file"])
def test_any_other_path_is_one_of_the_namespace(path: str | None) -> None:
    with pytest.raises(NodeUnavailableError, match="no node runs on this host"):
        find_target(None, None, path)


def test_a_named_node_takes_any_path(tmp_path: Path) -> None:
    assert find_target(str(tmp_path / "socket"), None, "/mnt/data").path == "/mnt/data"


@pytest.mark.parametrize("socket", [None, "/run/none", "https://host:1"])
@pytest.mark.parametrize(
    "command", ["free", "load", "pin", "seal", "persist", "policy explain", "status", "ls"]
)
def test_an_empty_path_is_not_the_whole_namespace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, socket: str | None
) -> None:
    """It may be an unset variable of a shell. `free` freed everything."""
    options = ["--socket", socket] if socket is not None else []
    monkeypatch.setattr("sys.argv", ["headrace", *command.split(), "", *options])
    assert main() == EXIT_CODES["usage"]
    assert capsys.readouterr().err == "headrace: argument PATH: it is empty (`/` is the whole namespace)\n"


def test_an_empty_path_after_the_options_is_refused_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", "free", "--", ""])
    assert main() == EXIT_CODES["usage"]
    assert "argument PATH: it is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["down", ""],
        ["fuse", ""],
        ["up", "/data", ""],
        ["up", "--", "/data", ""],
        ["seal", "make", "/data", "--at="],
        ["seal", "mount", "data@1", "--in-place", "--at", ""],
    ],
)
def test_an_empty_mountpoint_is_not_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", *words])
    assert main() == EXIT_CODES["usage"]
    assert capsys.readouterr().err == "headrace: argument MOUNTPOINT: it is empty\n"


@pytest.mark.parametrize("words", [["up", "", "/mnt/data"], ["mount", "add", "/data", ""]])
def test_an_empty_origin_is_not_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["headrace", *words])
    assert main() == EXIT_CODES["usage"]
    assert capsys.readouterr().err == "headrace: argument ORIGIN: it is empty\n"


def test_a_password_in_the_url_of_an_unknown_origin_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="no node on this host has this origin") as raised:
        find_target(None, None, "https://user:PW@host/folder")
    assert "PW" not in str(raised.value)
