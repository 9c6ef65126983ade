"""Removed files keep their inode numbers for a while, whoever creates files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.testing.virtual_loop import pass_time
from headrace.writeback import retired_inodes
from headrace.writeback.retired_inodes import KEPT_S, RetiredInodes


def removed(folder: Path) -> int:
    """Return a descriptor of a file without a name."""
    fd = os.open(folder / "removed", os.O_RDWR | os.O_CREAT)
    (folder / "removed").unlink()
    return fd


def is_open(fd: int) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


async def test_no_new_file_gets_the_number_of_a_retired_one(tmp_path: Path) -> None:
    retired, fd = RetiredInodes(), removed(tmp_path)
    number = os.fstat(fd).st_ino
    retired.keep(fd)
    for serial in range(100):
        (tmp_path / str(serial)).touch()
    assert number not in [entry.inode() for entry in os.scandir(tmp_path)]
    await pass_time(KEPT_S - 0.1)
    assert is_open(fd)
    await pass_time(0.2)
    assert not is_open(fd)


async def test_the_oldest_of_too_many_is_closed_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retired_inodes, "FILES_MAX", 2)
    retired, fds = RetiredInodes(), [removed(tmp_path) for _ in range(3)]
    for fd in fds:
        retired.keep(fd)
    assert [is_open(fd) for fd in fds] == [False, True, True]
    retired.close()
    assert not any(is_open(fd) for fd in fds)
