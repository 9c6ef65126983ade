"""The scrub: it goes on where it was, leaves the page cache as it is, and is right where files change under it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId
from headrace.checkpoint.posix_storage import _is_cached
from headrace.dataplane.scrub import Scrub, ScrubPace, ScrubProgress, _StoppedError
from headrace.store.checksum import block_checksum
from headrace.store.disk_reader import DiskReader, verify_on_disk
from headrace.store.store import Store
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from tests.unit.store.conftest import OpenStore, content, fill, open_store

pytestmark = pytest.mark.timeout(60)

__all__ = ["open_store"]

MIB = BLOCK_SIZE_BYTES
FAST = 1 << 34


class Host:
    """A store and its scrub. load: makes a file whole again, of the bytes that it had."""

    def __init__(self, store: Store, bytes_s: float = FAST, pass_s_min: float = 3600.0) -> None:
        self.store = store
        self.damaged: list[FileId] = []
        self.loaded: list[FileId] = []
        self.truth: dict[FileId, bytes] = {}
        self.scrub = Scrub(store, bytes_s, load=self.load, on_damaged=self.tell, pass_s_min=pass_s_min)

    async def tell(self, ids: list[FileId]) -> None:
        assert not set(ids) & set(self.loaded), "sessions forget it before it is fetched again"
        self.damaged += ids

    async def load(self, entry: Entry) -> None:
        self.loaded.append(entry.id)
        data = self.truth[entry.id]
        if len(data) <= MIB:
            self.store.complete_small(entry, data)
            return
        writer = self.store.writer(entry.id) or self.store.create(entry)
        for start, end in writer.missing(0, len(data)):
            writer.write(start, data[start:end])
        self.store.complete(writer)

    async def run_until(self, condition: Callable[[], bool]) -> None:
        self.scrub.start()
        await until(condition)
        await self.scrub.stop()

    def progress(self) -> ScrubProgress:
        return self.scrub._progress


def filled(store: Store, sizes: list[int]) -> list[FileId]:
    return [fill(store, b"f%d" % number, size) for number, size in enumerate(sizes)]


def rot(store: Store, id: FileId, offset: int) -> None:
    with open(store.volumes[0].data_path(id), "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


@pytest.mark.expected_warnings("headrace.dataplane.scrub")
async def test_what_rotted_is_dropped_told_and_fetched_again(open_store: OpenStore) -> None:
    store = open_store()
    ids = filled(store, [3 * MIB + 5, 100, 2 * MIB, MIB, 0])
    host = Host(store)
    host.truth = {id: content(store, id) for id in ids}
    rot(store, ids[0], 2 * MIB + 9)
    rot(store, ids[1], 50)
    os.unlink(store.volumes[0].data_path(ids[2]))
    store.pin(ids[1], True)
    await host.run_until(lambda: host.progress().passes >= 1)
    assert host.damaged == host.loaded == ids[:3]
    assert {id: content(store, id) for id in ids} == host.truth
    assert (host.progress().files_damaged, host.progress().files_repaired) == (3, 3)
    assert host.progress().files == len(ids)
    assert store.statistics()["files_pinned"] == 1
    assert store.fsck(lambda *_: None).sound


@pytest.mark.expected_warnings("headrace.dataplane.scrub")
async def test_it_goes_on_where_it_was(open_store: OpenStore) -> None:
    store = open_store()
    ids = filled(store, [100] * 6)
    first = Host(store, bytes_s=(128 << 10) * 5)  # 5 files a second
    await first.run_until(lambda: first.progress().files >= 2)
    assert 0 < first.progress().after < ids[-1]
    after = first.progress().after
    store.close()
    store = open_store()
    second = Host(store)
    assert second.progress().after == after
    second.truth = {id: content(store, id) for id in ids}
    rot(store, ids[0], 5)  # the pass is beyond it
    rot(store, ids[-1], 5)
    await second.run_until(lambda: second.progress().passes >= 1)
    assert second.damaged == [ids[-1]]
    assert second.progress().files == len(ids)


async def test_a_pass_waits_for_its_hour_over_restarts_and_reboots(open_store: OpenStore) -> None:
    store = open_store()
    filled(store, [100])
    host = Host(store)
    await host.run_until(lambda: host.progress().passes >= 1)
    again = Host(store)
    assert again.progress() == host.progress()
    again.scrub.start()
    await pass_time(60)
    await again.scrub.stop()
    assert again.progress().passes == 1
    soon = Host(store, pass_s_min=0.0)
    await soon.run_until(lambda: soon.progress().passes >= 3)


@pytest.mark.parametrize("saved", [b"", b"\xff nonsense", b"\x80"])
async def test_what_was_kept_may_be_anything(open_store: OpenStore, saved: bytes) -> None:
    store = open_store()
    store.index.state.put(b"scrub", saved)
    filled(store, [100])
    host = Host(store)
    await host.run_until(lambda: host.progress().passes >= 1)


async def test_a_file_that_goes_meanwhile_is_not_damaged(open_store: OpenStore) -> None:
    store = open_store()
    ids = filled(store, [2 * MIB] * 8)
    host = Host(store, bytes_s=200 * MIB)
    host.scrub.start()
    for id in ids:
        await pass_time(0.01)
        store.free(id)
    await until(lambda: host.progress().passes)
    await host.scrub.stop()
    assert host.damaged == []


def is_resident(path: Path) -> bool:
    with path.open("rb") as file:
        return _is_cached(file.fileno(), 0, MIB)


@pytest.mark.parametrize("is_direct", [True, False])
def test_the_page_cache_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr(os, "O_DIRECT", 0x40000000)  # which open refuses
        monkeypatch.setattr(os, "open", refusing_direct(os.open))
    # the kernel may take pages of its own accord at any moment (DAMON, memory that is short), and seldom does
    assert any(page_cache_stays(tmp_path / str(attempt)) for attempt in range(4))


def page_cache_stays(folder: Path) -> bool:
    """Verify a file that is in memory and one that is not. Return whether that changed nothing."""
    folder.mkdir()
    paths = [folder / "cold", folder / "warm"]
    for path in paths:
        path.write_bytes(os.urandom(3 * MIB + 11))
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    data = paths[1].read_bytes()
    if [is_resident(path) for path in paths] != [False, True]:
        pytest.skip("the kernel does not say what is in memory, or lets nothing go")
    for path in paths:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            sums = {3: 0}
            assert list(verify_on_disk(file.fileno(), size, sums, before_read=lambda _: None)) == [3]
            if path == paths[1]:
                sums = {block: block_checksum(data[block * MIB : (block + 1) * MIB]) for block in range(4)}
                assert list(verify_on_disk(file.fileno(), size, sums, before_read=lambda _: None)) == []
            else:
                list(verify_on_disk(file.fileno(), size, {0: 1, 1: 1, 2: 1}, before_read=lambda _: None))
    return [is_resident(path) for path in paths] == [False, True]


def refusing_direct(plain: Callable[..., int]) -> Callable[..., int]:
    def open_(path: str, flags: int, *rest: int, **words: int) -> int:
        if flags & 0x40000000:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return plain(path, flags, *rest, **words)

    return open_


@pytest.mark.expected_warnings("headrace.dataplane.scrub")
@pytest.mark.parametrize("error", [errno.EIO, errno.ENODATA])  # the latter is a bad sector, by O_DIRECT
async def test_a_block_that_cannot_be_read_is_a_bad_one(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    store = open_store()
    (id,) = filled(store, [3 * MIB])
    host = Host(store)
    host.truth[id] = content(store, id)
    plain = DiskReader.read

    def read(self: DiskReader, start: int, length: int) -> memoryview:
        if start == MIB and not host.loaded:
            raise OSError(error, os.strerror(error))
        return plain(self, start, length)

    monkeypatch.setattr(DiskReader, "read", read)
    await host.run_until(lambda: host.progress().passes >= 1)
    assert host.loaded == [id] and content(store, id) == host.truth[id]


@pytest.mark.expected_warnings("headrace.dataplane.scrub")
async def test_a_file_that_cannot_be_opened_holds_nobody_up(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store()
    ids = filled(store, [100] * 3)
    host = Host(store)
    host.truth = {id: content(store, id) for id in ids}
    rot(store, ids[2], 5)
    plain, path = os.open, store.volumes[0].data_path(ids[1])

    def refuse(target: str, *rest: int, **words: int) -> int:
        if target == path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(target, *rest, **words)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        await host.run_until(lambda: host.progress().passes >= 1)
    assert host.damaged == [ids[2]]
    assert content(store, ids[1]) == host.truth[ids[1]]
    assert "can't be compared" in caplog.text
    caplog.clear()


def test_a_node_that_ends_waits_for_no_pace() -> None:
    pace = ScrubPace(1.0)
    pace.stop()
    with pytest.raises(_StoppedError):
        pace.spend(1000)
