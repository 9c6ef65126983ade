"""Errors of a disk in the middle of a change: nothing leaks, and the change can be made again."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.base.errors import NoSpaceError, StoreError
from headrace.base.model import FileId
from headrace.store import volume
from headrace.store.recovery import doubt
from headrace.store.store import Store
from headrace.store.volume import Volume
from tests.unit.store.broken_disk import broken_disk
from tests.unit.store.conftest import OpenDisks, OpenStore, cached, fill, named
from tests.unit.store.unreadable import unreadable

MIB = 1 << 20


@contextmanager
def no_commits(store: Store) -> Iterator[None]:
    """The disk of the index takes no record."""

    def refuse(*_: object) -> None:
        raise NoSpaceError("index", why="the filesystem is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.index, "put_cached", refuse)
        yield


@contextmanager
def no_unlinks(broken: FileId | None = None) -> Iterator[None]:
    """The disk removes no file, or none of that id."""
    real = Volume.unlink

    def fail(self: Volume, id: FileId) -> int:
        if broken in (None, id):
            raise StoreError(f"cache volume {self.folder} can't be used", why=os.strerror(errno.EIO))
        return real(self, id)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Volume, "unlink", fail)
        yield


def files_of(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "volume/files").rglob("*") if path.is_file())


def test_a_file_without_a_record_keeps_no_descriptor(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    entry = named(store, b"f", 3 * MIB)
    with no_commits(store):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with pytest.raises(NoSpaceError):
                store.create(entry)
        assert len(os.listdir("/proc/self/fd")) == before
    assert files_of(tmp_path) == []
    assert store.used_bytes == 0
    writer = store.create(entry)
    writer.write(0, bytes(3 * MIB))
    store.complete(writer)
    assert cached(store, entry.id).trusted


def test_a_file_whose_completion_was_not_recorded_is_completed_again(open_store: OpenStore) -> None:
    store = open_store()
    entry = named(store, b"f", 3 * MIB)
    body = os.urandom(3 * MIB)
    writer = store.create(entry)
    writer.write(0, body)
    with no_commits(store), pytest.raises(NoSpaceError):
        store.complete(writer)
    assert not cached(store, entry.id).complete
    store.complete(writer)
    assert cached(store, entry.id).trusted
    assert Path(store.volumes[0].data_path(entry.id)).read_bytes() == body


@contextmanager
def bad_sector(offset: int, length: int) -> Iterator[None]:
    """The disk can't read such blocks."""
    real = os.pread

    def read(fd: int, count: int, start: int) -> bytes:
        if (start, count) == (offset, length):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, count, start)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", read)
        yield


def test_a_file_with_a_bad_sector_is_not_lost_after_a_power_loss(open_store: OpenStore) -> None:
    """Its reader would get EIO each time, though the origin has the bytes."""
    store = open_store()
    id, small = fill(store, b"f", 3 * MIB), fill(store, b"s", 777)
    assert doubt(store.index, [id, small]) == 2  # as a start after a power loss does
    with bad_sector(MIB, MIB), bad_sector(0, 777):
        assert not store.verifier.verify(id)
        assert not store.verifier.verify(small)
    assert store.index.cached(small) is None
    writer = store.writer(id)
    assert writer is not None
    assert writer.missing(0, 3 * MIB) == [(MIB, 2 * MIB)]


def test_fsck_goes_on_after_a_bad_sector(open_store: OpenStore) -> None:
    store = open_store()
    bad, rotten = fill(store, b"bad", 2 * MIB), fill(store, b"rotten", 3 * MIB)
    with open(store.volumes[0].data_path(rotten), "r+b") as file:
        file.write(b"rotten")
    with bad_sector(MIB, MIB):
        report = store.fsck(lambda *_: None)
    assert {id for id, _ in report.faults} == {bad, rotten}
    assert report.files_with_bad_blocks == 2
    assert store.fsck(lambda *_: None).sound


def test_a_check_that_was_not_recorded_leaves_the_file_in_the_accounts(open_store: OpenStore) -> None:
    """Nothing would ever evict it."""
    store = open_store()
    id = fill(store, b"f", 3 * MIB)
    before = store.used_bytes
    doubt(store.index, [id])
    with no_commits(store), pytest.raises(NoSpaceError):
        store.verifier.verify(id)
    assert store.used_bytes == before
    assert store.verifier.verify(id)
    assert cached(store, id).trusted
    assert store.used_bytes == before


def test_one_file_that_stays_on_a_failing_disk_keeps_no_other(open_store: OpenStore) -> None:
    """The records of all were deleted by one commit: what was left of the others would count for ever."""
    store = open_store(16 * MIB)
    ids = [fill(store, bytes((97 + number,)), 3 * MIB) for number in range(3)]
    with no_unlinks(ids[0]), pytest.raises(StoreError):
        store._files.discard(ids)
    assert store.used_bytes == 0
    for id in ids[1:]:
        assert not os.path.exists(store.volumes[0].data_path(id))
    for number in range(8):
        fill(store, b"later%d" % number, 3 * MIB)
    assert store.used_bytes <= 16 * MIB


@pytest.mark.parametrize("lack", ["descriptors", "threads"])
def test_a_large_file_goes_also_without_descriptors_or_threads(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lack: str
) -> None:
    """Its record is gone by then, so nothing would ever free its space."""
    store = open_store()
    id = fill(store, b"f", 3 * MIB)
    path = store.volumes[0].data_path(id)
    before = len(os.listdir("/proc/self/fd"))
    plain = os.open

    def refuse(target: str, flags: int, *rest: int) -> int:
        if target == path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return plain(target, flags, *rest)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(volume, "UNLINK_AT_ONCE_BYTES", MIB)
    with monkeypatch.context() as short:
        if lack == "descriptors":
            short.setattr(os, "open", refuse)
        else:
            short.setattr(threading.Thread, "start", start)
        assert store.free(id) > 3 * MIB
    assert files_of(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("error", [errno.EROFS, errno.EIO])
def test_the_other_disks_take_the_files_of_one_that_fails(open_disks: OpenDisks, error: int) -> None:
    """It would soon be the emptiest one, and every uncached read would fail."""
    store = open_disks(3)
    kept = [store.complete_small(named(store, b"%d" % n, 100), b"x" * 100) for n in range(3)]
    with broken_disk(store.disks[0], error):
        for number in range(6):
            store.complete_small(named(store, b"small%d" % number, 100), b"y" * 100)
            fill(store, b"large%d" % number, 2 * MIB)
        assert store.disks[0].is_failing
        assert store.fsck(lambda *_: None).sound
    files = [file for file in store.index.cached_files() if file not in kept]
    assert len(files) == 12
    assert {file.volume for file in files} == {1, 2}
    assert [cached(store, file.id) for file in kept] == kept


@pytest.mark.parametrize("used_bytes", [0, 15 * MIB])
def test_a_disk_that_does_not_tell_its_space_keeps_no_other_from_its_files(
    open_disks: OpenDisks, monkeypatch: pytest.MonkeyPatch, used_bytes: int
) -> None:
    store = open_disks(2, 16 * MIB)
    for disk in store.disks:
        disk.used_bytes += used_bytes
    broken, plain = store.disks[0]._folder_fd, os.statvfs

    def fail(file: int | str) -> os.statvfs_result:
        if file == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(file)

    monkeypatch.setattr(os, "statvfs", fail)
    files = [store.complete_small(named(store, b"%d" % n, 100), b"x" * 100) for n in range(3)]
    assert {file.volume for file in files} == {1}
    assert cached(store, fill(store, b"large", 2 * MIB // 4)).volume == 1
    store.space.evict_if_needed()
    assert store.disks[0].is_failing


def test_eviction_goes_on_beside_a_disk_that_fails(open_disks: OpenDisks) -> None:
    store = open_disks(2, 16 * MIB)
    ids = [fill(store, b"%d" % number, 2 * MIB) for number in range(14)]
    first = {id for id in ids if cached(store, id).volume == 0}
    with broken_disk(store.disks[0], errno.EIO):
        for number in range(20):
            fill(store, b"later%d" % number, 2 * MIB)
            while store.space.evict_if_needed():
                pass
        assert not store.space.is_short()
    lost = [id for id in first if store.index.cached(id) is None]
    assert len(lost) <= 2  # those that made the first failure
    assert store.disks[1].used_bytes <= 16 * MIB


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_a_disk_that_is_full_or_a_node_that_is_short_of_something_is_no_failing_disk(
    tmp_path: Path, error: int
) -> None:
    disk = Volume(0, str(tmp_path), MIB)
    disk.note_failure(OSError(error, os.strerror(error)))
    assert not disk.is_failing
    disk.note_failure(OSError(errno.EIO, os.strerror(errno.EIO)))
    assert disk.is_failing


def test_a_disk_that_goes_on_to_fail_is_tried_less_and_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    disk = Volume(0, str(tmp_path), MIB)
    pauses = []
    for _ in range(7):
        disk.note_failure(OSError(errno.EIO, os.strerror(errno.EIO)))
        began_s = now_s
        while disk.is_failing:
            now_s += 1.0
        pauses.append(now_s - began_s)
    assert pauses == [30.0, 60.0, 120.0, 240.0, 480.0, 600.0, 600.0]
    now_s += 3600.0
    disk.note_failure(OSError(errno.EIO, os.strerror(errno.EIO)))
    now_s += 31.0
    assert not disk.is_failing


def test_small_files_that_were_not_written_reserve_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    entries = [named(store, b"a", 1000), named(store, b"b", 2000)]

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch, no_unlinks():
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(StoreError, match="can't be written"):
            store.complete_small_many([(entry, bytes(entry.version.size_bytes)) for entry in entries])
    assert store.used_bytes == 0
    assert not any(store._files.accounts.is_reserved(entry.id) for entry in entries)
    store.complete_small_many([(entry, bytes(entry.version.size_bytes)) for entry in entries])
    assert all(cached(store, entry.id).trusted for entry in entries)


def test_a_file_that_the_only_disk_keeps_stops_no_eviction(open_store: OpenStore) -> None:
    """For 30 s nothing could be cached, as if the disk were full."""
    store = open_store(16 * MIB)
    ids = [fill(store, b"%d" % number, 3 * MIB) for number in range(5)]
    with unreadable(store.disks[0].data_path(ids[0])):
        for number in range(8):
            fill(store, b"later%d" % number, 3 * MIB)
        assert store.index.cached(ids[0]) is None
        assert not store.disks[0].is_failing
        assert store.disks[0].failures == 1
    assert store.used_bytes <= 16 * MIB


def test_a_disk_that_failed_and_takes_changes_again_is_evicted_for_a_file(open_store: OpenStore) -> None:
    store = open_store(16 * MIB)
    for number in range(5):
        fill(store, b"%d" % number, 3 * MIB)
    store.disks[0].note_failure(OSError(errno.EIO, os.strerror(errno.EIO)))
    fill(store, b"later", 3 * MIB)
    assert store.disks[0].is_failing


def test_the_only_disk_keeps_its_files_while_it_is_read_only(open_store: OpenStore) -> None:
    """They can be read."""
    store = open_store(16 * MIB)
    ids = [fill(store, b"%d" % number, 3 * MIB) for number in range(5)]
    with broken_disk(store.disks[0], errno.EROFS):
        for number in range(6):
            with pytest.raises((NoSpaceError, StoreError)):
                fill(store, b"later%d" % number, 3 * MIB)
    lost = [id for id in ids if store.index.cached(id) is None]
    assert len(lost) <= 2  # those that made the first failure
