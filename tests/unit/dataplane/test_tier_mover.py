"""The task that moves files: it follows rules, verifies damaged files instead of moving them, and ends at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.base.beneath import Root
from headrace.base.errors import StoreError
from headrace.base.model import ROOT_ID, Entry, FileId, Version
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.tier_mover import MovePace, TierMover
from headrace.store.checksum import block_checksum
from headrace.store.groups import OneGroup
from headrace.store.index import Index
from headrace.store.space import SpaceRules
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.testing.waiting import until

pytestmark = pytest.mark.timeout(60)
MIB = 1 << 20


class Rule(OneGroup):
    def __init__(self) -> None:
        self.tiers: tuple[str, ...] = ()

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        return self.tiers


class World:
    def __init__(self, store: Store, rule: Rule, mover: TierMover) -> None:
        self.store, self.rule, self.mover = store, rule, mover
        self.evicted: list[FileId] = []
        store.space.evicted.add(self.evicted.extend)

    def entry(self, name: str, size_bytes: int) -> Entry:
        id, _ = self.store.index.names.put_file(ROOT_ID, name.encode(), Version(size_bytes, 5, "t"))
        entry = self.store.index.entry(id)
        assert entry is not None
        return entry

    def fill(self, name: str, body: bytes) -> FileId:
        entry = self.entry(name, len(body))
        self.store.complete_small(entry, body)
        return entry.id

    def volume_of(self, id: FileId) -> int | None:
        record = self.store.index.cached(id)
        return None if record is None else record.volume

    def content(self, id: FileId) -> bytes:
        number = self.volume_of(id)
        assert number is not None
        return Path(self.store.disks[number].data_path(id)).read_bytes()

    def require(self, *tiers: str) -> None:
        self.rule.tiers = tiers
        self.mover.place_again()


@asynccontextmanager
async def running(folder: Path, *, bytes_s: float = 1e9) -> AsyncIterator[World]:
    rule = Rule()

    def divide(_: Index) -> Rule:
        return rule

    volumes = [Volume(n, f"{folder}/{tier}", 64 * MIB, tier) for n, tier in enumerate(("nvme", "hdd"))]
    store = Store.open(f"{folder}/nvme/index", volumes, rules=SpaceRules(divide=divide, sinks=True))
    disk = ThreadPoolExecutor(2)
    mover = TierMover(store, disk, Gate(Window(maximum=8), bytes_max=1 << 30), bytes_s=bytes_s)
    try:
        yield World(store, rule, mover)
    finally:
        await mover.stop()
        disk.shutdown()
        store.close()


async def test_files_follow_a_rule_and_readers_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        ids = [world.fill(f"file-{number}", bytes([number]) * 9000) for number in range(150)]
        world.mover.start()
        world.require("hdd")
        await until(lambda: all(world.volume_of(id) == 1 for id in ids))
        await until(lambda: set(world.evicted) == set(ids))
        assert world.mover.statistics()["files_replaced"] == 150
        assert not world.store._files.accounts.moving


async def test_a_written_file_moves_after_its_adoption(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        world.mover.start()
        world.require("hdd")
        await until(lambda: not world.mover.is_walking)
        body = b"written" * 1000
        path = tmp_path / "nvme" / "written.tmp"
        path.write_bytes(body)
        place = Root(bytes(path.parent)).at(b"/written.tmp")
        entry = world.entry("written", len(body))
        assert world.store.adopt(entry, place, [block_checksum(body)], borrowed=False)
        await until(lambda: world.volume_of(entry.id) == 1)
        assert world.content(entry.id) == body


@pytest.mark.expected_warnings("does not match its checksums, it is not moved")
async def test_a_damaged_file_is_dropped_and_not_moved(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        good, bad = world.fill("good", bytes(5000)), world.fill("bad", b"b" * 5000)
        with open(world.store.disks[0].data_path(bad), "r+b") as file:
            file.write(b"rotten")
        world.mover.start()
        world.require("hdd")
        await until(lambda: world.volume_of(good) == 1 and world.volume_of(bad) is None)
        await until(lambda: world.mover.statistics()["files_failed"] == 1)
        assert bad in world.evicted


async def test_it_ends_in_the_middle_of_a_copy(tmp_path: Path) -> None:
    async with running(tmp_path, bytes_s=1000.0) as world:
        ids = [world.fill(f"file-{number}", bytes(500_000)) for number in range(9)]
        world.mover.start()
        world.require("hdd")
        await until(lambda: bool(world.store._files.accounts.moving))
        async with asyncio.timeout(10):
            await world.mover.stop()
        assert {world.volume_of(id) for id in ids} == {0}


async def test_it_does_nothing_without_a_rate(tmp_path: Path) -> None:
    async with running(tmp_path, bytes_s=0) as world:
        id = world.fill("file", bytes(5000))
        world.mover.start()
        world.require("hdd")
        await asyncio.sleep(0)
        assert world.volume_of(id) == 0


def test_copies_take_little_of_the_time_while_programs_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited, is_read = 100.0, list[float](), True
    monkeypatch.setattr("headrace.dataplane.tier_mover.time.monotonic", lambda: now)
    pace = MovePace(1e9, lambda: is_read)
    monkeypatch.setattr(pace._stopped, "wait", lambda seconds: waited.append(seconds))
    pace.begin()
    now += 0.01
    pace.spend(MIB)
    is_read = False
    now += 0.01
    pace.spend(MIB)
    now += 0.01
    pace.spend(100 * MIB)
    assert waited == pytest.approx([0.24, 0.01, 0.0949], rel=0.01)


@pytest.mark.expected_warnings("files can't be moved between the tiers")
async def test_a_failed_batch_keeps_nothing_from_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not the files of the batch that were not copied yet."""
    monkeypatch.setattr("headrace.dataplane.tier_mover.COPY_S", 0.0)  # so that a copy is committed by itself
    failed = asyncio.Event()
    async with running(tmp_path) as world:
        ids = [world.fill(f"file-{number}", bytes([number]) * 9000) for number in range(9)]
        used = [volume.used_bytes for volume in world.store.disks]
        loop, put = asyncio.get_running_loop(), world.store.index.put_cached

        def fail(_: object) -> None:
            loop.call_soon_threadsafe(failed.set)
            raise StoreError("the index", why="its disk is full")

        monkeypatch.setattr(world.store.index, "put_cached", fail)
        monkeypatch.setattr("headrace.dataplane.tier_mover.FAILED_PAUSE_S", 0.01)
        world.mover.start()
        world.require("hdd")
        await failed.wait()
        await world.mover.stop()
        assert not world.store._files.accounts.moving
        assert [volume.used_bytes for volume in world.store.disks] == used
        monkeypatch.setattr(world.store.index, "put_cached", put)
        assert {world.volume_of(id) for id in ids} == {0}


async def test_a_rule_that_changes_during_the_first_look_is_for_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        id = world.fill("file", bytes(9000))
        batch_after = world.store.index.cached_batch

        def change_meanwhile(after: FileId) -> object:
            batch = batch_after(after)
            world.require("nvme")
            return batch

        monkeypatch.setattr(world.store.index, "cached_batch", change_meanwhile)
        assert world.mover._choose_misplaced() == []
        monkeypatch.undo()
        world.rule.tiers = ("hdd",)
        assert world.mover._look_from == FileId(0)
        moves = world.mover._choose_misplaced()
        assert [move.cached.id for move in moves] == [id]
        world.store.moves.abandon(moves)
