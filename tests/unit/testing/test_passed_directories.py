"""The directories of tests that passed: without large files, out of the way, and gone at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passed_directories import LARGE_BYTES, PassedDirectories
from tests.random_bytes import random_bytes

LARGE = random_bytes(0, 2 * LARGE_BYTES)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Make a directory of a test with a small file, a large one, and a link to a large file of somebody else."""
    directory = tmp_path / "test"
    (directory / "nested").mkdir(parents=True)
    (directory / "nested/small").write_bytes(b"small")
    (directory / "nested/large").write_bytes(LARGE)
    (tmp_path / "other").write_bytes(LARGE)
    (directory / "link").symlink_to(tmp_path / "other")
    return directory


def test_a_directory_is_moved_without_its_large_files(directory: Path, tmp_path: Path) -> None:
    directories = PassedDirectories(tmp_path / "passed")
    directories.add(directory)
    assert not directory.exists()
    assert (tmp_path / "passed/0/nested/small").read_bytes() == b"small"
    assert not (tmp_path / "passed/0/nested/large").exists()
    assert (tmp_path / "passed/0/link").is_symlink()


def test_a_file_elsewhere_stays(directory: Path, tmp_path: Path) -> None:
    directories = PassedDirectories(tmp_path / "passed")
    directories.add(directory)
    directories.remove()
    assert (tmp_path / "other").read_bytes() == LARGE
    assert not (tmp_path / "passed").exists()


def test_a_directory_that_the_test_removed_is_no_error(tmp_path: Path) -> None:
    directories = PassedDirectories(tmp_path / "passed")
    directories.add(tmp_path / "nothing")
    assert not list((tmp_path / "passed").iterdir())
