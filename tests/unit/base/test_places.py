"""Directories that lie in each other."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.base.places import check_places, is_within


def test_a_folder_is_within_by_its_real_path(tmp_path: Path) -> None:
    outer, beside = tmp_path / "outer", tmp_path / "outer-beside"
    (outer / "sub").mkdir(parents=True)
    beside.mkdir()
    (beside / "way").symlink_to(outer / "sub")
    assert is_within(str(outer), str(outer))
    assert is_within(str(outer / "not/there/yet"), f"{outer}/")
    assert is_within(str(beside / "way" / "cache"), str(outer))
    assert not is_within(str(beside), str(outer))
    assert not is_within(str(outer), str(outer / "sub"))
    assert is_within(str(outer), "/")


@pytest.mark.root
def test_a_bind_mount_is_seen_through(tmp_path: Path) -> None:
    outer, bound = tmp_path / "outer", tmp_path / "a bound one"
    (outer / "sub").mkdir(parents=True)
    bound.mkdir()
    subprocess.run(["mount", "--bind", outer / "sub", bound], check=True)
    try:
        assert is_within(str(bound / "cache"), str(outer))
        assert is_within(str(bound), str(outer / "sub"))
        assert is_within(str(outer / "sub/cache"), str(bound))
        assert not is_within(str(outer), str(bound))
    finally:
        subprocess.run(["umount", bound], check=True)


def test_what_would_loop_is_refused(tmp_path: Path) -> None:
    data, cache, mount = (str(tmp_path / name) for name in ("data", "cache", "mnt"))
    check_places([cache], [f"file://{data}", "s3://bucket/data"], mount)
    check_places([cache], [f"file://{cache}-data"], mount)
    for caches, origin, mountpoint in (
        ([cache, f"{data}/cache"], data, mount),
        ([data], data, mount),
        ([f"{mount}/cache"], data, mount),
        ([cache], data, f"{data}/mnt"),
    ):
        with pytest.raises(UsageError, match="lies in the"):
            check_places(caches, [f"file://{origin}"], mountpoint)


def test_no_look_waits_for_what_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that died, and whose mount is held, answers nothing."""
    lstat = os.lstat

    def waiting(path: str, *arguments: Any, **options: Any) -> os.stat_result:
        assert os.fspath(path).rstrip("/") != "/proc", "the file system of a mountpoint is asked"
        return lstat(path, *arguments, **options)

    monkeypatch.setattr(os, "lstat", waiting)
    assert not is_within(str(tmp_path), "/proc")
    check_places([str(tmp_path)], [], "/proc")
