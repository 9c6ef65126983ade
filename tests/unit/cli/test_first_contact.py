"""A user who just installed it meets these: completion, `up` without an origin, errors of the system in one line."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.errors import MountError, UsageError
from headrace.cli import main, up
from headrace.cli.lowered import account_for
from headrace.cli.state import RunState
from headrace.cli.up import check_has_origin
from headrace.config.schema import CacheVolume, Config, MountConfig
from headrace.fuse import device
from headrace.store.index import Index
from tests import fork_server


def completed(*words: str) -> list[str]:
    """Return what the shell is offered for the last word."""
    environment = {
        **os.environ,
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("headrace", *words)),
        "COMP_CWORD": str(len(words)),
    }
    command = [sys.executable, "-c", "import sys; from headrace.cli.main import main; sys.exit(main())"]
    done = fork_server.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    offered: list[str] = done.stdout.split()
    return offered


def test_a_shell_completes_commands_and_options() -> None:
    assert completed("un") == ["unpin"]
    assert completed("bench", "tr") == ["training"]
    assert completed("up", "--endp") == ["--endpoint"]


def test_up_without_an_origin_asks_for_one(tmp_path: Path) -> None:
    bare = Config(run_folder=str(tmp_path), cache=[CacheVolume(str(tmp_path / "cache"), 1 << 30)])
    with pytest.raises(UsageError, match=r"no ORIGIN is given.*for example: headrace up s3://"):
        check_has_origin(bare)
    assert not (tmp_path / "cache").exists()
    Index.open(str(tmp_path / "cache/index"), writable=True).close(clean=True)
    with pytest.raises(UsageError, match="no ORIGIN"):
        check_has_origin(bare)


def test_up_without_an_origin_takes_what_is_configured_or_remembered(tmp_path: Path) -> None:
    cache = [CacheVolume(str(tmp_path / "cache"), 1 << 30)]
    check_has_origin(
        Config(run_folder=str(tmp_path), cache=cache, mounts={"/": MountConfig(url="file:///data")})
    )
    check_has_origin(Config(run_folder=str(tmp_path), cache=cache, cluster="etcd://127.0.0.1:1/x"))
    check_has_origin(Config(run_folder=str(tmp_path), cache=cache, rest_address="127.0.0.1:0"))
    index = Index.open(str(tmp_path / "cache/index"), writable=True)
    index.mounts.put("/data", {"url": "file:///data"})
    index.close(clean=True)
    check_has_origin(Config(run_folder=str(tmp_path), cache=cache))


@pytest.mark.parametrize(
    ("number", "status"),
    [(errno.EACCES, 26), (errno.ENOENT, 3), (errno.ENOTDIR, 4), (errno.EROFS, 7), (errno.ENOSPC, 20)],
)
def test_an_error_of_the_system_is_one_line_with_its_path(
    number: int, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_words: object, **_options: object) -> int:
        raise OSError(number, os.strerror(number), "/data/x")

    def built(_word: str) -> Callable[..., Any]:
        return fails

    monkeypatch.setattr(main, "build_app", built)
    monkeypatch.setattr(sys, "argv", ["headrace", "bench"])
    assert main.main() == status
    assert capsys.readouterr().err == f"headrace: /data/x: {os.strerror(number).lower()}\n"


def test_a_path_that_is_not_utf_8_is_a_mistake_of_the_user(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_words: object, **_options: object) -> None:
        msgspec.json.encode(os.fsdecode(b"/data/\xff"))

    monkeypatch.setattr(main, "build_app", lambda _word: fails)
    monkeypatch.setattr(sys, "argv", ["headrace", "load"])
    assert main.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headrace: load: a path or a name of the command is not UTF-8")


def test_a_reader_that_wants_the_first_line_only_ends_no_mount(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def say(line: str) -> None:
        if not line.startswith("ready"):
            raise BrokenPipeError
        sys.stdout.write(line)

    monkeypatch.setattr(up, "say", say)
    state = RunState(kind="up", pid=1, socket="s", mountpoint="/mnt", io="splice")
    up.show_ready(state, 1.0, as_json=False)
    assert capsys.readouterr().out.startswith("ready in 1.00 s")


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.EACCES, "root"), (errno.ENOENT, "--device /dev/fuse"), (errno.ENODEV, "load")]
)
def test_a_device_that_cannot_be_opened_names_the_remedy(
    number: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_words: object) -> int:
        raise OSError(number, os.strerror(number), "/dev/fuse")

    monkeypatch.setattr("headrace.fuse.device.os.open", fails)
    with pytest.raises(MountError) as raised:
        device.open_device()
    assert raised.value.why == os.strerror(number)
    assert hint in raised.value.hint


@pytest.mark.parametrize(("user", "euid"), [("nobody", 0), ("", 1234)])
def test_automatic_seals_are_refused_where_nobody_could_mount_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, euid: int
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: euid)
    cache = [CacheVolume(str(tmp_path / "cache"), 1 << 30)]
    config = Config(run_folder=str(tmp_path), cache=cache, seal="auto", user=user)
    with pytest.raises(UsageError, match="only root can mount seals"):
        account_for(config)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert account_for(Config(run_folder=str(tmp_path), cache=cache, seal="auto")) is None
