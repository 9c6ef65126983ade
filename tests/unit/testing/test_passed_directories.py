"""The directories of tests that passed: empty, out of the way, and gone at the end."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest

from tests.passed_directories import PassedDirectories


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a directory of a test with a file, and with names of files of somebody else."""
    directory = tmp_path / "test"
    (directory / "nested").mkdir(parents=True)
    (directory / "nested/file").write_bytes(b"of the test")
    for kind in ("linked", "named"):
        (tmp_path / kind).write_bytes(b"of somebody else")
    (directory / "link").symlink_to(tmp_path / "linked")
    (directory / "second name").hardlink_to(tmp_path / "named")
    return directory


def test_a_directory_is_moved_with_empty_files(directory: Path, tmp_path: Path) -> None:
    PassedDirectories(tmp_path / "passed").add(directory)
    assert not directory.exists()
    assert (tmp_path / "passed/test/nested/file").read_bytes() == b""


@pytest.mark.parametrize("kind", ["linked", "named"])
def test_a_file_of_somebody_else_stays_as_it_is(directory: Path, tmp_path: Path, kind: str) -> None:
    directories = PassedDirectories(tmp_path / "passed")
    directories.add(directory)
    assert (tmp_path / kind).read_bytes() == b"of somebody else"
    directories.remove()
    assert (tmp_path / kind).read_bytes() == b"of somebody else"
    assert not (tmp_path / "passed").exists()


def test_a_file_that_is_mapped_keeps_its_bytes(directory: Path, tmp_path: Path) -> None:
    with open(directory / "nested/file", "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    PassedDirectories(tmp_path / "passed").add(directory)
    assert view[:] == b"of the test"
    view.close()


def test_a_directory_that_the_test_removed_is_no_error(tmp_path: Path) -> None:
    directories = PassedDirectories(tmp_path / "passed")
    directories.add(tmp_path / "nothing")
    assert not list((tmp_path / "passed").iterdir())
