"""Lazy seals: they load nothing, know what is missing, and become what a whole seal is."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.base.clock import monotonic_s
from headrace.base.errors import NoSpaceError, UsageError
from headrace.base.model import FileId
from headrace.jobs.progress import JobProgress
from headrace.seal.catalogue import SealId
from headrace.seal.reader import read_entries
from headrace.seal.snapshot import SnapshotEntry
from headrace.seal.stored_image import open_stored_image
from headrace.store.volume import SPILL
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.jobs.sealing_fixture import SEAL, SealingFixture


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SealingFixture]:
    async with SealingFixture(tmp_path).running() as node:
        yield node


async def make_lazy(node: SealingFixture) -> None:
    await node.jobs.sealing.make(b"/d", SEAL, JobProgress(), lazy=True)


def targets(node: SealingFixture, seal: SealId = SEAL) -> dict[bytes, bytes]:
    """Return the redirect of each file of the image."""
    image = open_stored_image(node.catalogue, node.catalogue.record(seal))
    try:
        return {entry.path: entry.target for entry in read_entries(image) if entry.target}
    finally:
        os.close(image)


def missing_files(node: SealingFixture) -> int:
    report: Any = node.jobs.sealing.status()
    (row,) = report["seals"]
    count: int = row["missing_files"]
    return count


def has_missing(node: SealingFixture, count: int) -> bool:
    return missing_files(node) == count


async def test_nothing_is_loaded_and_what_is_missing_has_a_lazy_name(node: SealingFixture) -> None:
    await node.reads.load(await node.entry("d/b"))
    large = await node.entry("d/large")
    await node.reads.load(large, (0, MIB))  # its cache file has holes
    read = len(node.spoils.read)
    await make_lazy(node)
    assert len(node.spoils.read) == read
    record = node.catalogue.record(SEAL)
    assert record.is_lazy and record.missing == missing_files(node) == 3
    names = targets(node)
    assert names.pop(b"b").startswith(b"/0")
    assert names[b"large"] == b"/lazy/%012x" % large.id
    assert all(name.startswith(b"/lazy/") for name in names.values())
    checksums = {entry.path: entry.checksum for entry in node.catalogue.entries(record) if entry.is_file}
    assert [path for path, checksum in checksums.items() if checksum is None] == [b"a/x", b"a-b", b"large"]
    assert checksums[b"a/y/z"] == 0
    assert (await node.run("verify-seal")).failed_files == 0


async def test_a_completed_seal_is_that_which_is_made_as_a_whole(node: SealingFixture) -> None:
    await make_lazy(node)
    state = await node.run("complete-seal")
    assert (state.files_done, state.failed_files) == (4, 0)
    await node.run("seal", seal="b@1")
    record, whole = node.catalogue.record(SEAL), node.catalogue.record(SealId("b", 1))
    assert (record.id, record.image, record.missing) == (whole.id, whole.image, 0)
    assert node.catalogue.ids(record) == node.catalogue.ids(whole)
    assert sorted(os.listdir(node.catalogue.path(SEAL, ""))) == [
        *("cover", "ids.1", "image.1", "list.1", "seal.json", "verified")
    ]
    assert (await node.run("verify-seal")).files_done == 5
    assert (await node.run("complete-seal")).failed_files == 0
    assert node.catalogue.record(SEAL) == record


async def test_the_node_notices_that_readers_loaded_all(node: SealingFixture) -> None:
    await make_lazy(node)
    node.jobs.lazy_seals.start()
    try:
        for count, name in ((3, "d/b"), (2, "d/a/x"), (1, "d/large"), (0, "d/a-b")):
            await node.reads.load(await node.entry(name))
            await until(partial(has_missing, node, count))
        await until(lambda: not node.catalogue.record(SEAL).is_lazy)
    finally:
        await node.jobs.lazy_seals.stop()
    assert (await node.run("verify-seal")).failed_files == 0


async def test_a_file_that_changed_at_its_origin_keeps_the_seal_lazy(node: SealingFixture) -> None:
    await make_lazy(node)
    node.hold("d/b", 7)
    await node.run("sync", "/")
    state = await node.run("complete-seal")
    assert [path for path, _ in state.failed] == ["b"]
    assert node.catalogue.record(SEAL).missing == 4


async def test_missing_files_are_kept_as_they_come(node: SealingFixture) -> None:
    await make_lazy(node)
    ids = set(node.catalogue.ids(node.catalogue.record(SEAL)))
    assert node.store.sealed.kept_ids() == ids
    await node.run("complete-seal")
    assert (await node.run("free")).files_done == 0
    await node.run("unseal")
    node.assert_nothing_left()


async def test_the_room_of_missing_files_is_reserved(node: SealingFixture) -> None:
    for number in range(5):
        node.spoils.hold(f"one/{number}", bytes(30 * MIB))
        node.spoils.hold(f"two/{number}", bytes(30 * MIB))
    await node.jobs.sealing.make(b"/one", SEAL, JobProgress(), lazy=True)
    with pytest.raises(NoSpaceError, match="room"):
        await node.jobs.sealing.make(b"/two", SealId("b", 1), JobProgress(), lazy=True)


async def test_a_removed_lazy_seal_gives_its_files_up(node: SealingFixture) -> None:
    await make_lazy(node)
    await node.run("unseal")
    node.assert_nothing_left()
    assert FileId(1) not in node.store.sealed


async def test_a_lazy_seal_is_not_pushed(node: SealingFixture) -> None:
    await make_lazy(node)
    with pytest.raises(UsageError, match="checksums are unknown"):
        await node.run("push-seal")


async def test_what_has_arrived_needs_no_layer_when_nothing_more_comes(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.jobs.lazy_seals.QUIET_S", 0.1)
    monkeypatch.setattr("headrace.jobs.lazy_seals.CHECK_INTERVAL_S", 0.01)
    await make_lazy(node)
    node.jobs.lazy_seals.start()
    try:
        await node.reads.load(await node.entry("d/large"))
        await until(lambda: node.catalogue.record(SEAL).generation == 1)
        assert node.catalogue.record(SEAL).missing == 3
        names = targets(node)
        assert names[b"large"].startswith(b"/0") and names[b"b"].startswith(b"/lazy/")
        for name in ("d/b", "d/a/x", "d/a-b"):
            await node.reads.load(await node.entry(name))
        await until(lambda: not node.catalogue.record(SEAL).is_lazy)
    finally:
        await node.jobs.lazy_seals.stop()
    assert (await node.run("verify-seal")).failed_files == 0


@pytest.mark.expected_warnings(
    "a lazy seal could not be renewed", "cache lacks", "is not where its record says"
)
async def test_a_file_that_is_lost_again_is_missing_again(node: SealingFixture) -> None:
    await make_lazy(node)
    for name in ("d/b", "d/a/x", "d/a-b"):
        await node.reads.load(await node.entry(name))
    node.jobs.lazy_seals.start()
    try:
        await until(partial(has_missing, node, 1))
        os.unlink(node.store.disks[0].data_path((await node.entry("d/b")).id))
        await node.reads.load(await node.entry("d/large"))
        await until(partial(has_missing, node, 1))
        assert node.catalogue.record(SEAL).is_lazy
        await node.reads.load(await node.entry("d/b"))
        await until(lambda: not node.catalogue.record(SEAL).is_lazy)
    finally:
        await node.jobs.lazy_seals.stop()
    assert (await node.run("verify-seal")).failed_files == 0


async def test_a_renewal_that_fails_leaves_nothing(node: SealingFixture) -> None:
    """A full disk must not stay full by what it could not finish."""
    await make_lazy(node)
    record, folder = node.catalogue.record(SEAL), node.catalogue.path(SEAL, "")
    before = sorted(os.listdir(folder))

    def rows() -> Iterator[tuple[SnapshotEntry, int]]:
        yield next(node.catalogue.entries(record)), 0
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        node.jobs.sealing.renew(msgspec.structs.replace(record, generation=1), rows())
    assert sorted(os.listdir(folder)) == before
    assert node.catalogue.record(SEAL) == record


async def test_two_that_complete_a_seal_at_once_renew_it_once(node: SealingFixture) -> None:
    await make_lazy(node)
    node.jobs.lazy_seals.start()
    try:
        await asyncio.gather(*(node.run("complete-seal") for _ in range(4)))
    finally:
        await node.jobs.lazy_seals.stop()
    record = node.catalogue.record(SEAL)
    assert (record.generation, record.missing) == (1, 0)
    assert (await node.run("verify-seal")).failed_files == 0


@pytest.mark.expected_warnings("the files of a lazy seal can't be read")
async def test_a_damaged_list_is_not_taken_for_a_whole_seal(node: SealingFixture) -> None:
    await make_lazy(node)
    body = node.stored("list")
    assert body is not None
    node.put("list", body[: len(body) // 2])
    node.jobs.lazy_seals._missing.forget(SEAL)
    assert node.jobs.lazy_seals._missing.check() == []


@pytest.mark.expected_warnings("a lazy seal could not be renewed")
async def test_a_renewal_that_fails_is_tried_again_after_longer_and_longer(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_lazy(node)
    attempts: list[float] = []

    def fail(*_: object) -> None:
        attempts.append(monotonic_s())
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as full:
        full.setattr(node.jobs.sealing, "renew", fail)
        for name in ("d/b", "d/a/x", "d/a-b", "d/large"):
            await node.reads.load(await node.entry(name))
        node.jobs.lazy_seals.start()
        await pass_time(70)
    pauses = [later - earlier for earlier, later in itertools.pairwise(attempts)]
    assert len(attempts) in (6, 7) and pauses == sorted(pauses) and pauses[-1] >= 16
    try:
        await pass_time(130)
        await until(lambda: not node.catalogue.record(SEAL).is_lazy)
    finally:
        await node.jobs.lazy_seals.stop()


async def test_files_that_no_disk_has_room_for_are_named_in_the_status(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_lazy(node)
    missing = node.jobs.lazy_seals._missing
    await node.reads.load(await node.entry("d/b"))
    monkeypatch.setattr(node.store, "spill", node.store.disks[0])  # as if it had been read into the spill
    monkeypatch.setattr(node.store.disks[0], "tier", SPILL)
    missing.count_again()
    report: Any = node.jobs.sealing.status()
    (row,) = report["seals"]
    assert row["missing_files"] == 4 and "room for 1 files that were read" in row["missing_why"]
    monkeypatch.undo()
    missing.count_again()
    report = node.jobs.sealing.status()
    assert (report["seals"][0]["missing_files"], report["seals"][0]["missing_why"]) == (3, "")


async def test_lazy_seals_are_looked_for_while_one_may_be_there(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node without lazy seals reads no record each second. One whose record can't be read now is looked at later."""
    missing = node.jobs.lazy_seals._missing
    assert missing.may_lack() and missing.check() == [] and not missing.may_lack()
    await make_lazy(node)
    assert missing.may_lack()
    with monkeypatch.context() as few:
        few.setattr(
            node.catalogue, "record", lambda _: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many"))
        )
        assert missing.check() == [] and missing.may_lack()
        few.setattr(node.catalogue, "seals", lambda: (_ for _ in ()).throw(OSError(errno.EIO, "failed")))
        with pytest.raises(OSError, match="failed"):
            missing.check()
        assert missing.may_lack()
    node.jobs.lazy_seals.start()
    try:
        await node.run("complete-seal")
        await until(lambda: not missing.may_lack())
    finally:
        await node.jobs.lazy_seals.stop()
    assert not node.catalogue.record(SEAL).is_lazy
