"""Clean files that leave the layer for the cache: with the right checksums, and never while somebody needs them."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId, Version
from headrace.base.tasks import OwnedTasks
from headrace.overlay.dirty_throttle import DirtyThrottle
from headrace.overlay.hiding import is_removal_pending
from headrace.overlay.marks import set_base
from headrace.overlay.upper import HIDDEN, Upper
from headrace.writeback import demotion
from headrace.writeback.demotion import Demoter, choose
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.upper_quota import UpperQuota
from tests.unit.writeback.layer_fixture import CrashError, LayerFixture, crash_at

PATH = b"/d/f"
SIZES = [0, 5, BLOCK_SIZE_BYTES, 2 * BLOCK_SIZE_BYTES + 5]


def demoter_of(
    layer: LayerFixture,
    *,
    has_store: bool = True,
    bytes_max: int = 1 << 30,
    on_adopted: Callable[[list[FileId]], None] = lambda ids: None,
) -> Demoter:
    store = layer.store if has_store else None
    quota = UpperQuota(bytes_max, DirtyThrottle(layer.upper.pressure_path), store)
    return Demoter(
        layer.layer,
        layer.namespace.tree,
        quota,
        store=store,
        owns=lambda path: True,
        on_demoted=layer.meant_anew.extend,
        on_adopted=on_adopted,
    )


async def persisted(layer: LayerFixture, data: bytes, path: bytes = PATH) -> Entry:
    layer.write(path, data)
    await layer.uploads.put(path)
    entry = layer.namespace.tree.entry_at(path)
    assert entry is not None
    return entry


def row_of(layer: LayerFixture, path: bytes = PATH) -> tuple[JournalRecord, os.stat_result]:
    row = layer.journal.get(path)
    assert row is not None
    return row, layer.upper.at(path).lstat()


def assert_cached(layer: LayerFixture, entry: Entry, data: bytes) -> None:
    """The cache has the file complete, with these bytes, and their checksums hold."""
    cached = layer.store.index.cached(entry.id)
    assert cached is not None and cached.complete and layer.store.holds(cached)
    path = layer.store.volumes[cached.volume].data_path(entry.id)
    assert Path(path).read_bytes() == data
    assert layer.store.verifier.verify(entry.id)


@pytest.mark.parametrize("size_bytes", SIZES)
async def test_a_clean_file_becomes_the_cache_file(layer: LayerFixture, size_bytes: int) -> None:
    data = random.Random(size_bytes).randbytes(size_bytes)
    entry = await persisted(layer, data)
    inode = layer.upper.at(PATH).lstat().st_ino
    adopted: list[FileId] = []
    demoter = demoter_of(layer, on_adopted=adopted.extend)
    assert await demoter.demote(PATH, entry)
    assert_cached(layer, entry, data)
    assert adopted == [entry.id], "it gets its copies"
    cached = layer.store.index.cached(entry.id)
    assert cached is not None
    path = layer.store.volumes[0].data_path(entry.id)
    assert os.stat(path).st_ino == inode  # a rename: no byte was copied
    assert layer.names(b"/d") == [] and layer.upper.has_demoted_files(b"/d")
    assert layer.journal.get(PATH) is None and layer.meant_anew == [PATH] and demoter.count == 1
    assert layer.namespace.tree.entry_at(PATH) == entry and await layer.origin_bytes(PATH) == data


@pytest.mark.parametrize("has_store", [True, False])
async def test_its_directory_keeps_its_times(layer: LayerFixture, has_store: bool) -> None:
    """Programs as rsync compare them, and the name is still there for them."""
    await persisted(layer, b"x" * 5)
    layer.upper.at(b"/d").utime((10**18, 10**18 + 1))
    await demoter_of(layer, has_store=has_store).demote_clean([row_of(layer)], 1 << 20)
    times = layer.upper.at(b"/d").lstat()
    assert (times.st_atime_ns, times.st_mtime_ns) == (10**18, 10**18 + 1)
    assert layer.names(b"/d") == []


async def test_a_damaged_file_fails_its_checksum(layer: LayerFixture) -> None:
    """So `assert_cached` can fail."""
    entry = await persisted(layer, b"right")
    await demoter_of(layer).demote(PATH, entry)
    with open(layer.store.volumes[0].data_path(entry.id), "r+b") as file:
        file.write(b"wrong")
    assert not layer.store.verifier.verify(entry.id)


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
async def test_a_file_that_is_open_stays(layer: LayerFixture, flags: int) -> None:
    entry = await persisted(layer, b"ours")
    demoter = demoter_of(layer)
    fd = layer.upper.at(PATH).open(flags)
    assert not await demoter.demote(PATH, entry)
    assert layer.content(PATH) == b"ours" and layer.store.index.cached(entry.id) is None
    os.close(fd)
    assert await demoter.demote(PATH, entry)


@pytest.mark.parametrize("is_changed", [False, True])
async def test_an_unchanged_copy_of_the_origins_file_stays_for_a_moment(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    """A program is about to open it, and its kernel looks the name up only once more."""
    entry = await persisted(layer, b"ours")
    row, _ = row_of(layer)
    mtime_ns = layer.upper.at(PATH).lstat().st_mtime_ns
    set_base(
        layer.upper.at(PATH),
        PATH,
        Version(4, mtime_ns - is_changed, "uploaded as it is, it has another token"),
    )
    changed_ns = layer.upper.at(PATH).lstat().st_ctime_ns
    layer.journal.note(JournalRecord(PATH, row.inode, changed_ns, row.size_bytes, row.version))
    monkeypatch.setattr(demotion, "wall_s", lambda: changed_ns / 1e9 + 1.9)
    assert await demoter_of(layer).demote(PATH, entry) is is_changed
    assert (layer.upper.at(PATH).seen() is None) is is_changed
    monkeypatch.setattr(demotion, "wall_s", lambda: changed_ns / 1e9 + 2.1)
    assert await demoter_of(layer).demote(PATH, entry) or is_changed
    assert_cached(layer, entry, b"ours")


async def test_a_dirty_file_stays(layer: LayerFixture) -> None:
    entry = await persisted(layer, b"ours")
    layer.write(PATH, b"dirty")
    assert not await demoter_of(layer).demote(PATH, entry)
    await demoter_of(layer).demote_clean([row_of(layer)], 1 << 30)
    assert layer.content(PATH) == b"dirty" and layer.store.index.cached(entry.id) is None


async def test_a_file_whose_upload_is_not_answered_stays(layer: LayerFixture) -> None:
    entry = await persisted(layer, b"ours")
    row, _ = row_of(layer)
    layer.journal.note(JournalRecord(PATH, row.inode, row.ctime_ns, row.size_bytes, row.version, begun=True))
    assert not await demoter_of(layer).demote(PATH, entry)
    assert layer.content(PATH) == b"ours"


async def test_a_file_that_the_index_shows_as_another_version_stays(layer: LayerFixture) -> None:
    entry = await persisted(layer, b"ours")
    layer.namespace.changes.record_put(PATH, layer.memory.hold("d/f", b"theirs"))
    await demoter_of(layer).demote_clean([row_of(layer)], 1 << 30)
    assert not await demoter_of(layer).demote(PATH, entry)
    assert layer.content(PATH) == b"ours"


async def test_what_the_origin_cannot_hold_stays(layer: LayerFixture) -> None:
    """Other names of the file, and a user's attributes."""
    entries = {path: await persisted(layer, b"ours", path) for path in (b"/d/linked", b"/d/attributes")}
    layer.upper.at(b"/d/linked").link(layer.upper.at(b"/d/second"))
    layer.upper.at(b"/d/attributes").setxattr("user.label", b"cat")
    for path, entry in entries.items():  # both changed the ctime, so the row is that of the present state
        row, status = row_of(layer, path)
        layer.journal.note(
            JournalRecord(path, status.st_ino, status.st_ctime_ns, status.st_size, row.version)
        )
        assert not await demoter_of(layer).demote(path, entry)
        assert layer.content(path) == b"ours"


async def test_a_file_on_its_way_to_a_removal_stays(layer: LayerFixture) -> None:
    entry = await persisted(layer, b"ours")
    aside = layer.upper.new()
    aside.mkdir(0o700)
    aside.setxattr("user.headrace.path" if os.geteuid() else "trusted.headrace.path", b"/d")
    aside.rename(layer.upper.gone.at(b"/1"))
    assert is_removal_pending(layer.upper, PATH)
    assert not await demoter_of(layer).demote(PATH, entry)
    assert layer.content(PATH) == b"ours"


async def test_without_a_cache_the_file_is_dropped(layer: LayerFixture) -> None:
    await persisted(layer, b"ours")
    demoter = demoter_of(layer, has_store=False)
    await demoter.demote_clean([row_of(layer)], 1 << 30)
    assert layer.names(b"/d") == [] and demoter.count == 1
    assert await layer.origin_bytes(PATH) == b"ours"


async def test_a_layer_above_its_share_lets_the_oldest_go(layer: LayerFixture) -> None:
    size_bytes = 64 << 10
    for number in range(4):
        path = b"/d/%d" % number
        await persisted(layer, os.urandom(size_bytes), path)
        layer.upper.at(path).utime((number, number))
        row, status = row_of(layer, path)
        layer.journal.note(
            JournalRecord(path, status.st_ino, status.st_ctime_ns, status.st_size, row.version)
        )
    clean = [row_of(layer, b"/d/%d" % number) for number in (2, 0, 3, 1)]
    assert choose(clean, size_bytes + 1) == [b"/d/0", b"/d/1"] and choose(clean, 0) == []
    demoter = demoter_of(layer, bytes_max=2 * size_bytes)
    demoter.quota.measured(4 * size_bytes)
    await demoter.demote_clean(clean, demoter.quota.surplus_bytes)
    assert layer.names(b"/d") == [b"2", b"3"] and demoter.quota.used_bytes == 2 * size_bytes


async def test_a_damaged_file_is_dropped_only_if_the_origin_has_that_version(layer: LayerFixture) -> None:
    await persisted(layer, b"ours")
    row, _ = row_of(layer)
    demoter = demoter_of(layer)
    layer.memory.hold("d/f", b"theirs")
    assert not await demoter.drop_damaged(row)
    layer.memory.delete("d/f")
    assert not await demoter.drop_damaged(row)
    assert layer.content(PATH) == b"ours"
    again = await persisted(layer, b"ours", b"/d/g")
    row, _ = row_of(layer, b"/d/g")
    assert await demoter.drop_damaged(row) and layer.store.index.cached(again.id) is None
    assert layer.upper.lookup(b"/d/g") is None and await layer.origin_bytes(b"/d/g") == b"ours"


@pytest.mark.parametrize("step", ["adopt.map", "adopt.recorded", "adopt.renamed"])
async def test_a_crash_leaves_the_file_in_one_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """In the layer or in the cache, with all its bytes, and clean in either."""
    data = random.Random(1).randbytes(BLOCK_SIZE_BYTES + 5)
    layer = LayerFixture(tmp_path)
    entry = await persisted(layer, data)
    with monkeypatch.context() as patch:
        crash_at(patch, step)
        with pytest.raises(CrashError):
            await demoter_of(layer).demote(PATH, entry)
    again = await layer.reopened()
    assert again.upper.lookup(PATH) is not HIDDEN
    cached = again.store.index.cached(entry.id)
    if step == "adopt.renamed":
        assert_cached(again, entry, data)
        assert again.names(b"/d") == []
    else:
        assert cached is None or not again.store.holds(cached)
        row, status = row_of(again)
        assert again.content(PATH) == data and row.describes(status)
        again_entry = again.namespace.tree.entry_at(PATH)
        assert again_entry is not None and await demoter_of(again).demote(PATH, again_entry)
        assert_cached(again, again_entry, data)
    again.crash()


@pytest.mark.expected_warnings("headrace.writeback.demotion")
async def test_a_file_that_the_disk_fails_keeps_no_other_in_the_layer(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is the first of each attempt."""
    remove, other = demotion.remove_clean_file, b"/e/f"

    def fail_at_one(upper: Upper, row: JournalRecord, *arguments: Any, **options: Any) -> int:
        if row.path == PATH:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return remove(upper, row, *arguments, **options)

    await persisted(layer, b"ours")
    entry = await persisted(layer, b"other", other)
    monkeypatch.setattr(demotion, "remove_clean_file", fail_at_one)
    await demoter_of(layer).demote_clean([row_of(layer), row_of(layer, other)], 1 << 20)
    assert layer.content(PATH) == b"ours" and layer.journal.get(PATH) is not None
    assert_cached(layer, entry, b"other")
    assert layer.names(b"/e") == []


async def test_a_cached_file_leaves_a_full_disk_at_the_cost_of_the_reserve(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, left = demotion.remove_clean_file, [2]

    def fail_twice(*arguments: Any, **options: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return remove(*arguments, **options)

    await persisted(layer, b"ours")
    layer.store.reserve.refill(1 << 40)
    monkeypatch.setattr(demotion, "_is_cached", lambda store, entry: True)
    monkeypatch.setattr(demotion, "remove_clean_file", fail_twice)
    await demoter_of(layer).demote_clean([row_of(layer)], 1 << 20)
    assert layer.names(b"/d") == [] and left == [0]


async def test_after_the_stop_nothing_is_demoted(layer: LayerFixture) -> None:
    """Its journal is closed then, and other nodes read until this one has left the cluster."""
    entry = await persisted(layer, b"ours")
    demoter = demoter_of(layer)
    await demoter.stop()
    assert not await demoter.demote(PATH, entry)
    assert layer.content(PATH) == b"ours" and demoter.count == 0


async def test_the_stop_waits_for_a_file_that_a_read_demotes(
    layer: LayerFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await persisted(layer, b"ours")
    demoter = demoter_of(layer)
    begun, go_on = threading.Event(), threading.Event()
    checksums_of = demotion.checksums_of

    def slow_checksums(*given: Any) -> list[int] | None:
        begun.set()
        assert go_on.wait(60)
        return checksums_of(*given)

    monkeypatch.setattr(demotion, "checksums_of", slow_checksums)
    async with OwnedTasks() as tasks:
        read = tasks.start(demoter.demote(PATH, entry))
        assert await asyncio.to_thread(begun.wait, 60)
        stop = tasks.start(demoter.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not stop.done()
        go_on.set()
        await stop
        assert demoter.count == 1
        assert await read
    assert_cached(layer, entry, b"ours")
