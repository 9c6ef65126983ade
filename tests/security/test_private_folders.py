"""No other user enters a cache or run folder, or puts another in its place (findings 5 and 12)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import UsageError
from headrace.base.private_folder import make_parents, make_private
from headrace.base.secret_file import create_secret
from headrace.entry.broker.server import _make_public
from headrace.identity.authority import Authority
from headrace.seal.mountpoint import make_mountpoint
from headrace.store.volume import Volume
from tests.security.nobody import NOBODY

pytestmark = [pytest.mark.root, pytest.mark.expected_warnings("a directory was open to other users")]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_cache_folder_is_made_for_its_user_only(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        volume = Volume(0, str(tmp_path / "cache"), 1 << 30)
        volume.open()
        volume.close()
    finally:
        os.umask(mask)
    below = [path for path in (tmp_path / "cache").rglob("*") if mode_of(path) & 0o077]
    assert (mode_of(tmp_path / "cache"), below) == (0o700, [])


def test_a_folder_that_was_open_is_closed_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Caches of earlier releases could be read by every user of the host."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    tmp_path.chmod(0o755)
    (folder / "upper").mkdir(mode=0o755)
    with caplog.at_level(logging.WARNING):
        for name in ("", "upper", ""):
            make_private(str(folder / name))
    assert (mode_of(folder), mode_of(folder / "upper")) == (0o700, 0o700)
    assert [record.getMessage() for record in caplog.records] == [
        f"a directory was open to other users, access is removed folder={folder} mode=0755"
    ]


def test_the_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(UsageError, match=f"belongs to user {NOBODY}"):
        make_private(str(folder))
    assert mode_of(folder) == 0o755


@pytest.mark.parametrize("make", [make_private, _make_public, lambda path: create_secret(path, lambda: "x")])
@pytest.mark.parametrize("name", ["link/a/b", "link/a", "users/a/b", "dangling/a/b"])
def test_root_creates_nothing_in_the_directory_of_another_user(
    tmp_path: Path, make: Callable[[str], object], name: str
) -> None:
    """Missing parents were created before the check, wherever a link led."""
    for folder in ("users", "roots"):
        (tmp_path / folder).mkdir()
    os.chown(tmp_path / "users", NOBODY, NOBODY)
    (tmp_path / "users/link").symlink_to(tmp_path / "roots")
    (tmp_path / "users/dangling").symlink_to(tmp_path / "roots/missing")
    path = tmp_path / (name if name.startswith("users") else f"users/{name}")
    with pytest.raises((UsageError, OSError)):
        make(str(path / "folder"))
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["dangling", "link", "roots", "users"]


@pytest.mark.parametrize("make", [make_private, _make_public, make_parents, make_mountpoint])
def test_root_follows_no_link_that_another_user_makes_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], object]
) -> None:
    """In a sticky directory, as /tmp is, nobody exchanges what is there, but everybody may create what is missing."""
    tmp_path.chmod(0o1777)
    (tmp_path / "roots").mkdir()
    mkdir = os.mkdir

    def exchange(path: str, mode: int = 0o777) -> None:
        if path == str(tmp_path / "new"):
            os.symlink("roots", path)
            os.lchown(path, NOBODY, NOBODY)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", exchange)
    with pytest.raises(UsageError, match=f"belongs to user {NOBODY}"):
        make(str(tmp_path / "new/a/b"))
    assert list((tmp_path / "roots").iterdir()) == []


def test_several_processes_of_one_user_create_the_same_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def create_before(path: str, mode: int = 0o777) -> None:
        mkdir(path, mode)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", create_before)
    make_parents(str(tmp_path / "a/b/c"))
    assert (tmp_path / "a/b").is_dir()


@pytest.mark.parametrize("fault", ["owner", "above", "link", "name"])
def test_an_authority_in_a_directory_that_another_user_can_change_issues_nothing(
    tmp_path: Path, fault: str
) -> None:
    """The user could exchange the directory of a name: the key of a node was written where he reads it, and `renew`
    signed the names that he put into an old certificate."""
    authority = Authority.make(str(tmp_path / "above/a"), "lab")
    authority.issue("n1")
    folder, given = tmp_path / "above/a", tmp_path / "above/a"
    if fault == "link":
        given = tmp_path / "link"
        given.symlink_to(folder)
        os.lchown(given, NOBODY, NOBODY)
    else:
        theirs = {"owner": folder, "above": folder.parent, "name": folder / "n1"}[fault]
        os.chown(theirs, NOBODY, NOBODY)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=f"belongs to user {NOBODY}"):
        Authority(str(given)).renew("n1")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("place", ["users", "users/a/b", "link/a"])
def test_no_authority_is_made_in_the_directory_of_another_user(tmp_path: Path, place: str) -> None:
    for folder in ("users", "roots"):
        (tmp_path / folder).mkdir()
    os.chown(tmp_path / "users", NOBODY, NOBODY)
    (tmp_path / "users/link").symlink_to(tmp_path / "roots")
    given = place if place.startswith("users") else f"users/{place}"
    with pytest.raises(UsageError, match=f"belongs to user {NOBODY}"):
        Authority.make(str(tmp_path / given), "lab")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "roots", "users"]


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "cache").symlink_to("there")
    with pytest.raises(UsageError, match="it is a link"):
        make_private(str(tmp_path / "cache"))


@pytest.mark.parametrize("below", ["cache", "a/b/cache"])
def test_a_folder_that_others_may_exchange_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    above = tmp_path / "a" if "/" in below else tmp_path
    above.chmod(0o777)
    with pytest.raises(UsageError, match="everybody may exchange"):
        make_private(str(tmp_path / below))
    above.chmod(0o1777)
    make_private(str(tmp_path / below))
    os.chown(above, NOBODY, NOBODY)
    with pytest.raises(UsageError, match="who may exchange it"):
        make_private(str(tmp_path / below))


def test_a_link_on_the_way_is_followed_by_its_owner_only(tmp_path: Path) -> None:
    """In /tmp anybody may lay a link that leads root's cache to a directory of his."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    way = tmp_path / "way"
    way.symlink_to("disk/../disk")
    make_private(str(way / "cache"))
    assert mode_of(tmp_path / "disk/cache") == 0o700
    way.unlink()
    way.symlink_to("theirs")
    with pytest.raises(UsageError, match="who may exchange it"):
        make_private(str(way / "cache"))
    way.unlink()
    way.symlink_to("disk")
    os.chown(way, NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(UsageError, match="belongs to user"):
        make_private(str(way / "cache"))


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises((UsageError, OSError)):
        make_private(str(tmp_path / "a/cache"))
