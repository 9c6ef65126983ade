"""A file that a program changes during its upload is in use; one that lacks bytes by itself is a fault of the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.errors import FileInUseError
from headrace.origin.source import FilePutSource, UnchangedFileSource

SIZE_BYTES = 100_000


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE_BYTES))
    file = os.open(path, os.O_RDWR)
    yield file
    os.close(file)


def unchanged(file: int, size_bytes: int = SIZE_BYTES) -> UnchangedFileSource:
    return UnchangedFileSource(file, size_bytes, ctime_ns=os.fstat(file).st_ctime_ns, name="/file")


def change(file: int, size_bytes: int) -> None:
    """Set a size, and another ctime, whose clock may be slower than a test."""
    before_ns = os.fstat(file).st_ctime_ns
    while os.fstat(file).st_ctime_ns == before_ns:
        os.ftruncate(file, size_bytes)
        os.fchmod(file, 0o600)


@pytest.mark.parametrize("size_bytes", [0, SIZE_BYTES // 2, SIZE_BYTES, 2 * SIZE_BYTES])
def test_a_file_that_changes_is_in_use(file: int, size_bytes: int) -> None:
    source = unchanged(file)
    change(file, size_bytes)
    for read in (lambda: source.pread(0, SIZE_BYTES), source.settle):
        with pytest.raises(FileInUseError, match=r"a program (wrote|shortened) it"):
            read()
    with pytest.raises(FileInUseError):
        raise source.ended(10)  # as a folder's origin does, which copies by the kernel


def test_a_file_that_is_shortened_is_in_use_before_its_times_change(file: int) -> None:
    for source in (unchanged(file, SIZE_BYTES + 1), FilePutSource(file, SIZE_BYTES + 1, name="/file")):
        with pytest.raises(FileInUseError, match=f"to {SIZE_BYTES} of {SIZE_BYTES + 1} bytes"):
            source.pread(0, SIZE_BYTES + 1)
