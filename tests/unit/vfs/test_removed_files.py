"""A name that was hidden since its lookup is not found."""

from __future__ import annotations

import os

import pytest

from headrace.base.errors import PathNotFoundError
from headrace.overlay.merged_view import FileStat
from headrace.vfs.local_vfs import LocalVfs
from tests.unit.client.conftest import Cached


def write(vfs: LocalVfs, path: bytes, text: bytes = b"text") -> int:
    """Write a file, and return its inode number."""
    with vfs.create(path, replace=True) as stream:
        stream.write(text)
    return inode_of(vfs, path)


def inode_of(vfs: LocalVfs, path: bytes) -> int:
    status = vfs.tree.view.lookup_upper(path)
    assert isinstance(status, os.stat_result)
    return status.st_ino


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
