"""Files of seals outlive the index: it is lost, or a power loss takes it back."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.base.model import Entry
from headrace.store.reader import CacheReader
from headrace.store.sealed_files import SealedFile
from headrace.store.store import Store
from tests.unit.store.conftest import OpenStore, crash, named

SMALL, LARGE = 5000, (2 << 20) + 17


def fill(store: Store, name: bytes, size_bytes: int) -> Entry:
    """Cache a complete file of random bytes."""
    entry = named(store, name, size_bytes)
    body = os.urandom(size_bytes)
    if size_bytes == SMALL:
        store.complete_small(entry, body)
        return entry
    writer = store.create(entry)
    for start in range(0, size_bytes, 1 << 20):
        writer.write(start, body[start : start + (1 << 20)])
    store.complete(writer)
    return entry


def sealed(store: Store, entry: Entry) -> SealedFile:
    cached = store.index.cached(entry.id)
    assert cached is not None
    return SealedFile(entry.id, entry.version, cached.checksum)


def lose_index(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "volume/index")


@pytest.mark.parametrize("size_bytes", [SMALL, LARGE])
def test_a_sealed_file_is_found_again(open_store: OpenStore, tmp_path: Path, size_bytes: int) -> None:
    store = open_store()
    kept, dropped = fill(store, b"kept", size_bytes), fill(store, b"dropped", size_bytes)
    files = [sealed(store, kept)]
    path = store.disks[0].data_path(kept.id)
    body = Path(path).read_bytes()
    crash(store)
    lose_index(tmp_path)
    again = open_store(sealed=files)
    assert Path(path).read_bytes() == body
    assert not os.path.exists(again.disks[0].data_path(dropped.id))
    cached = again.index.cached(kept.id)
    assert cached is not None and cached.trusted and cached.superseded
    assert again.verifier.verify(kept.id)
    reader = CacheReader.open(again.disks[0].folder, cached, sums=True)
    reader.close()
    assert again.used_bytes >= size_bytes


def test_it_is_kept_from_the_first_moment_and_evicted_after_the_seal_is_gone(
    open_store: OpenStore, tmp_path: Path
) -> None:
    store = open_store()
    files = [sealed(store, fill(store, b"%d" % number, LARGE)) for number in range(8)]
    crash(store)
    lose_index(tmp_path)
    again = open_store(sealed=files)
    for number in range(40):
        fill(again, b"other%d" % number, LARGE)
        again.space.evict_if_needed()
    assert all(again.index.cached(file.id) is not None for file in files)
    kept, files[:] = files[:], []
    again.sealed.renew()
    for number in range(40, 60):
        fill(again, b"other%d" % number, LARGE)
        again.space.evict_if_needed()
    assert [file.id for file in kept if again.index.cached(file.id) is not None] == []


def test_a_file_of_another_size_is_no_sealed_one(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    entry = fill(store, b"kept", SMALL)
    files = [sealed(store, entry)]
    path = store.disks[0].data_path(entry.id)
    crash(store)
    os.truncate(path, SMALL - 1)
    lose_index(tmp_path)
    again = open_store(sealed=files)
    assert again.index.cached(entry.id) is None
    assert not os.path.exists(path)


def test_a_power_loss_that_takes_the_record_leaves_the_file(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.sync()
    entry = fill(store, b"kept", SMALL)
    files = [sealed(store, entry)]
    crash(store)
    again = open_store(boot_id="boot-2", sealed=files)
    cached = again.index.cached(entry.id)
    assert cached is not None and os.path.exists(again.disks[0].data_path(entry.id))


def test_a_new_index_assigns_no_id_of_a_sealed_file(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that stands at 1970 at each start gives each new index the same first id."""
    monkeypatch.setattr("headrace.store.index_state.time.time_ns", lambda: 0)
    store = open_store()
    entries = [fill(store, b"%d" % number, SMALL) for number in range(3)]
    files = [sealed(store, entry) for entry in entries]
    crash(store)
    os.unlink(store.disks[0].data_path(entries[2].id))
    lose_index(tmp_path)
    again = open_store(sealed=files)
    later = [named(again, b"later%d" % number, SMALL) for number in range(3)]
    assert not {entry.id for entry in entries} & {entry.id for entry in later}
    assert all(again.index.cached(entry.id) is None for entry in later)


@pytest.mark.expected_warnings("the seals can't be read")
def test_a_cache_opens_although_the_disk_of_its_seals_fails(open_store: OpenStore) -> None:
    store = open_store()
    entry = fill(store, b"kept", LARGE)
    file = sealed(store, entry)
    crash(store)
    seals = FailingSeals([file])
    again = open_store(sealed=seals)
    assert again.index.cached(entry.id) is not None
    assert entry.id not in again.sealed
    seals.fails = False
    again.sealed.renew()
    assert entry.id in again.sealed
    seals.fails = True
    with pytest.raises(OSError, match="Input/output"):
        again.sealed.renew()
    assert entry.id in again.sealed, "a disk that fails later lets no file be evicted"


class FailingSeals(list[SealedFile]):
    fails = True

    def __iter__(self) -> Iterator[SealedFile]:
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().__iter__()
