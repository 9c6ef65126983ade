"""Files that a gateway removes keep their inode numbers for a while, and a name that is hidden is not found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.errors import PathNotFoundError
from headrace.overlay.merged_view import FileStat
from headrace.vfs.local_vfs import LocalVfs
from tests.unit.client.conftest import Cached

OpenVfs = Callable[..., LocalVfs]


def write(vfs: LocalVfs, path: bytes, text: bytes = b"text") -> int:
    """Write a file, and return its inode number."""
    with vfs.create(path, replace=True) as stream:
        stream.write(text)
    return inode_of(vfs, path)


def inode_of(vfs: LocalVfs, path: bytes) -> int:
    status = vfs.tree.view.lookup_upper(path)
    assert isinstance(status, os.stat_result)
    return status.st_ino


@pytest.mark.parametrize("how", ["removed", "replaced", "renamed over", "hidden"])
def test_no_later_file_gets_the_number_of_one_that_lost_its_name(
    vfs: LocalVfs, cached: Cached, tmp_path: Path, how: str
) -> None:
    path = b"/whole" if how == "hidden" else b"/new"  # the origin has the first: a whiteout takes its place
    number = write(vfs, path)
    other = write(vfs, b"/other")
    if how == "replaced":
        write(vfs, path)
    elif how == "renamed over":
        vfs.rename(b"/other", path)
    else:
        vfs.remove(path)
    numbers = {write(vfs, b"/later-%d" % serial) for serial in range(50)}
    assert not numbers & {number, other}


def test_no_later_directory_gets_the_number_of_a_removed_one(vfs: LocalVfs) -> None:
    vfs.make_directories(b"/new")
    number = inode_of(vfs, b"/new")
    vfs.remove_directory(b"/new")
    for serial in range(50):
        vfs.make_directories(b"/later-%d" % serial)
        assert inode_of(vfs, b"/later-%d" % serial) != number


def test_a_name_that_was_hidden_since_its_lookup_is_not_found(vfs: LocalVfs, cached: Cached) -> None:
    """The open would reach the whiteout, which is a device or an empty file."""
    write(vfs, b"/whole")
    path, status = vfs.get(b"/whole")
    vfs.remove(b"/whole")
    with pytest.raises(PathNotFoundError):
        vfs.content_of(path, status)


def test_a_name_that_is_hidden_during_a_read_is_not_found(
    vfs: LocalVfs, cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(vfs, b"/whole")
    get = vfs.get

    def get_then_remove(path: bytes) -> tuple[bytes, FileStat]:
        monkeypatch.setattr(vfs, "get", get)
        status = get(path)
        vfs.remove(path)
        return status

    monkeypatch.setattr(vfs, "get", get_then_remove)
    with pytest.raises(PathNotFoundError):
        vfs.content(b"/whole")
