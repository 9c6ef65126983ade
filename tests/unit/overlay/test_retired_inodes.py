"""Removed files keep their inode numbers for a while, whoever creates files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.beneath import Root
from headrace.overlay import retired_inodes
from headrace.overlay.retired_inodes import KEPT_BYTES_MAX, RetiredInodes
from tests.integration.cli.host import wait_until


@pytest.fixture
def retired() -> Iterator[RetiredInodes]:
    retired = RetiredInodes()
    yield retired
    retired.close()


def removed(folder: Path) -> int:
    """Return a descriptor of a file without a name."""
    fd = os.open(folder / "removed", os.O_RDWR | os.O_CREAT)
    (folder / "removed").unlink()
    return fd


def is_open(fd: int) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def numbers_of_new_files(folder: Path) -> set[int]:
    for serial in range(100):
        (folder / f"new-{serial}").touch()
    return {entry.inode() for entry in os.scandir(folder)}


def open_numbers() -> dict[int, int]:
    """Return the size of each file without a name that this process has open, by its inode number."""
    sizes = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not status.st_nlink:
            sizes[status.st_ino] = status.st_size
    return sizes


def test_no_new_file_gets_the_number_of_a_retired_one(
    tmp_path: Path, retired: RetiredInodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retired_inodes, "KEPT_S", 0.2)
    fd = removed(tmp_path)
    number = os.fstat(fd).st_ino
    retired.keep(fd)
    assert number not in numbers_of_new_files(tmp_path)
    wait_until(lambda: not is_open(fd))


def test_the_oldest_of_too_many_is_closed_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retired_inodes, "FILES_MAX", 2)
    retired, fds = RetiredInodes(), [removed(tmp_path) for _ in range(3)]
    for fd in fds:
        retired.keep(fd)
    assert [is_open(fd) for fd in fds] == [False, True, True]
    retired.close()
    assert not any(is_open(fd) for fd in fds)


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_what_is_removed_keeps_its_number(tmp_path: Path, retired: RetiredInodes, kind: str) -> None:
    path = tmp_path / "a"
    if kind == "link":
        path.symlink_to("b")
    else:
        (path.mkdir if kind == "directory" else path.touch)()
    number = path.lstat().st_ino
    with retired.removing(Root(bytes(tmp_path)).at(b"/a")):
        (path.rmdir if kind == "directory" else path.unlink)()
    assert number in open_numbers() or kind == "link"
    assert number not in numbers_of_new_files(tmp_path)


def test_what_is_replaced_keeps_its_number(tmp_path: Path, retired: RetiredInodes) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
    number = (tmp_path / "a").stat().st_ino
    with retired.removing(Root(bytes(tmp_path)).at(b"/a")):
        (tmp_path / "b").rename(tmp_path / "a")
    assert number not in numbers_of_new_files(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"b"


def test_a_file_with_another_name_and_a_failed_removal_keep_nothing(
    tmp_path: Path, retired: RetiredInodes
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"bytes")
    (tmp_path / "b").hardlink_to(path)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError), retired.removing(Root(bytes(tmp_path)).at(b"/a")):
        (tmp_path / "missing").unlink()
    with retired.removing(Root(bytes(tmp_path)).at(b"/a")):
        path.unlink()
    with pytest.raises(FileNotFoundError), retired.removing(Root(bytes(tmp_path)).at(b"/a")):
        path.unlink()
    assert set(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "b").read_bytes() == b"bytes"


@pytest.mark.parametrize("size", [KEPT_BYTES_MAX, KEPT_BYTES_MAX * 2])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_large_file_leaves_its_bytes_only_to_who_has_it_open(
    tmp_path: Path, retired: RetiredInodes, size: int, is_read: bool
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * size)
    number = path.stat().st_ino
    with open(path if is_read else "/dev/null", "rb") as reader:
        with retired.removing(Root(bytes(tmp_path)).at(b"/a")):
            path.unlink()
        assert len(reader.read()) == (size if is_read else 0)
    assert open_numbers()[number] == (0 if size > KEPT_BYTES_MAX and not is_read else size)


def test_a_child_closes_what_its_parent_keeps(tmp_path: Path, retired: RetiredInodes) -> None:
    fd = removed(tmp_path)
    retired.keep(fd)
    child = os.fork()
    if child == 0:
        retired.reset_after_fork()
        os._exit(is_open(fd))
    assert os.waitpid(child, 0)[1] == 0
    assert is_open(fd)
