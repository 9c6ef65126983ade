"""Volumes belong to one cache: another one's is not used in their place."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
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


def test_volumes_in_another_order_are_refused(folders: list[str]) -> None:
    """The index names a volume by its place: its files would be missing, and written ones with the first volume."""
    a1, a2, a3, _ = folders
    claim_volumes([a1, a2, a3])
    for wrong in ([a1, a3, a2], [a2, a1, a3], [a1, a3]):
        for check in (claim_volumes, check_volumes):
            with pytest.raises(StoreError, match="former order"):
                check(wrong)
    with pytest.raises(StoreError, match="former order") as caught:
        check_volumes([a3, a2])
    assert "empty this one" in str(caught.value)
    claim_volumes([a1, a2])
    os.unlink(f"{a3}/cache")
    claim_volumes([a1, a2, a3])


def test_the_first_volume_without_its_disk_is_refused(folders: list[str]) -> None:
    """Written files lie there: they would seem to be gone."""
    a1, a2, empty, _ = folders
    claim_volumes([a1, a2])
    for check in (claim_volumes, check_volumes):
        with pytest.raises(StoreError, match="mount the disk of the first directory"):
            check([empty, a2])
    assert os.listdir(empty) == []


def test_a_volume_that_became_the_first_one_is_the_first_of_a_new_cache(folders: list[str]) -> None:
    a1, a2, a3, _ = folders
    claim_volumes([a1, a2])
    claim_volumes([a2])
    claim_volumes([a2, a3])
    with pytest.raises(StoreError, match="belongs to another cache than"):
        check_volumes([a1, a2])


def test_a_record_of_an_earlier_version_gets_its_number(folders: list[str]) -> None:
    a1, a2, _, _ = folders
    for folder in (a1, a2):
        Path(folder, "cache").write_text(f"{'ab' * 16}\n")
    claim_volumes([a1, a2])
    with pytest.raises(StoreError, match="former order"):
        check_volumes([a2, a1])


def test_a_volume_whose_disk_is_not_mounted_is_refused(
    folders: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another disk is below its mountpoint, and it is small."""
    a1, a2, a3, _ = folders
    mounted = {"/", a2}
    monkeypatch.setattr(os.path, "ismount", lambda path: path in mounted)
    lower = f"{a2}/headrace"
    os.mkdir(lower)
    claim_volumes([a1, lower])
    os.unlink(f"{lower}/cache")
    check_volumes([a1, lower])  # a new disk in its place
    mounted.remove(a2)
    for check in (claim_volumes, check_volumes):
        with pytest.raises(StoreError, match=f"nothing is mounted at {a2}"):
            check([a1, lower])
    assert os.listdir(lower) == []
    claim_volumes([a1, a3])  # the cache has another directory in its place
    claim_volumes([a1])
    claim_volumes([a1, lower])


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"ab" * 16 + b"\n\n",
        b'{"cache":"../../etc"}',
        b'{"cache":"' + b"ab" * 16 + b'","number":-1}',
        b'{"cache":"' + b"ab" * 16 + b'","number":65536}',
        b'{"cache":"' + b"ab" * 16 + b'","mountpoints":{"1":"disk"}}',
        b'{"cache":"' + b"ab" * 16 + b'","mountpoints":{"1":"/a/../b"}}',
        b'{"cache":"' + b"ab" * 16 + b'","other":1}',
        b'{"cache":"' + b"ab" * 16 + b'"}' + b" " * (64 << 10),
    ],
)
def test_an_invalid_record_is_none(text: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        volume_owner.decode_record(text)


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_record_is_no_link_and_no_pipe(folders: list[str], kind: str) -> None:
    """Root reads it in directories of another user: it must not follow, or wait."""
    a1, a2, other, _ = folders
    claim_volumes([a1, a2])
    record = Path(a2, "cache")
    record.unlink()
    if kind == "link":
        record.symlink_to(f"{a1}/cache")
    elif kind == "pipe":
        os.mkfifo(record)
    else:
        record.mkdir()
    if kind == "pipe":
        check_volumes([a1, a2])
    else:
        with pytest.raises(StoreError, match=a2):
            check_volumes([a1, a2])
    Path(other, "cache.new").symlink_to(f"{a1}/cache")
    before = Path(a1, "cache").read_bytes()
    with pytest.raises(StoreError, match=other):
        claim_volumes([a1, other])
    assert Path(a1, "cache").read_bytes() == before
