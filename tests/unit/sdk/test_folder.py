"""A directory of this host that has more than files: pipes, and links that lead back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.cancel import Cancel
from headrace.base.errors import NotSupportedError
from headrace.sdk.folder import LocalFolder


def test_links_to_a_folder_above_and_to_themselves_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    (tmp_path / "a" / "b" / "f").touch()
    (tmp_path / "here").symlink_to(".")
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "itself").symlink_to("itself")
    (tmp_path / "c" / "other").symlink_to("../a/b")
    assert LocalFolder(str(tmp_path)).names() == ["a/b/f", "c/other/f"]
    assert LocalFolder(str(tmp_path)).names(recursive=False) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: folder.map("pipe"),
        lambda folder: folder.fetch("pipe", Cancel()),
        lambda folder: folder.open("pipe"),
        lambda folder: folder.read_many(["pipe"]),
    ],
    ids=["map", "fetch", "open", "read_many"],
)
def test_a_pipe_is_refused_at_once(read: Callable[[LocalFolder], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(NotSupportedError, match="pipe: it is not a regular file"):
        read(LocalFolder(str(tmp_path)))
    assert len(os.listdir("/proc/self/fd")) == descriptors
