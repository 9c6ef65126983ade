"""A directory keeps its times when the node changes entries in it, wherever the directory is by then."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.base.beneath import Root
from headrace.overlay.kept_times import keeping_times

TIMES_NS = (1_234_567_890_123_456_789, 1_345_678_901_234_567_891)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").touch()
    os.utime(tmp_path / "d", ns=TIMES_NS)
    return Root(os.fsencode(tmp_path))


def times(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_atime_ns, status.st_mtime_ns


def test_a_change_leaves_the_times(root: Root, tmp_path: Path) -> None:
    with keeping_times(root.at(b"/d")):
        root.at(b"/d/f").unlink()
        assert times(tmp_path / "d") != TIMES_NS
    assert times(tmp_path / "d") == TIMES_NS


def test_a_change_that_fails_leaves_them_too(root: Root, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), keeping_times(root.at(b"/d")):
        root.at(b"/d/f").unlink()
        root.at(b"/d/f").unlink()
    assert times(tmp_path / "d") == TIMES_NS


def test_without_a_change_nothing_is_set(root: Root, tmp_path: Path) -> None:
    before = (tmp_path / "d").stat().st_ctime_ns
    with keeping_times(root.at(b"/d")):
        pass
    assert (tmp_path / "d").stat().st_ctime_ns == before


def test_a_directory_that_was_moved_is_meant_and_no_link_in_its_place(root: Root, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    before = times(other)
    with keeping_times(root.at(b"/d")):
        root.at(b"/d/f").unlink()
        (tmp_path / "d").rename(tmp_path / "moved")
        (tmp_path / "d").symlink_to(other)
    assert times(tmp_path / "moved") == TIMES_NS
    assert times(other) == before


def test_a_directory_that_goes_meanwhile_is_no_error(root: Root, tmp_path: Path) -> None:
    with keeping_times(root.at(b"/d")):
        root.at(b"/d").remove_tree()
    with keeping_times(root.at(b"/d")):
        assert not (tmp_path / "d").exists()


def test_a_link_is_not_followed(root: Root, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("d")
    with keeping_times(root.at(b"/link")):
        (tmp_path / "d/f").unlink()
    assert times(tmp_path / "d") != TIMES_NS
