"""The wall clock jumps by a day, in either direction, and nothing is lost by it (finding 20 of the audit).

Jumps are those of Python's clock in this process; a file's times that the jump left behind are set so.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from headrace.base import boot_clock
from headrace.base.boot_clock import Moment
from headrace.base.model import ROOT_ID, FileId, Version
from headrace.checkpoint import layout
from headrace.checkpoint.posix_storage import PosixStorage
from headrace.checkpoint.prune import prune
from headrace.checkpoint.retention import Retention
from headrace.client.local import LocalCache
from headrace.namespace.mounts import Mount, MountTable
from headrace.namespace.namespace import Namespace
from headrace.origin.memory import MemoryOrigin
from headrace.overlay import workdir
from headrace.overlay.durable_writes import DurableWrites
from headrace.s3.uploads import IDLE_S_MAX, LAST_PART_ATTRIBUTE, About, Uploads
from headrace.store.index import Index
from headrace.store.schema import FOREVER_NS
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.wire.messages import PROTOCOL, Welcome

pytestmark = pytest.mark.expected_warnings("the clock was set back")


DAY_S = 86_400
MIB = 1 << 20


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._time, self._time_ns = time.time, time.time_ns

    def jump(self, seconds: int) -> None:
        self._patch.setattr(time, "time", lambda: self._time() + seconds)
        self._patch.setattr(time, "time_ns", lambda: self._time_ns() + seconds * 10**9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index.open(str(tmp_path / "index"), writable=True)
    yield index
    index.close(clean=True)


@pytest.mark.parametrize("jump_s", [-DAY_S, DAY_S])
def test_a_listing_ends_when_its_time_is_over(index: Index, clock: Clock, jump_s: int) -> None:
    """A step back kept old listings fresh for as long; a step ahead asked for all of them again."""
    asyncio.run(_list_and_jump(index, clock, jump_s))


async def _list_and_jump(index: Index, clock: Clock, jump_s: int) -> None:
    origin = MemoryOrigin("o")
    namespace = Namespace.build(index, MountTable(), timeout_s=5, on_changed=lambda _: None)
    namespace.mount_points.attach(Mount("/data", origin.url, origin, 3600.0))
    data = (await namespace.resolver.resolve(b"/data")).id
    await namespace.listings.list(data)
    until_ns = index.fresh_until_ns(data)
    assert 0 < until_ns - boot_clock.now_ns() <= 3600 * 10**9
    clock.jump(jump_s)
    assert namespace.tree.is_fresh(data)
    assert 3500 < namespace.owner_names.page_of(data, b"f").good_for_s <= 3600

    namespace.mount_points.attach(Mount("/short", origin.url, origin, 0.05))
    short = (await namespace.resolver.resolve(b"/short")).id
    await namespace.listings.list(short)
    clock.jump(0)
    while namespace.tree.is_fresh(short):
        assert namespace.owner_names.page_of(short, b"f").good_for_s <= 0.05
        await asyncio.sleep(0.01)


def test_a_client_of_the_host_asks_the_same_clock(index: Index, clock: Clock) -> None:
    welcome = Welcome(protocol=PROTOCOL, index=index.folder, volumes=[], generation=index.state.generation)
    local = LocalCache(welcome, lambda _: None, index)
    index.names.set_fresh_until(ROOT_ID, boot_clock.now_ns() + 60 * 10**9)
    for jump_s in (-DAY_S, DAY_S):
        clock.jump(jump_s)
        assert 50 < local.fresh_for_s(ROOT_ID) <= 60


def test_a_listing_of_another_boot_is_known_and_stale(tmp_path: Path) -> None:
    """Its clock began anew, and may be far behind the one by which the listing was fresh."""
    folder = str(tmp_path / "index")
    for number in range(4):
        index = Index.open(folder, writable=True, boot_id=f"boot {number}")
        if number:
            assert index.fresh_until_ns(ROOT_ID) == 1
            assert index.whole_file(ROOT_ID, b"f", 0) is None
        index.names.set_fresh_until(ROOT_ID, FOREVER_NS if number % 2 else 10**18)
        assert index.fresh_until_ns(ROOT_ID) == (FOREVER_NS if number % 2 else 10**18)
        index.close(clean=True)
        index = Index.open(folder, writable=True, boot_id=f"boot {number}")
        assert index.fresh_until_ns(ROOT_ID) > 1
        index.close(clean=True)


@pytest.mark.parametrize("written_ns", [FOREVER_NS, 1_795_449_035_882_591_595, 1, (1 << 60) - 1])
def test_what_an_older_release_called_fresh_is_asked_again(index: Index, written_ns: int) -> None:
    """It wrote wall clock time. And what is written now is past to it, should it come back."""
    with index.batch():
        index._transactions.put(
            index._environment.directories, ROOT_ID.to_bytes(8, "big"), written_ns.to_bytes(8, "little")
        )
    assert index.fresh_until_ns(ROOT_ID) == 1
    index.names.set_fresh_until(ROOT_ID, FOREVER_NS)
    value = index._transactions.get(index._environment.directories, ROOT_ID.to_bytes(8, "big"))
    assert value is not None and 1 < int.from_bytes(value, "little") < 1_700_000_000 * 10**9


def uploads_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def hear(folder: Path, moment: Moment | None) -> None:
    if moment is None:
        os.removexattr(folder, LAST_PART_ATTRIBUTE)
    else:
        os.setxattr(folder, LAST_PART_ATTRIBUTE, msgspec.json.encode(moment))


def test_a_jump_ahead_removes_no_upload(tmp_path: Path, clock: Clock) -> None:
    """All uploads in parts went when the clock was a day ahead."""
    folder = tmp_path / "uploads"
    uploads = Uploads(os.fsencode(folder), DurableWrites(os.fsencode(tmp_path), lambda: True))
    ids = sorted(uploads.begin(About(b"b", b"k%d" % number, 0.0)) for number in range(3))
    with uploads.part(ids[0], 1) as fd:
        os.write(fd, b"bytes")
    long_ago = time.time() - DAY_S - 60
    for id in ids:
        os.utime(folder / id, (long_ago, long_ago))  # as the clock that has jumped sees them
    clock.jump(DAY_S + 60)
    assert uploads.remove_idle() == 0
    assert uploads_in(folder) == ids
    assert [part.number for part in uploads.parts(ids[0])] == [1]


def test_an_upload_of_another_boot_goes_when_this_one_heard_nothing_for_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "uploads"
    uploads = Uploads(os.fsencode(folder), DurableWrites(os.fsencode(tmp_path), lambda: True))
    ids = [uploads.begin(About(b"b", b"k", 0.0)) for _ in range(4)]
    hear(folder / ids[0], Moment("another boot", 10.0**9))
    hear(folder / ids[1], None)
    os.setxattr(folder / ids[2], LAST_PART_ATTRIBUTE, b"nonsense")
    monkeypatch.setattr(boot_clock, "now_s", lambda: IDLE_S_MAX - 60.0)
    assert uploads.remove_idle() == 0
    hear(folder / ids[3], Moment(boot_clock.boot_id(), 120.0))
    monkeypatch.setattr(boot_clock, "now_s", lambda: IDLE_S_MAX + 60.0)
    assert uploads.remove_idle() == 3
    assert uploads_in(folder) == [ids[3]]
    monkeypatch.setattr(boot_clock, "now_s", lambda: IDLE_S_MAX + 180.0)
    assert uploads.remove_idle() == 1


def test_a_jump_takes_nothing_that_another_container_is_writing(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in `work` of a process that can't be seen were left ones as soon as the clock was a day ahead."""
    own = workdir.temp_name(7)
    assert not workdir.is_orphaned(own)
    foreign = b"1.1.1-" + own.partition(b"-")[2]
    clock.jump(DAY_S + 60)
    assert not workdir.is_orphaned(foreign)
    later_s = boot_clock.now_s() + workdir.FOREIGN_ORPHAN_AGE_S + 60
    monkeypatch.setattr(boot_clock, "now_s", lambda: later_s)
    assert workdir.is_orphaned(foreign)


def test_after_a_step_back_no_unsynced_file_is_trusted(tmp_path: Path, clock: Clock) -> None:
    """A file that was dropped after a sync and fetched again under an earlier clock looked synced after a power loss:
    its record was that of before, its bytes had perhaps never reached the disk."""

    def open_store(boot_id: str) -> Store:
        return Store.open(
            str(tmp_path / "index"), [Volume(0, str(tmp_path / "v"), 64 * MIB, "")], boot_id=boot_id
        )

    store = open_store("one")
    id, _ = store.index.names.put_file(ROOT_ID, b"f", Version(5, 1, "v"))
    entry = store.index.entry(FileId(id))
    assert entry is not None
    store.complete_small(entry, b"bytes")
    store.sync()
    clock.jump(-DAY_S)
    assert store.free(id)
    store.complete_small(entry, b"bytes")
    before = time.time() - DAY_S
    os.utime(store.volumes[0].data_path(id), (before, before))
    for volume in store.volumes:
        volume.close()
    store.index.close(clean=False)  # a power loss
    store = open_store("two")
    cached = store.index.cached(id)
    assert cached is None or not cached.trusted
    store.close()


@pytest.fixture
def foreign(tmp_path: Path) -> tuple[PosixStorage, str]:
    """A claim of another host."""
    place = PosixStorage(str(tmp_path))
    name = layout.claim_name(layout.SaveId("0" * 16), 0)
    place.make_folder(os.path.dirname(name))
    (tmp_path / name).write_bytes(b"another boot\n[]")
    return place, name


@pytest.mark.parametrize("jump_s", [-2 * DAY_S, 2 * DAY_S])
def test_a_jump_frees_no_claim_of_another_host_and_keeps_none(
    foreign: tuple[PosixStorage, str], clock: Clock, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    """The jump is that of the file system's clock, too: the claim was made two days before, or after."""
    place, name = foreign
    assert place.is_claimed(name)
    clock.jump(jump_s)
    os.utime(place.path(name), (time.time() - jump_s, time.time() - 2 * jump_s))
    assert place.is_claimed(name)  # noted anew, as it may be another one
    assert place.is_claimed(name)
    began_s = boot_clock.now_s()
    monkeypatch.setattr(boot_clock, "now_s", lambda: began_s + DAY_S - 60.0)
    assert place.is_claimed(name)
    monkeypatch.setattr(boot_clock, "now_s", lambda: began_s + DAY_S + 60.0)
    assert not place.is_claimed(name)


def test_a_claim_that_was_made_anew_is_held_for_a_day_again(
    foreign: tuple[PosixStorage, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = foreign
    assert place.is_claimed(name)
    began_s = boot_clock.now_s()
    monkeypatch.setattr(boot_clock, "now_s", lambda: began_s + DAY_S + 60.0)
    with open(place.path(name), "ab") as file:
        file.write(b" ")
    assert place.is_claimed(name)


@pytest.mark.parametrize("note", [b"", b"nonsense", b"-1 1-1", b"\xff" * 300])
def test_a_sighting_that_is_none_is_taken_for_nothing(foreign: tuple[PosixStorage, str], note: bytes) -> None:
    place, name = foreign
    with open(place.path(layout.sighting_name(name, boot_clock.boot_id())), "wb") as file:
        file.write(note)
    assert place.is_claimed(name) and place.is_claimed(name)


def test_what_was_seen_goes_with_its_save(
    foreign: tuple[PosixStorage, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name = foreign
    prune(place, Retention())
    assert name in [f"{os.path.dirname(name)}/{entry}" for entry in place.names(os.path.dirname(name))]
    began_s = boot_clock.now_s()
    monkeypatch.setattr(boot_clock, "now_s", lambda: began_s + DAY_S + 60.0)
    prune(place, Retention())
    assert place.names(layout.SAVES) == []
