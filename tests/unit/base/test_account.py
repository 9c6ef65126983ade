"""The words of `--user`, and what is asked in another user's name."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.account import Account, account_of
from headrace.base.errors import HeadraceError, PathNotFoundError, UsageError
from headrace.cli.lowered import check_program
from headrace.config.schema import CacheVolume, Config

NOBODY = 65534


@pytest.fixture
def open_place() -> Iterator[Path]:
    """Yield a place where other users come to: below no private directory of the tests."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("no-such-user", "no such user"),
        ("64991", "no such user"),
        ("99999999999999999999:1", "no such user"),
        ("0", "that is root"),
        ("root", "that is root"),
        ("0:5", "that is root"),
        ("64991:0", "root's"),
        ("64991:99999999999", "root's"),
        ("64991:no-such-group", "no group"),
        ("64991:", "no group"),
        ("", "no such user"),
        ("-1", "no such user"),
    ],
)
def test_a_user_that_is_none_or_has_rights_is_refused(word: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        account_of(word)


def test_a_user_by_number_has_the_group_that_is_given() -> None:
    assert account_of("64991:64992") == Account("64991", 64991, 64992, (64992,), "/")


def test_no_replicas_are_kept_where_a_user_is_set() -> None:
    cache = [CacheVolume(folder="/nowhere", capacity_bytes=1 << 30)]
    for write in ("back", "off,/w=local", "through"):
        Config(cache=cache, run_folder="/run/x", user="64991:64991", write=write)
    for write in ("back:2", "off,/w=back:2"):
        with pytest.raises(UsageError, match="only root can keep"):
            Config(cache=cache, run_folder="/run/x", user="64991:64991", write=write)


@pytest.mark.root
def test_a_call_is_made_as_that_user_and_its_error_comes_back() -> None:
    account = Account("nobody", NOBODY, NOBODY, (NOBODY,), "/")

    def refuse() -> None:
        raise PathNotFoundError("it", why="gone", hint="look elsewhere")

    def fail() -> None:
        raise RuntimeError

    assert account.result_of(lambda: [*os.getresuid(), *os.getresgid(), *os.getgroups()]) == [NOBODY] * 7
    assert account.result_of(lambda: os.access("/etc/shadow", os.R_OK)) is False
    with pytest.raises(PathNotFoundError, match=r"it: gone \(look elsewhere\)"):
        account.result_of(refuse)
    with pytest.raises(HeadraceError, match="a process of that user failed"):
        account.result_of(fail)
    with pytest.raises(HeadraceError, match="a process of that user failed"):
        account.result_of(lambda: os._exit(3))
    assert os.getuid() == 0


@pytest.mark.root
def test_a_program_that_the_user_may_change_gets_no_rights(
    open_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of the user's would run in the process that has CAP_SYS_ADMIN: its home's, or one on the way."""
    importlib.import_module("ctypes")  # which is not found later
    account, place = Account("nobody", NOBODY, NOBODY, (NOBODY,), "/"), open_place
    (place / "lib").mkdir(mode=0o755)
    program = place / "python"
    program.write_bytes(b"")
    program.chmod(0o755)
    monkeypatch.setattr("headrace.cli.lowered.__file__", str(place / "lib/lowered.py"))
    (place / "lib/lowered.py").touch()
    monkeypatch.setattr("sys.executable", str(program))
    monkeypatch.setattr("sys.path", [str(place / "lib")])
    account.result_of(check_program)
    assert account.result_of(lambda: os.environ["PYTHONNOUSERSITE"]) == "1"
    for path in (place / "lib", place, program):
        os.chown(path, NOBODY, NOBODY)
        with pytest.raises(UsageError, match="may change"):
            account.result_of(check_program)
        os.chown(path, 0, 0)
    (place / "lib").chmod(0o1777)
    with pytest.raises(UsageError, match="may change"):
        account.result_of(check_program)
    (place / "lib").chmod(0o700)
    with pytest.raises(UsageError, match="may not run"):
        account.result_of(check_program)
