"""The user whom root put in charge of a directory, and the directories that root gives away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.private_folder import hand_over
from headrace.base.trusted_owner import chosen_by_root, is_trusted, only_root_moves

pytestmark = pytest.mark.root
NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir(mode=0o755)
    return folder


def owner_and_mode(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_uid, status.st_mode & 0o7777


def test_root_and_this_user_are_trusted() -> None:
    assert [is_trusted(uid) for uid in (0, os.geteuid(), NOBODY)] == [True, True, False]


def test_the_owner_of_a_folder_counts_where_only_root_can_have_put_it(place: Path) -> None:
    folder = place / "run"
    folder.mkdir()
    assert chosen_by_root(str(folder)) == 0
    os.chown(folder, NOBODY, NOBODY)
    assert chosen_by_root(str(folder)) == NOBODY
    for mode in (0o1777, 0o777, 0o757):  # in /tmp anybody makes a folder
        place.chmod(mode)
        assert chosen_by_root(str(folder)) is None, oct(mode)
    place.chmod(0o775)
    os.chown(place, 0, NOBODY)
    assert chosen_by_root(str(folder)) is None
    os.chown(place, NOBODY, 0)
    assert chosen_by_root(str(folder)) is None


def test_a_link_a_file_or_nothing_is_nobody_s(place: Path) -> None:
    (place / "there").mkdir()
    os.chown(place / "there", NOBODY, NOBODY)
    (place / "link").symlink_to("there")
    (place / "file").touch()
    assert [chosen_by_root(str(place / name)) for name in ("link", "file", "nothing")] == [None] * 3
    above = place / "above"
    above.symlink_to(".")
    assert chosen_by_root(str(above / "there")) == NOBODY
    os.chown(above, NOBODY, NOBODY, follow_symlinks=False)
    assert not only_root_moves(str(above / "there"))
    assert chosen_by_root(str(above / "there")) is None


def test_what_is_missing_or_empty_is_handed_over(place: Path) -> None:
    hand_over(str(place / "a/b"), NOBODY, NOBODY)
    (place / "empty").mkdir(mode=0o777)
    hand_over(str(place / "empty"), NOBODY, NOBODY)
    assert [owner_and_mode(place / name) for name in ("a", "a/b", "empty")] == [
        (0, 0o755),
        (NOBODY, 0o700),
        (NOBODY, 0o700),
    ]


def test_all_else_stays_as_it_is(place: Path) -> None:
    (place / "full").mkdir(mode=0o700)
    (place / "full/index").touch()
    (place / "file").touch()
    (place / "target").mkdir(mode=0o700)
    (place / "link").symlink_to("target")
    theirs = place / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "cache").symlink_to(place / "target")
    os.chown(theirs, NOBODY, NOBODY)
    for name in ("full", "file", "link", "theirs/cache", "theirs/new", "theirs/cache/below"):
        hand_over(str(place / name), NOBODY, NOBODY)
    assert [owner_and_mode(place / name)[0] for name in ("full", "file", "target")] == [0, 0, 0]
    assert sorted(os.listdir(theirs)) == ["cache"]
    assert os.listdir(place / "target") == []
