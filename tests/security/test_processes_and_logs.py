"""Entries that other users of a host put into directories, names and logs (findings 11, 12, 22, 23) do nothing."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.base import logs
from headrace.base.errors import NodeUnavailableError, UsageError
from headrace.base.interpreter import module_command
from headrace.base.printable import printable
from headrace.checkpoint import save
from headrace.cli.main import main
from headrace.client.discovery import find_node, read_states
from headrace.config.load import check_run_folder, load

SOURCES = sorted((Path(__file__).resolve().parents[2] / "src").rglob("*.py"))


def test_a_module_in_the_working_directory_is_not_imported(tmp_path: Path) -> None:
    """`headrace up` by root in a user's directory ran that user's uvloop.py."""
    for name in ("uvloop", "msgspec", "lmdb", "typer", "json"):
        (tmp_path / f"{name}.py").write_text("import os; os.write(1, b'pwned'); os._exit(66)")
    ended = subprocess.run(module_command("headrace", "--version"), cwd=tmp_path, capture_output=True)
    assert (ended.returncode, b"pwned" in ended.stdout) == (0, False), ended.stderr


def test_modules_are_started_in_no_other_way() -> None:
    others = [
        path.name
        for path in SOURCES
        if path.name != "interpreter.py" and 'sys.executable, "-m"' in path.read_text()
    ]
    assert others == []


@pytest.mark.root
def test_the_run_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may make /tmp/headrace-UID first, and put sockets and state files there."""
    planted = tmp_path / "headrace-0"
    (planted / "headrace").mkdir(parents=True, mode=0o700)
    folder = str(planted / "headrace")
    check_run_folder(folder)
    os.chown(planted, 65534, 65534)
    with pytest.raises(UsageError, match="belongs to user 65534"):
        check_run_folder(folder)
    os.chown(planted, 0, 0)
    os.chown(folder, 65534, 65534)
    planted.chmod(0o1777)  # as /tmp
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", folder)
    with pytest.raises(UsageError, match="belongs to user 65534"):
        load()


@pytest.mark.root
def test_nothing_is_believed_in_a_run_folder_that_root_gave_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only root can have put it there: it is that of a node with `--user`, to which root's programs come otherwise."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    (folder / "1.json").write_text('{"kind": "up", "pid": 1, "socket": "/x.sock"}')
    monkeypatch.setenv("HEADRACE_RUN_FOLDER", str(folder))
    assert [state.socket for state in read_states(load().config.run_folder)] == ["/x.sock"]
    os.chown(folder, 65534, 65534)
    assert read_states(load().config.run_folder) == []
    with socket.socket(socket.AF_UNIX) as node:
        node.bind(str(folder / "node.sock"))
        node.listen()
        for socket_path in (None, str(folder / "node.sock")):
            with pytest.raises(NodeUnavailableError):
                find_node(socket=socket_path)


@pytest.mark.parametrize(("mode", "above"), [(0o777, 0o755), (0o720, 0o755), (0o700, 0o757)])
def test_a_run_folder_that_others_may_change_is_refused(tmp_path: Path, mode: int, above: int) -> None:
    folder = tmp_path / "above/run"
    folder.mkdir(parents=True)
    folder.chmod(mode)
    folder.parent.chmod(above)
    with pytest.raises(UsageError, match="can be written by others"):
        check_run_folder(str(folder))
    folder.chmod(0o700)
    folder.parent.chmod(0o1777)
    check_run_folder(str(folder))


def test_a_link_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("/etc")
    with pytest.raises(UsageError, match="is a link"):
        check_run_folder(str(tmp_path / "run"))


@pytest.mark.parametrize(
    "name",
    [
        "a\nERROR forged line",
        "\x1b]0;title\x07",
        "\x1b[2J",
        "a\rb",
        "\x9b31m",
        "x\u202egnp.exe",
        "\udcff",
        "\u2028",
    ],
)
def test_a_name_is_printed_on_one_line_without_controls(name: str) -> None:
    text = printable(name)
    assert text.isprintable()
    assert "\\x" in text or "\\u" in text
    assert printable("plain ä 文 name") == "plain ä 文 name"


def test_a_checkpoint_of_somebody_else_steers_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its names of tensors were printed as they are; all commands print by `say` now."""
    save({"w\x1b]0;owned\x07\nstep 1: all as it was saved": np.arange(4)}, str(tmp_path), step=1)
    for words in (["show"], ["list"], ["verify"]):
        monkeypatch.setattr(sys, "argv", ["headrace", "checkpoint", *words, str(tmp_path)])
        assert main() == 0
    out = capsys.readouterr().out
    assert "w\\x1b]0;owned\\x07\\x0astep 1" in out
    assert all(line.isprintable() for line in out.replace("\t", " ").splitlines())


def test_commands_print_in_no_other_way() -> None:
    """`cat` writes a file's bytes, as it is asked to, and `policy show` a policy's text, unless to a terminal."""
    ours = [path for path in SOURCES if path.parent.name in ("cli", "diagnose") and path.name != "render.py"]
    direct = [path.name for path in ours if re.search(r"sys\.stdout\.write|\bprint\(", path.read_text())]
    assert set(direct) <= {"cat.py", "main.py", "policy.py"}, direct  # main: --version


def test_a_name_forges_no_line_of_a_log() -> None:
    record = logging.LogRecord(
        "n", logging.INFO, "", 0, "not persisted path=%s", ("/a\n2026 ERROR forged",), None
    )
    line = logs.LineFormatter(logs.FORMAT).format(record)
    assert len(line.splitlines()) == 1
    assert line.endswith("path=/a\\x0a2026 ERROR forged")


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_a_log_in_the_directory_of_another_user_leads_to_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """`headrace up 2>>/home/u/log` by root copied the log over the file that NAME.1 led to, and made it 0600."""
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 1000)
    victim, folder = tmp_path / "victim", tmp_path / "users"
    victim.write_text("root:x:0:0")
    folder.mkdir()
    (folder / "log.1").symlink_to(victim)
    os.chown(folder, 65534 if mode == 0o700 else 0, 0)
    folder.chmod(mode)
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(log, b"x" * 1001)
        logs.keep_bounded(log)
        assert victim.read_text() == "root:x:0:0"
        assert (folder / "log").stat().st_size == 0
    finally:
        os.close(log)
    is_kept = not (folder / "log.1").is_symlink()
    assert (is_kept, os.listdir(folder)) == (mode != 0o700, ["log", "log.1"])
    assert not is_kept or (folder / "log.1").read_bytes() == b"x" * 1001


def test_a_log_whose_file_was_replaced_is_emptied_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 1000)
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(log, b"x" * 1001)
        os.unlink(tmp_path / "log")
        (tmp_path / "log (deleted)").write_text("of another program")
        logs.keep_bounded(log)
        assert os.fstat(log).st_size == 0
    finally:
        os.close(log)
    assert (tmp_path / "log (deleted)").read_text() == "of another program"


def test_a_log_is_bounded_while_the_process_runs(tmp_path: Path) -> None:
    program = (
        "import logging\nfrom headrace.base import logs\nlogs.LOG_BYTES_MAX = 200_000\nlogs.CHECK_BYTES = 10_000\n"
        "logs.log_to_stderr('info')\nlog = logging.getLogger('x')\n"
        "for number in range(20_000): log.info('a line of some length number=%d', number)\n"
    )
    log = tmp_path / "node.log"
    with open(log, "ab") as out:
        subprocess.run([sys.executable, "-c", program], stderr=out, check=True)
    assert log.stat().st_size < 400_000
    assert 100_000 < (tmp_path / "node.log.1").stat().st_size < 400_000
    assert (tmp_path / "node.log.1").stat().st_mode & 0o777 == 0o600
    assert "number=19999" in log.read_text().splitlines()[-1]
