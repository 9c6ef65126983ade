"""Seals that are pushed to an origin, and pulled from there."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from headrace.base.errors import (
    InvalidImageError,
    NoSpaceError,
    PathExistsError,
    PathNotFoundError,
    UsageError,
    VersionChangedError,
)
from headrace.namespace.mounts import Mount
from headrace.origin.measure import MeasureOrigin
from headrace.origin.memory import MemoryOrigin
from headrace.origin.reserved import NamespaceOrigin
from headrace.seal import unpacked_list
from headrace.seal.catalogue import SealId
from headrace.seal.check import check_image
from headrace.seal.shared import LIST_BYTES_MAX, SharedRecord, list_key, record_key
from headrace.seal.snapshot import SnapshotEntry
from headrace.vfs.sealed_list import SealedList
from tests.unit.jobs.sealing_fixture import SEAL, SealingFixture
from tests.unit.seal.snapshots import DIRECTORY, FILE, written


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SealingFixture]:
    async with SealingFixture(tmp_path).running() as node:
        yield node


def stored(node: SealingFixture, key: str) -> bytes:
    return node.spoils._objects[key].data


def record_of(node: SealingFixture) -> SharedRecord:
    return msgspec.json.decode(stored(node, record_key(SEAL)), type=SharedRecord)


def forge(node: SealingFixture, changes: dict[str, object], packed: bytes | None = None) -> None:
    """Replace the record of the pushed seal, and its list."""
    record = record_of(node)
    if packed is not None:
        node.spoils.hold(list_key(record.id), packed)
        record = msgspec.structs.replace(record, packed_bytes=len(packed))
    fields = {**msgspec.to_builtins(record), **changes}
    node.spoils.hold(record_key(SEAL), msgspec.json.encode(fields))


async def pushed(node: SealingFixture) -> SharedRecord:
    await node.run("seal")
    await node.run("push-seal")
    return record_of(node)


async def test_a_pulled_seal_is_the_one_that_was_pushed(node: SealingFixture) -> None:
    record = await pushed(node)
    entries = list(node.catalogue.entries(node.catalogue.record(SEAL)))
    assert (record.path, record.files) == ("d", 5)
    assert [(row.seal, row.path, row.id) for row in await node.jobs.shared_seals.rows("")] == [
        ("a@1", "/d", record.id)
    ]
    await node.run("unseal")
    await node.run("free")
    state = await node.run("pull-seal", "")
    assert (state.files_done, state.failed_files) == (5, 0)
    pulled = node.catalogue.record(SEAL)
    assert (pulled.id, pulled.path) == (record.id, "/d")
    assert list(node.catalogue.entries(pulled)) == entries
    with open(node.catalogue.path(SEAL, "image"), "rb") as image:
        assert check_image(image.fileno()) == pulled.image
    assert node.store.sealed.kept_ids() == set(node.catalogue.ids(node.catalogue.record(SEAL)))
    assert (await node.run("verify-seal")).failed_files == 0


async def test_a_version_at_the_origin_never_changes(node: SealingFixture) -> None:
    await pushed(node)
    first = stored(node, record_key(SEAL))
    await node.run("push-seal")
    assert stored(node, record_key(SEAL)) == first
    await node.run("unseal")
    node.hold("d/b", 7)
    await node.run("sync", "/")
    await node.run("seal")
    with pytest.raises(PathExistsError, match="another seal"):
        await node.run("push-seal")
    assert stored(node, record_key(SEAL)) == first


async def test_a_list_that_lies_there_already_is_used_if_it_is_right(node: SealingFixture) -> None:
    await node.run("seal")
    record = node.catalogue.record(SEAL)
    packed = node.stored("list")
    assert packed is not None
    other = gzip.compress(gzip.decompress(packed), 9)
    node.spoils.hold(list_key(record.id), other)
    await node.run("push-seal")
    assert record_of(node).packed_bytes == len(other)
    node.spoils.hold(list_key(record.id), b"x" * len(packed))
    node.spoils.delete(record_key(SEAL))
    with pytest.raises(PathExistsError, match="other bytes"):
        await node.run("push-seal")


async def test_files_that_changed_or_are_gone_are_named_and_make_no_seal(node: SealingFixture) -> None:
    await pushed(node)
    await node.run("unseal")
    node.hold("d/b", 7)
    node.spoils.delete("d/a-b")
    await node.run("sync", "/")
    state = await node.run("pull-seal", "")
    reasons = dict(state.failed)
    assert set(reasons) == {"b", "a-b"}
    assert "changed at its origin" in reasons["b"] and "gone from its origin" in reasons["a-b"]
    node.assert_nothing_left()


async def test_a_pull_looks_again_where_the_listing_is_old(node: SealingFixture) -> None:
    await node.run("seal", seal="a@9")
    node.hold("d/b", 7)
    await node.run("sync", "/")
    await pushed(node)
    record = record_of(node)
    await node.run("unseal")
    before = await node.entry("d/b")
    node.namespace.changes.record_put(b"/d/b", msgspec.structs.replace(before.version, token='"old"'))
    assert (await node.run("pull-seal", "")).failed_files == 0
    assert node.catalogue.record(SEAL).id == record.id


async def test_equal_versions_with_other_bytes_are_refused(node: SealingFixture) -> None:
    node.hold("d/b", 7, token='"t"')
    await pushed(node)
    await node.run("unseal")
    await node.run("free")
    node.hold("d/b", 7, token='"t"')
    with pytest.raises(VersionChangedError, match="not those that were sealed"):
        await node.run("pull-seal", "")
    node.assert_nothing_left()


async def test_a_seal_that_no_origin_has(node: SealingFixture) -> None:
    with pytest.raises(PathNotFoundError, match="no origin"):
        await node.run("pull-seal", "")
    await pushed(node)
    with pytest.raises(PathExistsError):
        await node.run("pull-seal", "")
    with pytest.raises(PathNotFoundError):
        await node.run("push-seal", seal="a@2")


async def test_a_pull_below_a_directory_that_is_written_is_refused(tmp_path: Path) -> None:
    async with SealingFixture(tmp_path / "a").running() as node:
        record = await pushed(node)
        body, packed = stored(node, record_key(SEAL)), stored(node, list_key(record.id))
    async with SealingFixture(tmp_path / "b", "back").running() as node:
        node.spoils.hold(record_key(SEAL), body)
        node.spoils.hold(list_key(record.id), packed)
        with pytest.raises(UsageError, match="written"):
            await node.run("pull-seal", "")


# ---------------------------------------------------------------- what an attacker writes to the origin


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "../d"},
        {"path": "/d"},
        {"path": "d//a"},
        {"path": "d\0"},
        {"id": "../../etc/passwd"},
        {"id": "0" * 64},
        {"name": "b"},
        {"version": 2},
        {"version": -1},
        {"format": 2},
        {"files": -1},
        {"files": 1 << 63},
        {"created_s": "soon"},
        {"list_bytes": LIST_BYTES_MAX + 1},
        {"packed_bytes": 0},
        {"packed_bytes": 1 << 40},
        {"list_bytes": 10},
    ],
)
async def test_a_forged_record_is_refused(node: SealingFixture, changes: dict[str, object]) -> None:
    await pushed(node)
    await node.run("unseal")
    forge(node, changes)
    with pytest.raises(InvalidImageError):
        await node.run("pull-seal", "")
    node.assert_nothing_left()


@pytest.mark.parametrize(
    "entry",
    [
        SnapshotEntry(b"../x", FILE, 5),
        SnapshotEntry(b"/etc/passwd", FILE, 5),
        SnapshotEntry(b"a\0b", FILE, 5),
        SnapshotEntry(b"b/c", FILE, 5),
        SnapshotEntry(b"", FILE, 5),
    ],
)
async def test_a_forged_list_is_refused_though_its_id_is_right(
    node: SealingFixture, entry: SnapshotEntry
) -> None:
    await pushed(node)
    await node.run("unseal")
    body, id = written([SnapshotEntry(b"", DIRECTORY), entry])
    packed = gzip.compress(body)
    node.spoils.hold(list_key(id), packed)
    forge(node, {"id": id, "packed_bytes": len(packed)})
    with pytest.raises(InvalidImageError):
        await node.run("pull-seal", "")
    node.assert_nothing_left()


async def test_a_list_of_another_id_is_refused(node: SealingFixture) -> None:
    await pushed(node)
    await node.run("unseal")
    forge(node, {}, gzip.compress(written([SnapshotEntry(b"", DIRECTORY), SnapshotEntry(b"b", FILE)])[0]))
    with pytest.raises(InvalidImageError, match="id"):
        await node.run("pull-seal", "")
    node.assert_nothing_left()


async def test_a_list_that_unpacks_without_end_is_left_early(node: SealingFixture) -> None:
    record = await pushed(node)
    await node.run("unseal")
    rows = [SnapshotEntry(b"", DIRECTORY), *(SnapshotEntry(b"%09d" % n, FILE) for n in range(200_000))]
    body, id = written(rows)
    packed = gzip.compress(body)
    node.spoils.hold(list_key(id), packed)
    forge(node, {"id": id, "packed_bytes": len(packed), "list_bytes": record.list_bytes})
    with pytest.raises(InvalidImageError, match="longer than"):
        await node.run("pull-seal", "")
    node.assert_nothing_left()


@pytest.mark.parametrize(
    "packed",
    [b"", b"no gzip", gzip.compress(b"x")[:-4], gzip.compress(bytes(range(99)))],
    ids=["empty", "no-gzip", "truncated", "no-list"],
)
async def test_a_list_that_is_none_is_refused(node: SealingFixture, packed: bytes) -> None:
    await pushed(node)
    await node.run("unseal")
    forge(node, {}, packed)
    with pytest.raises(InvalidImageError):
        await node.run("pull-seal", "")
    node.assert_nothing_left()


@pytest.mark.expected_warnings("a seal of an origin is ignored")
async def test_a_record_that_is_none_hides_no_other(node: SealingFixture) -> None:
    await pushed(node)
    for key in ("x@1.json", "../y@1.json", "x@0.json", "lists", "notes.txt"):
        node.spoils.hold(f".headrace/seals/{key}", b"[" * 1000)
    node.spoils.hold(".headrace/seals/big@1.json", bytes(1 << 17))
    rows = await node.jobs.shared_seals.rows("")
    assert [row.seal for row in rows] == ["a@1"]


async def test_the_reserved_directory_is_not_in_the_namespace(tmp_path: Path) -> None:
    async with SealingFixture(tmp_path).running() as node:
        origin = MemoryOrigin("shown")
        origin.hold(".headrace/seals/a@1.json", b"{}")
        origin.hold("d/.headrace/x", b"x")
        origin.hold("d/.headrace/seals/b@1.json", b"{}")
        origin.hold("d/.headrace-not", b"x")
        origin.hold("e/.headrace", b"x")
        mount = Mount("/m", "memory://", NamespaceOrigin(MeasureOrigin(origin)), 3600.0)
        node.namespace.mount_points.attach(mount)
        paths = set()
        for path in (b"/m", b"/m/d", b"/m/d/.headrace", b"/m/e"):
            directory = await node.namespace.resolver.resolve(path)
            await node.namespace.listings.list(directory.id)
            paths |= {path + b"/" + entry.name for entry in node.store.index.children(directory.id)}
        of_users = {b"/m/d/.headrace", b"/m/d/.headrace/x", b"/m/d/.headrace-not", b"/m/e/.headrace"}
        assert paths == {b"/m/d", b"/m/e"} | of_users
        for path in (b"/m/.headrace", b"/m/.headrace/seals/a@1.json", b"/m/d/.headrace/seals"):
            with pytest.raises(PathNotFoundError):
                await node.namespace.resolver.resolve(path)


async def test_a_seal_of_several_mounts_is_not_pushed(node: SealingFixture) -> None:
    await node.run("seal", "/", "all@1")
    node.namespace.mount_points.attach(Mount("/d/more", "memory://", MemoryOrigin("more"), 3600.0))
    with pytest.raises(UsageError, match="mounts"):
        await node.run("push-seal", seal="all@1")
    assert not [key for key in node.spoils._objects if "headrace" in key]
    assert node.catalogue.seals() == [SealId("all", 1)]


# ---------------------------------------------------------------- what programs of the host map


def kept_lists(node: SealingFixture) -> list[str]:
    folder = os.path.join(node.catalogue.folder, ".shared")
    return sorted(os.listdir(folder)) if os.path.exists(folder) else []


async def test_a_list_is_unpacked_once_for_all_programs(node: SealingFixture) -> None:
    record = await pushed(node)
    entries = list(node.catalogue.entries(node.catalogue.record(SEAL)))
    for is_own in (True, False):
        for _ in range(2):
            opened = await node.jobs.shared_seals.open(SEAL)
            rows = SealedList(opened.list_path)
            assert [rows.entry(position) for position in range(len(rows))] == entries
            assert (opened.path, opened.id, opened.ids_path != "") == ("/d", record.id, is_own)
        assert kept_lists(node) == [record.id]
        os.unlink(opened.list_path)
        assert (await node.jobs.shared_seals.open(SEAL, record.id)).id == record.id
        assert kept_lists(node) == [], "a program that has it mapped needs no other"
        if is_own:
            await node.run("unseal")


async def test_a_list_that_the_disk_has_no_room_for_is_not_fetched(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await pushed(node)
    await node.run("unseal")
    forge(node, {"list_bytes": LIST_BYTES_MAX})
    node.spoils.delete(list_key(record.id))
    disk = os.statvfs("/")
    full = os.statvfs_result((disk.f_bsize, 4096, 10**6, 10**6, 1 << 20, *disk[5:]))  # 4 GiB are free
    monkeypatch.setattr("headrace.seal.shared_lists.os.statvfs", lambda _: full)
    with pytest.raises(NoSpaceError, match="8192 MiB, and may take 2048 MiB"):
        await node.jobs.shared_seals.open(SEAL)
    assert kept_lists(node) == []


async def test_a_list_of_too_many_names_is_left_early(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pushed(node)
    await node.run("unseal")
    monkeypatch.setattr(unpacked_list, "ENTRIES_MAX", 3)
    with pytest.raises(InvalidImageError, match="more than 3 names"):
        await node.jobs.shared_seals.open(SEAL)
    assert kept_lists(node) == []


# ---------------------------------------------------------------- jobs over the path of a seal


@pytest.mark.parametrize("is_own", [True, False])
async def test_a_version_is_loaded_by_its_path(node: SealingFixture, *, is_own: bool) -> None:
    record = await pushed(node)
    if not is_own:
        await node.run("unseal")
        await node.run("free")
    node.hold("d/new", 5)
    await node.run("sync", "/")
    state = await node.run("load", "/a@1")
    assert (state.files_done, state.failed_files, state.data) == (5, 0, {"a@1": record.id})
    rows = SealedList((await node.jobs.shared_seals.open(SEAL)).list_path)
    assert len(rows) == record.files + 3
    assert not node.jobs.files.is_cached(await node.entry("d/new"))
    assert node.jobs.files.is_whole(await node.entry("d/large"))
    part = await node.run("load", "/a@1/a")
    assert (part.files_done, part.data) == (2, {"a@1": record.id})
    assert (await node.run("load", "/d")).data == {}
    gone = await node.run("load", "/a@1/nothing")
    assert gone.failed == [("/a@1/nothing", "the seal has no such path")]
    for kind, path in (("load", "/a@2"), ("load", "/a@x"), ("free", "/a@1"), ("pin", "/a@1")):
        with pytest.raises(PathNotFoundError):
            await node.run(kind, path)


async def test_what_is_no_longer_the_sealed_version_is_named(node: SealingFixture) -> None:
    node.hold("d/b", 7, token='"t"')
    await pushed(node)
    await node.run("unseal")
    await node.run("free")
    node.hold("d/b", 7, token='"t"')
    node.hold("d/large", 9)
    node.spoils.delete("d/a-b")
    await node.run("sync", "/")
    state = await node.run("load", "/a@1")
    reasons = dict(state.failed)
    assert set(reasons) == {"/d/b", "/d/large", "/d/a-b"} and state.files_done == 2
    assert "other bytes" in reasons["/d/b"] and "another version" in reasons["/d/large"]
    assert "no such object" in reasons["/d/a-b"]
    assert (await node.run("load", "/d")).failed_files == 0


async def test_a_seal_that_only_the_origin_has_is_verified_there(node: SealingFixture) -> None:
    await pushed(node)
    await node.run("unseal")
    state = await node.run("verify-seal")
    assert (state.files_done, state.files_total, state.failed_files) == (5, 5, 0)
    node.hold("d/b", 9)
    node.spoils.delete("d/a-b")
    state = await node.run("verify-seal")
    assert state.files_done == 3 and set(dict(state.failed)) == {"b", "a-b"}
    with pytest.raises(PathNotFoundError):
        await node.run("verify-seal", seal="a@7")
