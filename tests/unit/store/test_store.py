from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.beneath import Root
from headrace.base.cache_names import data_name
from headrace.base.errors import EvictedError, NoSpaceError, PathNotFoundError, StoreBusyError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, FileId, ObjectMetadata, Version
from headrace.node.cache import remove_new_cache
from headrace.overlay.reserve import Reserve
from headrace.overlay.upper import Upper
from headrace.store.checksum import block_checksum
from headrace.store.object_metadata import noted
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.store.volume import Volume, data_path, files_folder
from headrace.writeback.sync_journal import SyncJournal
from tests.unit.store.conftest import cached, content, fill

from .conftest import OpenStore, crash, named

MIB = BLOCK_SIZE_BYTES


def test_a_cache_file_has_one_place_by_path_and_by_folder() -> None:
    for id in (1, 0xAB, 0x123456789ABC, 2**48 - 1):
        assert os.fsencode(data_path("/v", id)) == b"%s/%s" % (
            os.fsencode(files_folder("/v")),
            data_name(id),
        )


def test_blocks_appear_one_by_one(open_store: OpenStore) -> None:
    store = open_store()
    entry = named(store, b"f", 2 * MIB + 5)
    writer = store.create(entry)
    assert writer.missing(0, 2 * MIB + 5) == [(0, 2 * MIB + 5)]
    writer.write(MIB, b"b" * (MIB + 5))
    reader = CacheReader.open(store.volumes[0].folder, cached(store, entry.id))
    assert not reader.present(0, 1)
    assert reader.present(MIB, 2 * MIB + 5)
    assert not reader.present(MIB - 1, MIB + 1)
    with pytest.raises(StoreError):
        store.complete(writer)
    writer.write(0, b"a" * MIB)
    assert writer.complete
    assert reader.present(0, 2 * MIB + 5)
    done = store.complete(writer)
    assert done.trusted
    assert os.pread(reader.fd, 2, MIB - 1) == b"ab"
    reader.close()
    reader = CacheReader.open(store.volumes[0].folder, done)
    assert reader.complete
    reader.close()
    assert content(store, entry.id) == b"a" * MIB + b"b" * (MIB + 5)


@pytest.mark.parametrize("size_bytes", [0, 5, MIB, 2 * MIB + 5])
def test_a_file_of_the_layer_becomes_a_cache_file(
    open_store: OpenStore, tmp_path: Path, size_bytes: int
) -> None:
    """In the place of what was cached of it before; what it took of the disk is counted once."""
    store = open_store()
    entry = named(store, b"f", size_bytes)
    begun = store.create(entry) if size_bytes > MIB else None
    data = os.urandom(size_bytes)
    file = tmp_path / "written"
    file.write_bytes(data)
    took = file.stat().st_blocks * 512
    store.space.set_written(took)
    here = Root(os.fsencode(tmp_path))
    sums = [block_checksum(data[offset : offset + MIB]) for offset in range(0, size_bytes, MIB)]
    with pytest.raises(StoreError):
        store.adopt(entry, here.at(b"/nothing"), sums, borrowed=False)
    assert store.index.cached(entry.id) is None
    assert store.adopt(entry, here.at(b"/written"), sums, borrowed=True)
    assert not file.exists()
    assert content(store, entry.id) == data
    assert begun is None or begun.closed
    done = cached(store, entry.id)
    assert (done.trusted, done.borrowed) == (True, True)
    assert store.verifier.verify(entry.id)
    assert 0 <= store.used_bytes - took <= 8192
    assert store.free(entry.id) > 0
    assert store.used_bytes == 0


@pytest.mark.parametrize("offset, length", [(1, MIB), (0, 5), (0, 4 * MIB)])
def test_only_whole_blocks_are_written(open_store: OpenStore, offset: int, length: int) -> None:
    store = open_store()
    writer = store.create(named(store, b"f", 3 * MIB))
    with pytest.raises(ValueError):
        writer.write(offset, bytes(length))


def test_threads_write_different_blocks(open_store: OpenStore) -> None:
    store = open_store()
    writer = store.create(named(store, b"f", 32 * MIB))
    threads = [threading.Thread(target=writer.write, args=(n * MIB, bytes([n]) * MIB)) for n in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert writer.complete
    id = store.complete(writer).id
    assert store.verifier.verify(id)
    assert store.used_bytes == pytest.approx(32 * MIB, abs=8192)


def test_small_files_empty_ones_and_one_block_by_blocks(open_store: OpenStore) -> None:
    store = open_store()
    entries = [named(store, b"e", 0), named(store, b"s", 10)]
    done = store.complete_small_many([(entries[0], b""), (entries[1], b"0123456789")])
    assert all(record.trusted for record in done)
    assert content(store, entries[1].id) == b"0123456789"
    id = fill(store, b"one", MIB)
    assert not os.path.exists(store.volumes[0].map_path(id))
    assert all(store.verifier.verify(file_id) for file_id in (entries[0].id, entries[1].id, id))
    empty = store.create(named(store, b"e2", 0))
    assert empty.complete
    assert store.complete(empty).trusted


def test_a_writer_is_opened_again(open_store: OpenStore) -> None:
    store = open_store()
    entry = named(store, b"f", 3 * MIB)
    writer = store.create(entry)
    writer.write(MIB, bytes(MIB))
    writer.close()
    with pytest.raises(StoreError):
        writer.write(0, bytes(MIB))
    again = store.writer(entry.id)
    assert again is not None
    assert again.missing(0, 3 * MIB) == [(0, MIB), (2 * MIB, 3 * MIB)]
    assert again.drop_blocks([0, 1])
    assert again.blocks_present == 0
    again.close()
    assert not again.drop_blocks([1])
    assert store.writer(FileId(999)) is None


def test_free_leaves_open_files_readable(open_store: OpenStore) -> None:
    store = open_store()
    id = fill(store, b"f", 2 * MIB)
    record = cached(store, id)
    reader = CacheReader.open(store.volumes[0].folder, record)
    assert store.free(id) >= 2 * MIB
    assert store.free(id) == 0
    assert store.used_bytes == 0
    assert len(os.pread(reader.fd, 10, 0)) == 10
    reader.close()
    with pytest.raises(PathNotFoundError):
        CacheReader.open(store.volumes[0].folder, record)


def test_a_file_made_anew_is_never_taken_for_the_complete_one(open_store: OpenStore) -> None:
    """A client read the record, then the file was evicted and its filling began again."""
    store = open_store()
    id = fill(store, b"f", 2 * MIB)
    record = cached(store, id)
    store.free(id)
    entry = store.index.entry(id)
    assert entry is not None
    store.create(entry)
    with pytest.raises(PathNotFoundError):
        CacheReader.open(store.volumes[0].folder, record)


@pytest.mark.parametrize("policy", ["lru", "s3fifo"])
def test_eviction_makes_room_but_never_of_pinned_files(open_store: OpenStore, policy: str) -> None:
    store = open_store(20 * MIB, policy=policy)
    evicted: list[FileId] = []
    store.space.evicted.add(evicted.extend)
    pinned = fill(store, b"pinned", 4 * MIB)
    store.pin(pinned, True)
    ids = [fill(store, b"f%d" % n, 2 * MIB) for n in range(20)]
    assert store.used_bytes <= 20 * MIB
    assert cached(store, pinned).pinned
    assert set(evicted) == {id for id in ids if store.index.cached(id) is None}
    assert not any(os.path.exists(store.volumes[0].data_path(id)) for id in evicted)
    with pytest.raises(NoSpaceError):
        store.create(named(store, b"huge", 17 * MIB))
    with pytest.raises(NoSpaceError):
        store.create(named(store, b"huger", 21 * MIB))


def test_superseded_files_go_first_then_abandoned_ones(open_store: OpenStore) -> None:
    store = open_store(20 * MIB)
    good = [fill(store, b"g%d" % n, 2 * MIB) for n in range(6)]
    old = fill(store, b"old", 2 * MIB)
    named(store, b"old", 2 * MIB, token="new")
    partial = named(store, b"partial", 4 * MIB)
    writer = store.create(partial)
    writer.write(0, bytes(3 * MIB))
    writer.close()
    del writer
    index_bytes = int(store.index.size_bytes / 0.9)
    store.volumes[0].capacity_bytes = 17 * MIB + index_bytes
    assert store.space.evict_if_needed() == [old]
    store.volumes[0].capacity_bytes = 14 * MIB + index_bytes
    assert store.space.evict_if_needed() == [partial.id]
    assert all(store.index.cached(id) for id in good)


def test_the_index_takes_its_part_of_the_capacity(open_store: OpenStore) -> None:
    store = open_store(20 * MIB)
    with store.index.batch():
        for number in range(30_000):
            store.index.names.put_file(ROOT_ID, b"name-%06d" % number, Version(1, 1, "t" * 40))
    index_bytes = store.index.size_bytes
    assert 3 * MIB < index_bytes < 5 * MIB
    fill(store, b"a", 10 * MIB)
    assert store.space.evict_if_needed() == []
    fill(store, b"b", 6 * MIB)
    while store.space.evict_if_needed():
        pass
    assert index_bytes + store.used_bytes <= 20 * MIB
    assert index_bytes + store.statistics()["used_bytes"] <= 20 * MIB
    store.volumes[0].capacity_bytes = 8 * MIB  # of which it takes half at most: files are still cached
    fill(store, b"c", 2 * MIB)
    while store.space.evict_if_needed():
        pass
    assert store.used_bytes >= 2 * MIB
    with pytest.raises(NoSpaceError, match=r"and the [0-9]{7} bytes of the index can't be evicted"):
        store.create(named(store, b"d", 7 * MIB))


def test_a_full_filesystem_is_no_space(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    writer = store.create(named(store, b"f", 2 * MIB))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NoSpaceError):
        writer.write(0, bytes(MIB))
    assert not writer.present(0, MIB)
    assert store.used_bytes == 0


def test_accounts_are_the_same_after_a_clean_restart(open_store: OpenStore) -> None:
    store = open_store()
    ids = [fill(store, b"a", 3 * MIB), fill(store, b"b", 10)]
    store.pin(ids[1], True)
    used = store.used_bytes
    store.close()
    store = open_store(boot_id="boot-2")
    assert store.used_bytes == used
    assert store.unverified_found == 0
    assert all(cached(store, id).trusted for id in ids)
    assert store.statistics()["files_pinned"] == 1


def test_two_nodes_do_not_share_a_volume(open_store: OpenStore, tmp_path: Path) -> None:
    open_store()
    with pytest.raises(StoreBusyError):
        open_store()
    with pytest.raises(StoreError):
        Volume(1, "/proc/nowhere", MIB, "").open()


def test_a_cache_that_a_failed_start_removes_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed between the open of the lock's file and the lock. Another start may create the cache again."""
    folder = str(tmp_path / "new")
    os.mkdir(folder, 0o700)
    lock = fcntl.flock

    def remove_first(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        remove_new_cache(folder)
        lock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(StoreError, match=re.escape(folder)):
        Volume(0, folder, MIB, "").open()
    other = Volume(0, folder, MIB, "")
    other.open()
    with pytest.raises(StoreBusyError):
        Volume(0, folder, MIB, "").open()
    other.close()


def test_a_failed_start_leaves_no_cache_behind(tmp_path: Path) -> None:
    """Its node may have been killed between the write of a file and its rename. Anything else keeps the cache."""
    folder = tmp_path / "new"
    for name, stays in (("cache.new", False), ("written.new", False), ("notes", True), ("files/ab", True)):
        (folder / "files").mkdir(parents=True)
        (folder / name).write_bytes(b"x")
        remove_new_cache(str(folder))
        assert folder.exists() is stays
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("known.db-wal", False),
        ("tree/f", True),
        ("tree/removed-directory/", True),
        ("work/new", True),
        ("gone/0/", True),
        ("exclusive", True),
    ],
)
def test_a_failed_start_leaves_no_empty_upper_layer_behind(tmp_path: Path, name: str, *, stays: bool) -> None:
    """It leaves one that holds anything of a user, be it a mark of a removed name or an empty directory."""
    folder = tmp_path / "new"
    layer = Upper(str(folder / "upper"))
    layer.make()
    with layer.lock:
        pass
    SyncJournal(str(folder / "upper/known.db"), Reserve(str(folder))).close()
    layer.close()
    path = folder / "upper" / name
    path.mkdir() if name.endswith("/") else path.touch()
    remove_new_cache(str(folder))
    assert folder.exists() is stays


def test_fsck_finds_and_repairs(open_store: OpenStore) -> None:
    store = open_store()
    ids = [fill(store, b"f%d" % n, 3 * MIB) for n in range(3)]
    small = fill(store, b"s", 100)
    volume = store.volumes[0]
    with open(volume.data_path(ids[0]), "r+b") as file:
        file.seek(MIB + 7)
        file.write(b"rotten")
    os.unlink(volume.data_path(ids[1]))
    Path(volume.data_path(small)).write_bytes(bytes(100))
    volume.make_folder(FileId(0xABCDEF))
    Path(volume.data_path(FileId(0xABCDEF))).write_bytes(b"stray")
    report = store.fsck(lambda *_: None)
    assert not report.sound
    assert (report.records_without_file, report.files_without_record, report.files_with_bad_blocks) == (
        1,
        1,
        2,
    )
    writer = store.writer(ids[0])
    assert writer is not None
    assert writer.missing(0, 3 * MIB) == [(MIB, 2 * MIB)]
    assert store.index.cached(ids[1]) is None
    assert store.index.cached(small) is None
    assert cached(store, ids[2]).trusted
    assert store.fsck(lambda *_: None).sound
    assert store.used_bytes > 0


def test_kill_is_no_power_loss(open_store: OpenStore) -> None:
    store = open_store()
    id = fill(store, b"f", 3 * MIB)
    crash(store)
    store = open_store()
    assert cached(store, id).trusted


def test_after_a_power_loss_nothing_unsynced_is_trusted(open_store: OpenStore) -> None:
    """Blocks that never reached the disk read as zeros; files synced before stay trusted."""
    store = open_store()
    synced = fill(store, b"synced", 3 * MIB)
    partial = named(store, b"partial", 4 * MIB)
    writer = store.create(partial)
    writer.write(0, b"x" * MIB)
    writer.write(2 * MIB, b"y" * MIB)
    store.sync()
    large, small, sound = (
        fill(store, b"large", 3 * MIB),
        fill(store, b"small", 500),
        fill(store, b"sound", 3 * MIB),
    )
    store.index.state.checkpoint()  # the index got there, the bytes did not
    crash(store)
    for id, offset, length in ((large, MIB, MIB), (small, 0, 500)):
        with open(store.volumes[0].data_path(id), "r+b") as file:
            file.seek(offset)
            file.write(bytes(length))
    with open(store.volumes[0].part_path(partial.id), "r+b") as file:
        file.seek(2 * MIB)
        file.write(bytes(MIB))

    store = open_store(boot_id="boot-2")
    assert cached(store, synced).trusted
    assert store.unverified_found == 4
    for id in (large, small, sound, partial.id):
        assert not cached(store, id).trusted
        assert store.writer(id) is None
    assert store.verifier.verify(sound)
    assert cached(store, sound).trusted
    assert not store.verifier.verify(large)
    again = store.writer(large)
    assert again is not None
    assert again.missing(0, 3 * MIB) == [(MIB, 2 * MIB)]
    again.write(MIB, b"z" * MIB)
    assert store.complete(again).trusted
    assert store.verifier.verify(large)
    assert not store.verifier.verify(small)
    assert store.index.cached(small) is None
    assert not store.verifier.verify(partial.id)
    again = store.writer(partial.id)
    assert again is not None
    assert again.missing(0, 4 * MIB) == [(MIB, 4 * MIB)]


def test_a_power_loss_before_any_sync_leaves_no_stray_file(open_store: OpenStore) -> None:
    store = open_store()
    id = fill(store, b"f", 3 * MIB)
    crash(store)
    store = open_store(boot_id="boot-2")
    assert store.index.cached(id) is None
    assert list(store.volumes[0].ids()) == []
    assert named(store, b"g", 1).id > id


@pytest.mark.root
def test_what_came_with_the_bytes_is_noted_with_them(open_store: OpenStore) -> None:
    """They are noted with the first bytes of a large file. They outlive a kill, and end when the origin names another
    time."""
    metadata = ObjectMetadata({"a": "b"}, {"Content-Type": "text/x"}, None)
    store = open_store()
    small, bare, large = named(store, b"small", 5), named(store, b"bare", 5), named(store, b"large", 3 * MIB)
    store.complete_small_many([(small, b"12345"), (bare, b"12345")], extras={small.id: metadata})
    writer = store.create(large)
    writer.write(MIB, bytes(MIB), metadata)
    volumes = store.volumes
    if noted(volumes, cached(store, small.id)) is None:
        pytest.skip("needs a file system with attributes")
    assert noted(volumes, cached(store, large.id)) == metadata
    assert noted(volumes, cached(store, bare.id)) is None
    writer.write(0, bytes(MIB), metadata)
    writer.write(2 * MIB, bytes(MIB), ObjectMetadata())
    store.complete(writer)
    crash(store)
    store = open_store()
    for entry in (small, large):
        assert noted(store.volumes, cached(store, entry.id)) == metadata
    redated = Version(5, small.version.mtime_ns + 10**9, small.version.token)
    assert store.index.names.put_file(small.parent, b"small", redated) == (small.id, False)
    assert noted(store.volumes, cached(store, small.id)) is None
    assert content(store, small.id) == b"12345"


def test_a_usual_content_type_is_a_number_in_the_record(open_store: OpenStore) -> None:
    """The token must leave room for it, and there is nothing beside it."""
    jpeg, none = ObjectMetadata({}, {"Content-Type": "image/jpeg"}, None), ObjectMetadata({}, {}, None)
    digest = '"0123456789abcdef0123456789abcdef"'
    given = {
        "jpeg": (digest, jpeg),
        "parts": (digest[:-1] + '-12"', jpeg),
        "none": (digest, none),
        "raw": ("t", jpeg),
        "more": (digest, ObjectMetadata({"a": "b"}, jpeg.headers, None)),
        "tags": (digest, ObjectMetadata({}, jpeg.headers, {})),
        "rare": (digest, ObjectMetadata({}, {"Content-Type": "x/y"}, None)),
        "language": (digest, ObjectMetadata({}, {"Content-Language": "en"}, None)),
    }
    store = open_store()
    entries = {name: named(store, name.encode(), 3, token) for name, (token, _) in given.items()}
    extras = {entries[name].id: metadata for name, (_, metadata) in given.items()}
    store.complete_small_many([(entry, b"123") for entry in entries.values()], extras=extras)
    crash(store)
    store = open_store()
    records = {name: cached(store, entry.id) for name, entry in entries.items()}
    assert {name for name, record in records.items() if record.content_type_code is not None} == {
        "jpeg",
        "parts",
        "none",
    }
    for name, (token, metadata) in given.items():
        assert records[name].token == token
        if records[name].content_type_code is not None or os.geteuid() == 0:
            assert noted(store.volumes, records[name]) == metadata, name
    assert store.index.names.put_file(ROOT_ID, b"jpeg", Version(3, 10**9, digest)) == (
        entries["jpeg"].id,
        False,
    )
    assert noted(store.volumes, cached(store, entries["jpeg"].id)) is None


@pytest.fixture
def memory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="headrace-test-", dir="/dev/shm") as folder:
        yield folder


def test_what_lies_beside_the_disks_is_forgotten_by_the_next_node(tmp_path: Path, memory: str) -> None:
    """Also where that one has no such place."""
    body = os.urandom(3 * BLOCK_SIZE_BYTES)

    def store(spill: tuple[str, str] | None) -> Store:
        volume = Volume(0, str(tmp_path / "v"), 64 << 20)
        return Store.open(str(tmp_path / "v/index"), [volume], boot_id="boot", spill=spill)

    def begin() -> Store:
        cache = store((memory, "node"))
        assert cache.spill is not None
        large = named(cache, b"large", len(body))
        writer = cache.create(large, spilled=True)
        writer.write(0, body[:BLOCK_SIZE_BYTES])
        small = named(cache, b"small", 5)
        cache.complete_small_many([(small, b"hello")], spilled=True)
        assert not Path(data_path(str(tmp_path / "v"), small.id)).exists()
        assert Path(cache.spill.data_path(small.id)).read_bytes() == b"hello"
        assert cache.statistics()["spilled_bytes"] > BLOCK_SIZE_BYTES
        assert cache.used_bytes == 0
        assert not cache.pin(small.id, True)
        return cache

    begin().close()
    assert os.listdir(memory) == []
    crash(begin())
    after = store(None)
    assert [*after.index.cached_files()] == []
    after.close()


def test_a_file_that_is_larger_than_what_is_beside_the_disks_is_begun_anew(
    tmp_path: Path, memory: str
) -> None:
    volume = Volume(0, str(tmp_path / "v"), 64 << 20)
    cache = Store.open(str(tmp_path / "v/index"), [volume], spill=(memory, "node"))
    try:
        assert cache.spill is not None
        gone: list[int] = []
        cache.space.evicted.add(gone.extend)
        count = cache.spill.capacity_bytes // BLOCK_SIZE_BYTES + 1
        entry = named(cache, b"large", count * BLOCK_SIZE_BYTES)
        writer = cache.create(entry, spilled=True)
        with pytest.raises(EvictedError):
            for block in range(count):
                writer.write(block * BLOCK_SIZE_BYTES, bytes(BLOCK_SIZE_BYTES))
        assert writer.blocks_present == count - 1
        assert cache.index.cached(entry.id) is None
        cache.space.evict_if_needed()
        assert gone == [entry.id]
        again = cache.create(entry, spilled=True)
        again.write(0, bytes(BLOCK_SIZE_BYTES))
        cache.space.evict_if_needed()  # it is being read
        assert cache.statistics()["spilled_bytes"] == BLOCK_SIZE_BYTES
        cache.complete_small_many([(named(cache, b"small", 5), b"hello")], spilled=True)
        cache.space.evict_if_needed()  # a disk takes it, next time
        assert cache.statistics()["spilled_bytes"] == BLOCK_SIZE_BYTES
    finally:
        cache.close()
