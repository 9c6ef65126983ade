"""fsck and starts beside files and directories that a disk can't read: they are reported, and end nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from headrace.base.errors import StoreError
from headrace.base.model import FileId
from headrace.store import fsck
from headrace.store.store import Store
from headrace.store.volume import Volume, files_folder
from tests.unit.store.conftest import OpenDisks, OpenStore, cached, crash, fill, named
from tests.unit.store.unreadable import unreadable

MIB = 1 << 20
STRAY = FileId(0xABCDEF)


def rot(store: Store, id: FileId) -> None:
    with open(store.volumes[0].data_path(id), "r+b") as file:
        file.write(b"rotten")


def lay_stray(volume: Volume) -> str:
    volume.make_folder(STRAY)
    path = volume.data_path(STRAY)
    Path(path).write_bytes(b"stray")
    return path


@pytest.mark.parametrize("kind", ["data", "map"])
def test_fsck_goes_on_behind_a_file_that_can_not_be_opened(open_store: OpenStore, kind: str) -> None:
    store = open_store()
    volume = store.volumes[0]
    bad, rotten = fill(store, b"bad", 2 * MIB), fill(store, b"rotten", 3 * MIB)
    rot(store, rotten)
    path = volume.data_path(bad) if kind == "data" else volume.map_path(bad)
    with unreadable(path):
        report = store.fsck(lambda *_: None)
    assert not report.sound
    assert (report.unchecked, report.files_with_bad_blocks) == ({bad}, 1)
    reasons = dict(report.faults)
    assert "it can't be checked or repaired" in reasons[bad]
    assert "Input/output error" in reasons[bad]
    assert "blocks are not what was written" in reasons[rotten]
    store.fsck(lambda *_: None)
    assert store.fsck(lambda *_: None).sound


def test_millions_of_unreadable_files_have_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsck, "REASONS_MAX", 2)
    report = fsck.FsckReport()
    for number in range(5):
        report.note_unchecked(FileId(number), StoreError(f"cache file {number}", why="Input/output error"))
    reasons = [reason for _, reason in report.faults]
    assert len(reasons) == 5
    assert ["Input/output error" in reason for reason in reasons] == [True, True, False, False, False]
    assert len(set(map(id, reasons[2:]))) == 1


def test_fsck_reports_a_stray_that_can_not_be_removed(open_store: OpenStore) -> None:
    store = open_store()
    path = lay_stray(store.volumes[0])
    with unreadable(path):
        report = store.fsck(lambda *_: None)
    assert [id for id, _ in report.faults] == [STRAY]
    assert report.unchecked == {STRAY}
    assert store.fsck(lambda *_: None).files_without_record == 1
    assert not os.path.exists(path)


def test_fsck_reports_a_directory_that_can_not_be_listed(open_disks: OpenDisks) -> None:
    store = open_disks(2)
    fill(store, b"f", MIB)
    path = lay_stray(store.disks[1])
    for folder in (os.path.dirname(path), files_folder(store.disks[0].folder)):
        lay_stray(store.disks[1])
        with unreadable(folder):
            report = store.fsck(lambda *_: None)
        assert not report.sound
        assert any(folder in problem for problem in report.problems), report
    assert not os.path.exists(path)


def test_what_fsck_found_is_reported_though_the_repairs_can_not_be_synced(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    rotten = fill(store, b"rotten", 3 * MIB)
    rot(store, rotten)

    def refuse(volume: Volume) -> None:
        raise StoreError(f"cache volume {volume.folder} can't be synced", why=os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Volume, "sync", refuse)
        report = store.fsck(lambda *_: None)
    assert [id for id, _ in report.faults] == [rotten]
    assert any("can't be synced" in problem for problem in report.problems)


def test_a_node_starts_beside_a_partial_file_that_can_not_be_read(open_store: OpenStore) -> None:
    store = open_store()
    entry = named(store, b"part", 3 * MIB)
    store.create(entry).write(0, os.urandom(MIB))
    id = fill(store, b"whole", 2 * MIB)
    volume = store.volumes[0]
    crash(store)
    with unreadable(volume.part_path(entry.id)):
        store = open_store()
        assert cached(store, id).trusted


@pytest.mark.expected_warnings("files without a record can't be removed")
def test_a_node_starts_after_a_power_loss_beside_a_stray_that_can_not_be_removed(
    open_store: OpenStore,
) -> None:
    store = open_store()
    id = fill(store, b"whole", 2 * MIB)
    store.sync()
    path = lay_stray(store.volumes[0])
    crash(store)
    with unreadable(path):
        store = open_store(boot_id="boot-2")
        assert cached(store, id).trusted
    assert os.path.exists(path)
    assert store.fsck(lambda *_: None).files_without_record == 1


@pytest.mark.expected_warnings("moves of files can't be ended")
def test_a_node_starts_beside_moves_that_can_not_be_listed(open_disks: OpenDisks) -> None:
    store = open_disks(2)
    id = fill(store, b"whole", 2 * MIB)
    moving = f"{store.disks[0].folder}/moving"
    os.makedirs(moving, exist_ok=True)
    crash(store)
    with unreadable(moving):
        store = open_disks(2)
    assert cached(store, id).trusted
