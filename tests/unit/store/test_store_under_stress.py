"""A store stands threads, full disks, power losses and people."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from headrace.base.errors import EvictedError, NoSpaceError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, ROOT_ID, FileId, Version
from headrace.store import victims
from headrace.store.disk_reader import DiskReader
from headrace.store.store import Store
from headrace.store.transactions import Transactions
from headrace.store.volume import Volume
from tests import fork_server
from tests.unit.store.conftest import cached, fill

from .conftest import OpenDisks, OpenStore, crash, named

MIB = BLOCK_SIZE_BYTES


def in_thread(call: Callable[[], object]) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]


def test_one_bad_small_file_takes_no_space_with_it(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    entries = [named(store, b"%d" % n, 100_000) for n in range(3)]
    real, calls = os.rename, []

    def rename(source: str, target: str) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(NoSpaceError):
        store.complete_small_many([(entry, bytes(100_000)) for entry in entries])
    assert store.used_bytes == 0
    assert list(store.volumes[0].ids()) == []
    assert store.index.cached(entries[0].id) is None
    store.complete_small_many([(entry, bytes(100_000)) for entry in entries])
    assert store.free(entries[0].id) + store.free(entries[1].id) + store.free(entries[2].id) > 0
    assert store.used_bytes == 0


def test_a_writer_of_an_evicted_file_never_completes_the_one_made_anew(open_store: OpenStore) -> None:
    store = open_store()
    entry = named(store, b"f", 2 * MIB)
    old = store.create(entry)
    old.write(0, bytes(2 * MIB))
    assert old.complete
    store.free(entry.id)
    fresh = store.create(entry)
    fresh.write(0, b"x" * MIB)
    with pytest.raises(EvictedError):
        store.complete(old)
    assert not cached(store, entry.id).complete
    assert fresh.missing(0, 2 * MIB) == [(MIB, 2 * MIB)]


def test_a_closed_writer_says_that_its_file_is_gone(open_store: OpenStore) -> None:
    store = open_store()
    entry = named(store, b"f", 3 * MIB)
    writer = store.create(entry)
    store.free(entry.id)
    with pytest.raises(EvictedError):
        writer.write(0, bytes(MIB))
    with pytest.raises(EvictedError):
        writer.present(0, 1)


def test_a_file_fetched_again_after_the_last_sync_is_not_trusted_after_a_power_loss(
    open_store: OpenStore,
) -> None:
    """The index goes back to the old record, which was synced; the bytes are those of the new file."""
    store = open_store()
    entries = [named(store, b"large", 2 * MIB), named(store, b"small", 1000), named(store, b"kept", 1000)]
    large = fill(store, b"large", 2 * MIB)
    for entry in entries[1:]:
        store.complete_small(entry, b"s" * 1000)
    store.sync()
    for entry in entries[:2]:
        store.free(entry.id)
    assert fill(store, b"large", 2 * MIB) == large
    store.complete_small(entries[1], b"s" * 1000)
    crash(store)
    for entry in entries[:2]:  # the names reached the disk, the bytes did not
        with open(store.volumes[0].data_path(entry.id), "r+b") as file:
            file.write(bytes(1000))
    store = open_store(boot_id="boot-2")
    assert not cached(store, entries[0].id).trusted
    assert not cached(store, entries[1].id).trusted
    assert cached(store, entries[2].id).trusted
    assert not store.verifier.verify(entries[1].id)


def test_after_a_failed_sync_nothing_new_is_trusted(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    before = fill(store, b"before", 10)
    store.sync()
    after = fill(store, b"after", 10)

    def fail() -> None:
        raise StoreError("cache volume", why="Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(store.volumes[0], "sync", fail)
        with pytest.raises(StoreError):
            store.sync()
    store.sync()  # the kernel says that all is well: it told of the lost page already
    crash(store)
    store = open_store(boot_id="boot-2")
    assert cached(store, before).trusted
    assert not cached(store, after).trusted


@contextmanager
def failing_sync(volume: Volume) -> Iterator[None]:
    def fail() -> None:
        raise StoreError("cache volume", why="Input/output error")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(volume, "sync", fail)
        yield


def test_after_a_failed_sync_the_page_cache_proves_nothing(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has the pages that it could not write in memory as if it had, and drops them as it likes."""
    store = open_store()
    before = fill(store, b"before", 2 * MIB)
    store.sync()
    lost, kept = fill(store, b"lost", 2 * MIB), fill(store, b"kept", 2 * MIB)
    evicted: list[FileId] = []
    store.space.evicted.add(evicted.extend)
    with failing_sync(store.volumes[0]), pytest.raises(StoreError):
        store.sync()
    store.space.report_evicted()
    assert evicted == [lost, kept]
    assert cached(store, before).trusted
    assert not cached(store, lost).trusted
    inode = os.stat(store.volumes[0].data_path(lost)).st_ino
    plain = DiskReader.read

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read(self: DiskReader, start: int, length: int) -> memoryview:
        is_lost = os.fstat(self._fd).st_ino == inode
        return memoryview(bytes(length)) if is_lost else plain(self, start, length)

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="can't be read"):
        patch.setattr(DiskReader, "__init__", refuse)
        store.verifier.verify(lost)
    monkeypatch.setattr(DiskReader, "read", read)
    assert not store.verifier.verify(lost)
    assert store.verifier.verify(kept)
    assert cached(store, kept).trusted


def test_after_a_failed_sync_a_restart_trusts_what_was_synced(open_store: OpenStore) -> None:
    store = open_store()
    before = fill(store, b"before", 10)
    store.sync()
    with failing_sync(store.volumes[0]), pytest.raises(StoreError):
        store.sync()
    after = fill(store, b"after", 10)
    crash(store)
    store = open_store()
    assert cached(store, before).trusted
    assert not cached(store, after).trusted
    assert store.verifier.verify(after)
    store.close()
    store = open_store()
    assert cached(store, after).trusted
    crash(store)
    store = open_store(boot_id="boot-2")  # which has read all from the disk
    fill(store, b"later", 10)
    crash(store)
    assert cached(open_store(boot_id="boot-2"), after).trusted


def test_a_disk_that_fails_keeps_no_other_from_its_sync(open_disks: OpenDisks) -> None:
    store = open_disks(2)
    files = [store.complete_small(named(store, b"%d" % n, 100), b"x" * 100) for n in range(2)]
    assert [file.volume for file in files] == [0, 1]
    synced: list[int] = []
    with failing_sync(store.disks[0]), pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.disks[1], "sync", lambda: synced.append(1))
        with pytest.raises(StoreError):
            store.sync()
    assert synced == [1]
    assert [cached(store, file.id).trusted for file in files] == [False, True]


def test_eviction_goes_in_steps(open_store: OpenStore) -> None:
    store = open_store(64 * MIB)
    for n in range(62):
        fill(store, b"%d" % n, MIB)
    steps = 0
    store.volumes[0].capacity_bytes = 40 * MIB
    while store.space.evict_if_needed():
        steps += 1
    assert steps == 4  # 62 → 36 MiB, 8 at a time
    assert store.used_bytes <= 36 * MIB
    fill(store, b"one more", MIB)
    assert not store.space.evict_if_needed()  # between the watermarks


def test_a_step_has_few_files_though_they_are_tiny(open_store: OpenStore) -> None:
    """The first step shows how many files its bytes are."""
    store = open_store(64 * MIB)
    store.complete_small_many([(named(store, b"%d" % n, 100), b"x" * 100) for n in range(4000)])
    store.volumes[0].capacity_bytes = 2 * MIB
    steps = []
    while evicted := store.space.evict_if_needed():
        steps.append(len(evicted))
    assert len(steps) > 2
    assert max(steps[1:]) <= 520


def replace_all(store: Store, names: list[bytes]) -> None:
    with store.index.batch():
        for name in names:
            store.index.names.put_file(ROOT_ID, name, Version(100, 6, "new"))


def test_a_replaced_data_set_goes_in_steps(open_store: OpenStore) -> None:
    """All at once would hold the lock, and the node's loop, for a minute and more."""
    store = open_store(64 * MIB)
    names = [b"%d" % n for n in range(4000)]
    with store.index.batch():
        entries = [named(store, name, 100) for name in names]
    store.complete_small_many([(entry, b"x" * 100) for entry in entries])
    kept = fill(store, b"kept", MIB)
    replace_all(store, names)
    store.volumes[0].capacity_bytes = 4 * MIB
    steps = []
    while evicted := store.space.evict_if_needed():
        steps.append(len(evicted))
        assert kept not in evicted
    assert len(steps) > 2
    assert steps[0] <= 2048
    assert max(steps[1:]) <= 520


def test_replaced_files_of_one_disk_are_found_among_those_of_another(
    open_disks: OpenDisks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search looks at a few, and the next one goes on from there."""
    store = open_disks(2)
    names = [b"%d" % n for n in range(40)]
    files = [store.complete_small(named(store, name, 100), b"x" * 100) for name in names]
    replace_all(store, names)
    monkeypatch.setattr(victims, "SUPERSEDED_SEARCHED", 4)
    evicted = [id for _ in range(10) for id in store.space._victims.superseded_on(store.disks[1], 1 << 30)]
    assert evicted == [file.id for file in files if file.volume == 1]
    assert [*store.index.superseded] == [file.id for file in files if file.volume == 0]
    assert len(evicted) == 20


def test_making_room_takes_no_more_than_it_must(open_store: OpenStore) -> None:
    store = open_store(64 * MIB)
    for n in range(64):
        fill(store, b"%d" % n, MIB - 4096)
    assert store.statistics()["files_evicted"] <= 2


def test_a_pinned_version_that_nobody_can_name_goes(open_store: OpenStore) -> None:
    store = open_store(20 * MIB)
    old = fill(store, b"f", 10 * MIB)
    store.pin(old, True)
    named(store, b"f", 10 * MIB, token="new")
    fill(store, b"g", 12 * MIB)
    assert store.index.cached(old) is None


def test_a_change_of_a_name_that_failed_evicts_nothing(open_store: OpenStore) -> None:
    """The pinned file still has its name."""
    store = open_store(20 * MIB)
    kept = fill(store, b"f", 10 * MIB)
    store.pin(kept, True)
    with pytest.raises(NoSpaceError), store.index.batch():
        named(store, b"f", 10 * MIB, token="new")
        raise NoSpaceError("index", why="the filesystem is full")
    with pytest.raises(NoSpaceError):
        fill(store, b"g", 12 * MIB)
    assert cached(store, kept).trusted
    named(store, b"f", 10 * MIB, token="new")
    assert [*store.index.superseded] == [kept]
    fill(store, b"h", 12 * MIB)
    assert store.index.cached(kept) is None


@pytest.mark.parametrize("size_bytes", [100, 3 * MIB])
@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_whose_name_changed_while_it_was_fetched_goes_first(
    open_store: OpenStore, change: str, size_bytes: int
) -> None:
    """A pin of it would keep it for ever: it has no name by which it could be taken back."""
    store = open_store(20 * MIB)
    fill(store, b"good", 10 * MIB)
    entry = named(store, b"f", size_bytes)
    if change == "replaced":
        named(store, b"f", size_bytes, token="new")
    else:
        store.index.names.remove(ROOT_ID, b"f")
    if size_bytes <= MIB:
        store.complete_small(entry, bytes(size_bytes))
    else:
        writer = store.create(entry)
        writer.write(0, bytes(size_bytes))
        store.complete(writer)
    store.pin(entry.id, True)
    assert cached(store, entry.id).superseded
    store.volumes[0].capacity_bytes = 10 * MIB + 500_000 + store.index.size_bytes
    assert store.space.evict_if_needed()[0] == entry.id
    assert store.index.cached(entry.id) is None
    assert store.statistics()["files_pinned"] == 0


def test_another_thread_takes_the_space_of_files_being_filled_but_not_of_its_own(
    open_store: OpenStore,
) -> None:
    store = open_store(20 * MIB)
    evicted: list[FileId] = []
    store.space.evicted.add(evicted.extend)
    first, second = (store.create(named(store, name, 12 * MIB)) for name in (b"a", b"b"))
    for n in range(10):
        in_thread(partial(first.write, n * MIB, bytes(MIB)))
    for n in range(12):
        in_thread(partial(second.write, n * MIB, bytes(MIB)))
    assert first.closed
    assert second.complete
    assert store.used_bytes <= 20 * MIB
    assert evicted == []  # only the thread that opened the store tells
    store.space.evict_if_needed()
    assert evicted == [first.id]
    assert store.complete(second).trusted


def test_threads_never_meet_in_one_transaction(open_store: OpenStore) -> None:
    """A thread that wrote before must not take the transaction that another one begins for its own."""
    index = open_store().index
    met: list[bool] = []

    class Watched(Transactions):
        """Lets the last writer look at the very moment when the next transaction is there."""

        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_txn" and value is not None and threading.current_thread() is threading.main_thread():
                met.append(worker.submit(lambda: self._owner == threading.get_ident()).result())

    with ThreadPoolExecutor(1) as worker:
        worker.submit(index.names.put_file, ROOT_ID, b"a", Version(1, 1, "t")).result()
        index._transactions.__class__ = Watched
        index.names.put_file(ROOT_ID, b"b", Version(1, 1, "t"))
    assert met == [False]


def test_fsck_works_while_the_store_is_used(open_store: OpenStore) -> None:
    store = open_store()
    for n in range(8):
        fill(store, b"f%d" % n, 2 * MIB)
    begun = store.create(named(store, b"p", 4 * MIB))
    begun.write(0, b"p" * MIB)
    states: list[tuple[int, int, int, int]] = []

    def progress(*state: int) -> None:
        def use() -> None:  # another thread gets the lock, and everything changes under the check
            if len(states) == 2:
                store.free(first_ids[-1])
                fill(store, b"new", 2 * MIB)
                begun.write(MIB, b"p" * MIB)
                store.complete_small(named(store, b"small", 10), b"0123456789")

        in_thread(use)
        states.append((state[0], state[1], state[2], state[3]))

    first_ids = [file.id for file in store.index.cached_files()][:8]
    report = store.fsck(progress)
    assert report.sound, report.faults
    assert [state[0] for state in states] == list(range(1, len(states) + 1))
    assert states[0][1] == 9
    assert states[-1][2] > 15 * MIB
    assert begun.missing(0, 4 * MIB) == [(2 * MIB, 4 * MIB)]


def test_a_bad_block_of_an_open_file_is_told(open_store: OpenStore) -> None:
    store = open_store()
    evicted: list[FileId] = []
    store.space.evicted.add(evicted.extend)
    id = fill(store, b"f", 2 * MIB)
    with open(store.volumes[0].data_path(id), "r+b") as file:
        file.write(b"rotten")
    report = store.fsck(lambda *_: None)
    assert [fault[0] for fault in report.faults] == [id]
    assert evicted == [id]


def test_a_deleted_cache_file_is_noticed(open_store: OpenStore) -> None:
    store = open_store()
    id = fill(store, b"f", 2 * MIB)
    assert store.holds(cached(store, id))
    Path(store.volumes[0].data_path(id)).unlink()
    assert not store.holds(cached(store, id))


def test_slots_of_killed_readers_are_given_back(open_store: OpenStore) -> None:
    store: Store = open_store()
    code = (
        "import sys, os; from headrace.store.index import Index;"
        "index = Index.open(sys.argv[1], writable=False); index.cached(1);"
        "txn = index._env.begin(); os.kill(os.getpid(), 9)"
    )
    for _ in range(3):
        fork_server.run([sys.executable, "-c", code, store.index.folder], timeout=60)
    assert store.index._env.info()["num_readers"] >= 2
    store.sync()
    assert all(line.split()[0] == str(os.getpid()) for line in store.index._env.readers().splitlines()[1:])


def test_a_huge_file_goes_without_holding_anybody_up(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.volume.UNLINK_AT_ONCE_BYTES", MIB)
    store = open_store()
    ids = [fill(store, b"%d" % number, 4 * MIB) for number in range(3)]
    for id in ids:
        assert store.free(id) >= 4 * MIB
        assert not os.path.exists(store.volumes[0].data_path(id))
    for thread in threading.enumerate():
        if thread.name == "unlink":
            thread.join(60)
    assert not [thread for thread in threading.enumerate() if thread.name == "unlink"]
    held = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in held if path.endswith("(deleted)") and str(store.volumes[0].folder) in path]


def test_a_repair_survives_a_power_loss(open_store: OpenStore) -> None:
    store = open_store()
    id = fill(store, b"bad", 2 * MIB)
    store.sync()
    with open(store.volumes[0].data_path(id), "r+b") as file:
        file.write(b"rotten")
    assert store.fsck(lambda *_: None).files_with_bad_blocks == 1
    crash(store)
    store = open_store(boot_id="boot-2")
    record = cached(store, id)
    assert not record.trusted


def test_a_part_of_a_large_file_has_its_place_in_the_policy(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.store.usage.SPREAD_BYTES", 4 * MIB)
    store = open_store(64 * MIB, policy="lru")
    older = [fill(store, b"older%d" % n, MIB) for n in range(20)]
    entry, small = named(store, b"spread", 40 * MIB), named(store, b"part", 4 * MIB)
    for target in (entry, small):
        writer = store.create(target)
        for block in range(3):
            writer.write(block * MIB, b"p" * MIB)
        writer.close()
    newer = [fill(store, b"newer%d" % n, MIB) for n in range(30)]
    store.volumes[0].capacity_bytes = 50 * MIB
    while store.space.evict_if_needed():
        pass
    assert store.index.cached(small.id) is None  # an ordinary part is the first to go
    assert store.index.cached(entry.id) is not None  # this one only after what was used before it
    assert sum(store.index.cached(id) is None for id in older) >= 8
    store.volumes[0].capacity_bytes = 20 * MIB
    while store.space.evict_if_needed():
        pass
    assert store.index.cached(entry.id) is None
    assert sum(store.index.cached(id) is not None for id in newer) >= 15
    used = store.used_bytes
    crash(store)
    store = open_store(20 * MIB)
    assert store.used_bytes == used


def test_borrowed_files_have_a_share_and_go_first(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store(64 * MIB, policy="lru")
    store.space.borrowed.share = 0.25
    owned = [fill(store, b"owned%d" % n, MIB) for n in range(20)]
    entries = [named(store, b"borrowed%d" % n, 1000) for n in range(5)] + [
        named(store, b"large%d" % n, 2 * MIB) for n in range(10)
    ]
    store.complete_small_many(
        [(entry, b"b" * 1000) for entry in entries[:5]], borrowed={entry.id for entry in entries}
    )
    for entry in entries[5:]:
        writer = store.create(entry, borrowed=True)
        writer.write(0, b"l" * (2 * MIB))
        store.complete(writer)
    assert store.statistics()["borrowed_bytes"] > 20 * MIB
    while store.space.evict_if_needed():
        pass
    assert store.statistics()["borrowed_bytes"] <= 16 * MIB
    assert all(store.index.cached(id) is not None for id in owned)
    kept = [entry.id for entry in entries if store.index.cached(entry.id) is not None]
    assert kept
    store.set_borrowed(kept[-1], borrowed=False)
    store.set_borrowed(owned[0], borrowed=True)
    crash(store)
    store = open_store(25 * MIB, policy="lru")
    assert cached(store, owned[0]).borrowed
    while store.space.evict_if_needed():
        pass
    assert store.index.cached(owned[0]) is None
    assert store.index.cached(kept[-1]) is not None
