"""Sealing a directory: a whole seal, or none and nothing left of it."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import (
    InvalidImageError,
    NoSpaceError,
    NotADirectoryPathError,
    PathExistsError,
    UsageError,
)
from headrace.jobs.progress import JobProgress
from headrace.seal.catalogue import Place, SealId
from headrace.seal.check import check_image
from headrace.seal.stored_image import open_stored_image
from headrace.wire.messages import JobState
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.jobs.sealing_fixture import NAMES, SEAL, SealingFixture


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SealingFixture]:
    async with SealingFixture(tmp_path).running() as node:
        yield node


async def test_the_list_and_the_image_have_the_tree_in_the_order_of_a_walk(node: SealingFixture) -> None:
    state = await node.run("seal")
    assert (state.files_done, state.files_total, state.failed_files) == (5, 5, 0)
    record = node.catalogue.record(SEAL)
    entries = list(node.catalogue.entries(record))
    assert [entry.path for entry in entries] == [
        *(b"", b"a", b"a/x", b"a/y", b"a/y/z", b"a-b", b"b", b"large")
    ]
    assert {f"d/{entry.path.decode()}": entry.size_bytes for entry in entries if entry.is_file} == {
        name: size for name, size in NAMES.items() if name.startswith("d/")
    }
    with open(node.catalogue.path(SEAL, "image"), "rb") as image:
        assert check_image(image.fileno()) == record.image
    files = [entry for entry in entries if entry.is_file]
    for id, entry in zip(node.catalogue.ids(record), files, strict=True):
        if entry.size_bytes:
            assert node.content(id) == node.truth[f"d/{entry.path.decode()}"]  # type: ignore[arg-type]
    assert (await node.run("verify-seal")).failed_files == 0


@pytest.mark.parametrize(
    ("modes", "path", "option"),
    [
        ("back", "/d", "--write MODE,/d=off"),
        ("off,/d/a=back", "/d", "directories below it"),
        ("back", "/", "--write off"),
    ],
)
async def test_the_refusal_of_a_writable_directory_says_how_to_start_the_node(
    modes: str, path: str, option: str, tmp_path: Path
) -> None:
    async with SealingFixture(tmp_path, modes).running() as node:
        with pytest.raises(UsageError, match=option):
            await node.run("seal", path)
        node.assert_nothing_left()


async def test_equal_contents_have_equal_ids_and_others_do_not(node: SealingFixture) -> None:
    await node.run("seal")
    await node.run("seal", seal="a@2")
    assert node.catalogue.record(SEAL).id == node.catalogue.record(SealId("a", 2)).id
    node.hold("d/b", 7)
    await node.run("sync", "/")
    await node.run("seal", seal="a@3")
    assert node.catalogue.record(SEAL).id != node.catalogue.record(SealId("a", 3)).id


async def test_seals_of_one_name_that_are_made_at_once_have_versions_of_their_own(
    node: SealingFixture,
) -> None:
    await node.run("seal", seal="a@2")
    states = await asyncio.gather(*(node.run("seal", seal="a") for _ in range(4)))
    assert sorted(str(seal) for seal in node.catalogue.seals()) == ["a@2", "a@3", "a@4", "a@5", "a@6"]
    ids = {str(seal): node.catalogue.record(seal).id for seal in node.catalogue.seals()}
    assert sorted(name for state in states for name in state.data) == ["a@3", "a@4", "a@5", "a@6"]
    assert all(ids[name] == id for state in states for name, id in state.data.items())
    assert len(set(ids.values())) == 1


async def test_a_version_that_is_being_made_is_refused_at_once(node: SealingFixture) -> None:
    others: list[asyncio.Task[JobState]] = []

    def begin_another(_: str) -> None:
        if not others:  # the first file of several is being loaded
            others.append(asyncio.ensure_future(node.run("seal")))

    node.spoils.on_read = begin_another
    assert (await node.run("seal")).data == {"a@1": node.catalogue.record(SEAL).id}
    with pytest.raises(PathExistsError, match="it is being made"):
        await others[0]
    with pytest.raises(PathExistsError, match="it exists already"):
        await node.run("seal")


async def test_a_failed_seal_leaves_its_version_to_the_next(node: SealingFixture) -> None:
    def change(key: str) -> None:
        if key == "d/b":
            node.spoils.hold("d/b", b"changed", token='"x"')

    node.spoils.on_read = change
    assert (await node.run("seal", seal="a")).data == {}
    node.spoils.on_read = lambda _: None
    await node.run("sync", "/")
    assert list((await node.run("seal", seal="a")).data) == ["a@1"]


async def test_a_file_that_can_not_be_loaded_makes_no_seal(node: SealingFixture) -> None:
    def change(key: str) -> None:
        if key == "d/b":
            node.spoils.hold("d/b", b"changed", token='"x"')

    node.spoils.on_read = change
    state = await node.run("seal")
    assert [path for path, _ in state.failed] == ["b"]
    node.assert_nothing_left()


@pytest.mark.parametrize("path", ["/other", "/d/b"])
async def test_only_a_directory_is_sealed(node: SealingFixture, path: str) -> None:
    with pytest.raises(NotADirectoryPathError):
        await node.run("seal", path)
    node.assert_nothing_left()


@pytest.mark.parametrize("modes", ["back", "off,/d=local", "off,/d/a=back"])
async def test_what_can_be_written_is_not_sealed(tmp_path: Path, modes: str) -> None:
    async with SealingFixture(tmp_path, modes).running() as node:
        with pytest.raises(UsageError, match="written"):
            await node.run("seal")
        node.assert_nothing_left()


async def test_what_does_not_fit_is_refused_before_anything_is_loaded(node: SealingFixture) -> None:
    for number in range(5):
        node.spoils.hold(f"big/{number}", bytes(60 * MIB))
    with pytest.raises(NoSpaceError, match="room"):
        await node.run("seal", "/big")
    assert node.spoils.read == []
    node.assert_nothing_left()


async def test_a_sealed_file_is_neither_freed_nor_evicted(node: SealingFixture) -> None:
    await node.run("seal")
    ids = set(node.catalogue.ids(node.catalogue.record(SEAL)))
    state = await node.run("free")
    assert state.failed_files == 5 and state.files_done == 0
    assert node.store.sealed.kept_ids() == ids
    for number in range(6):
        node.spoils.hold(f"bulk/{number}", bytes(60 * MIB))
        await node.run("sync", "/")
        await node.reads.load(await node.entry(f"bulk/{number}"))
    assert (await node.run("verify-seal")).failed_files == 0
    await node.run("unseal")
    node.assert_nothing_left()
    assert (await node.run("free")).files_done == 5


async def test_the_image_of_an_older_version_is_dropped_and_written_again(node: SealingFixture) -> None:
    await node.run("seal")
    first = node.stored("image")
    assert first is not None
    await node.run("seal", seal="b@2")
    assert node.stored("image") == first
    await node.run("seal", seal="a@2")
    assert node.stored("image") is None
    assert node.stored("image", SealId("a", 2)) is not None
    os.close(open_stored_image(node.catalogue, node.catalogue.record(SEAL)))
    assert node.stored("image") == first


async def test_an_image_is_not_written_of_other_ids(node: SealingFixture) -> None:
    await node.run("seal")
    record, ids = node.catalogue.record(SEAL), node.stored("ids")
    assert ids is not None
    node.catalogue.drop_image(record)
    for wrong in (ids[:-8], ids[8:] + ids[:8]):
        node.put("ids", wrong)
        with pytest.raises(InvalidImageError):
            open_stored_image(node.catalogue, record)
    assert sorted(os.listdir(node.catalogue.path(SEAL, ""))) == [
        "cover",
        "ids",
        "list",
        "seal.json",
        "verified",
    ]


async def test_a_version_that_is_to_be_mounted_keeps_its_image(node: SealingFixture) -> None:
    await node.run("seal")
    node.catalogue.change_places(SEAL, lambda _: [Place("/mnt/a")])
    await node.run("seal", seal="a@2")
    assert node.stored("image") is not None


async def test_a_damaged_seal_is_named_in_the_status_and_can_be_removed(node: SealingFixture) -> None:
    await node.run("seal")
    node.put("seal.json", b"{}")
    report: Any = node.jobs.sealing.status()
    (row,) = report["seals"]
    assert row["seal"] == "a@1" and "seal.json" in row["trouble"]
    await node.run("unseal")
    node.assert_nothing_left()


async def test_verify_names_what_is_missing_and_what_is_damaged(node: SealingFixture) -> None:
    await node.run("seal")
    small, large = [node.store.disks[0].data_path((await node.entry(name)).id) for name in ("d/b", "d/large")]
    os.unlink(small)
    with open(large, "r+b") as file:
        file.seek(2 * MIB + 1)
        file.write(b"damage")
    state = await node.run("verify-seal")
    assert {path for path, _ in state.failed} == {"b", "large"}


async def test_verify_says_what_origins_have_of_uncached_files(node: SealingFixture) -> None:
    await node.run("seal")
    for name in ("d/b", "d/large", "d/a-b"):
        node.store.free((await node.entry(name)).id)
    node.hold("d/b", 7)
    node.spoils.delete("d/a-b")
    reasons = dict((await node.run("verify-seal")).failed)
    assert set(reasons) == {"b", "large", "a-b"}
    assert "changed at its origin" in reasons["b"] and "no cache has it" in reasons["b"]
    assert "gone from its origin" in reasons["a-b"]
    assert "its origin has it still" in reasons["large"]


async def test_verify_names_the_files_that_a_lazy_seal_has_lost(node: SealingFixture) -> None:
    options = {"seal": str(SEAL), "lazy": "true"}
    assert [state async for state in node.jobs.run("seal", "/d", options)][-1].failed_files == 0
    assert (await node.run("verify-seal")).failed_files == 0
    node.hold("d/b", 7)
    node.spoils.delete("d/a-b")
    reasons = dict((await node.run("verify-seal")).failed)
    assert set(reasons) == {"b", "a-b"}
    assert "changed at its origin" in reasons["b"] and "gone from its origin" in reasons["a-b"]


async def test_a_seal_that_is_mounted_is_not_removed(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.run("seal")
    monkeypatch.setattr("headrace.jobs.seal.mounts_of", lambda catalogue, seal: ["/mnt/a"])
    with pytest.raises(UsageError, match="/mnt/a"):
        await node.run("unseal")
    assert node.catalogue.seals() == [SEAL]


async def test_a_job_that_is_cancelled_leaves_a_whole_seal_or_none(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled, more than once, while a thread publishes: the draft is not removed beneath it."""
    published, go_on = threading.Event(), threading.Event()
    publish = node.catalogue.publish

    def slow(*arguments: Any) -> None:
        published.set()
        assert go_on.wait(60)
        publish(*arguments)

    monkeypatch.setattr(
        node.jobs.sealing,
        "_catalogue",
        SimpleNamespace(draft=node.catalogue.draft, publish=slow, seals=node.catalogue.seals),
    )
    job = asyncio.ensure_future(node.jobs.sealing.make(b"/d", SEAL, JobProgress()))
    assert await asyncio.to_thread(published.wait, 20)
    for _ in range(10):
        job.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    record = node.catalogue.record(SEAL)
    assert len(list(node.catalogue.entries(record))) == 8
    assert os.listdir(node.catalogue.folder) == [str(SEAL)]


async def _cancelled_while(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch, step: str
) -> list[JobState]:
    """Cancel a seal while a thread does a step of its end. Return the states that its caller still gets."""
    begun, go_on = threading.Event(), threading.Event()
    owner: Any = node.jobs.sealing._store if step == "sync" else node.catalogue
    work = getattr(owner, step)

    def slow(*arguments: Any) -> None:
        begun.set()
        assert go_on.wait(60)
        work(*arguments)

    monkeypatch.setattr(owner, step, slow)
    states: list[JobState] = []

    async def collect() -> None:
        async for state in node.jobs.run("seal", "/d", {"seal": str(SEAL)}):
            states.append(state)

    job = asyncio.ensure_future(collect())
    assert await asyncio.to_thread(begun.wait, 60)
    job.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await job
    return [state for state in states if state.done]


async def test_a_seal_that_is_cancelled_before_its_last_step_is_not_made(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _cancelled_while(node, monkeypatch, "sync") == []
    assert node.catalogue.seals() == []
    node.assert_nothing_left()


async def test_the_caller_of_a_seal_that_is_cancelled_too_late_gets_its_name(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (last,) = await _cancelled_while(node, monkeypatch, "publish")
    assert list(last.data) == [str(SEAL)]
    assert node.catalogue.seals() == [SEAL]


@pytest.mark.parametrize("seal", ["", "a", "a@", "a@0", "@1", ".a", "a b", "../a", "../a@1"])
async def test_a_bad_name_is_refused(node: SealingFixture, seal: str) -> None:
    """A new seal may have a name without a version."""
    for kind in ("unseal", "verify-seal", *(["seal"] if seal != "a" else [])):
        with pytest.raises(UsageError):
            await node.run(kind, seal=seal)
    node.assert_nothing_left()


async def test_the_status_has_the_reason_why_the_seals_cannot_be_read(node: SealingFixture) -> None:
    await node.run("seal")
    node.lose_catalogue()
    assert node.jobs.sealing.status() == {
        "seals": [],
        "seals_in_use": [],
        "seal_trouble": "",
        "seals_unread": "the directory of the seals can't be read: Not a directory",
    }
