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

from headrace.base.errors import NoSpaceError, NotADirectoryPathError, UsageError
from headrace.base.write_modes import WriteModes
from headrace.jobs.jobs import Jobs
from headrace.jobs.progress import JobProgress
from headrace.seal.catalogue import Catalogue, SealId
from headrace.seal.check import check_image
from headrace.wire.messages import JobState
from tests.unit.dataplane.read_fixture import MIB
from tests.unit.dataplane.spoiled_origin import SpoiledReadPath

SEAL = SealId("a", 1)
NAMES = {"d/a/x": 10, "d/a-b": 2000, "d/a/y/z": 0, "d/large": 3 * MIB + 5, "d/b": 7, "other": 20}


class SealingFixture(SpoiledReadPath):
    """The jobs of a node whose origin has NAMES."""

    def __init__(self, folder: Path, modes: str = "") -> None:
        super().__init__(folder)
        self.truth = {name: self.hold(name, size) for name, size in NAMES.items()}
        self.catalogue = Catalogue.of_cache(str(folder / "v"))
        self.jobs = Jobs(
            *(self.namespace, self.store, self.reads, self.disk),
            catalogue=self.catalogue,
            modes=WriteModes.parse(modes),
            on_damaged=self._damaged,
        )

    async def run(self, kind: str, path: str = "/d", seal: str = "a@1") -> JobState:
        options = {"seal": seal} if "seal" in kind else {}
        return [state async for state in self.jobs.run(kind, path, options)][-1]

    def assert_nothing_left(self) -> None:
        assert not os.path.exists(self.catalogue.folder) or os.listdir(self.catalogue.folder) == []
        assert self.store.sealed.kept_ids() == set()


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
    for id, entry in zip(node.catalogue.ids(SEAL), files, strict=True):
        if entry.size_bytes:
            assert node.content(id) == node.truth[f"d/{entry.path.decode()}"]  # type: ignore[arg-type]
    assert (await node.run("verify-seal")).failed_files == 0


async def test_equal_contents_have_equal_ids_and_others_do_not(node: SealingFixture) -> None:
    await node.run("seal")
    await node.run("seal", seal="a@2")
    assert node.catalogue.record(SEAL).id == node.catalogue.record(SealId("a", 2)).id
    node.hold("d/b", 7)
    await node.run("sync", "/")
    await node.run("seal", seal="a@3")
    assert node.catalogue.record(SEAL).id != node.catalogue.record(SealId("a", 3)).id


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
    ids = set(node.catalogue.ids(SEAL))
    state = await node.run("free")
    assert state.failed_files == 5 and state.files_done == 0
    node.jobs = Jobs(  # as another run of the node has them
        *(node.namespace, node.store, node.reads, node.disk),
        catalogue=node.catalogue,
        modes=WriteModes.parse(""),
        on_damaged=node._damaged,
    )
    node.store.sealed.drop(str(SEAL))
    assert node.store.sealed.kept_ids() == set()
    node.jobs.sealing.load_seals()
    assert node.store.sealed.kept_ids() == ids
    for number in range(6):
        node.spoils.hold(f"bulk/{number}", bytes(60 * MIB))
        await node.run("sync", "/")
        await node.reads.load(await node.entry(f"bulk/{number}"))
    assert (await node.run("verify-seal")).failed_files == 0
    await node.run("unseal")
    node.assert_nothing_left()
    assert (await node.run("free")).files_done == 5


async def test_verify_names_what_is_missing_and_what_is_damaged(node: SealingFixture) -> None:
    await node.run("seal")
    small, large = [node.store.disks[0].data_path((await node.entry(name)).id) for name in ("d/b", "d/large")]
    os.unlink(small)
    with open(large, "r+b") as file:
        file.seek(2 * MIB + 1)
        file.write(b"damage")
    state = await node.run("verify-seal")
    assert {path for path, _ in state.failed} == {"b", "large"}


async def test_a_seal_that_is_mounted_is_not_removed(
    node: SealingFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.run("seal")
    monkeypatch.setattr("headrace.jobs.seal.mounts_of", lambda record: ["/mnt/a"])
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
        assert go_on.wait(20)
        publish(*arguments)

    monkeypatch.setattr(
        node.jobs.sealing, "_catalogue", SimpleNamespace(draft=node.catalogue.draft, publish=slow)
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


@pytest.mark.parametrize("seal", ["", "a", "a@0", "../a@1"])
async def test_a_bad_name_is_refused(node: SealingFixture, seal: str) -> None:
    for kind in ("seal", "unseal", "verify-seal"):
        with pytest.raises(UsageError):
            await node.run(kind, seal=seal)
    node.assert_nothing_left()
