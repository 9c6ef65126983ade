"""Volumes belong to one cache: another one's is not used in their place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.base import volume_owner
from headrace.base.errors import StoreError
from headrace.base.volume_owner import check_volumes, claim_volumes


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    paths = [tmp_path / name for name in ("a1", "a2", "b1", "b2")]
    for path in paths:
        path.mkdir()
    return [*map(str, paths)]


def test_a_volume_of_another_cache_is_refused(folders: list[str]) -> None:
    a1, a2, b1, b2 = folders
    for cache in ([a1, a2], [b1, b2]):
        claim_volumes(cache)
        claim_volumes(cache)
        check_volumes(cache)
    for wrong in ([a1, b2], [b1, a2], [a1, a2, b2]):
        for check in (claim_volumes, check_volumes):
            with pytest.raises(StoreError, match="belongs to another cache than"):
                check(wrong)


def test_an_empty_volume_and_one_without_a_record_are_taken(folders: list[str]) -> None:
    a1, a2, b1, _ = folders
    claim_volumes([a1])
    assert os.listdir(a1) == []
    claim_volumes([a1, a2])
    claim_volumes([a1, a2, b1])
    for damaged in (b"", b"\xff\n", b"0" * 64):
        Path(a2, "cache").write_bytes(damaged)
        check_volumes([a1, a2])
        claim_volumes([a1, a2, b1])
    assert os.listdir(a1) == ["cache"]


def test_a_full_disk_takes_no_record_and_is_used(folders: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: str) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(volume_owner, "sync_folder", full)
    claim_volumes(folders)
    monkeypatch.setattr(volume_owner, "sync_folder", lambda folder: None)
    claim_volumes(folders)
    check_volumes(folders)
