"""A holder persists a dead writer's replicas: under the writer's conditions, once, and the writer learns of it."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base import failpoint
from headrace.base.beneath import SafePath
from headrace.base.clock import monotonic_s
from headrace.base.model import BLOCK_SIZE_BYTES, ObjectInfo
from headrace.base.tasks import OwnedTasks
from headrace.node.writing import WriteBackSettings
from headrace.overlay.hiding import hide
from headrace.testing.waiting import until
from headrace.writeback.replication import failover
from headrace.writeback.replication.failover import PUTS_END_S
from headrace.writeback.sync_journal import SyncJournal
from headrace.writeback.writeback import WriteBack
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.replication_fixture import HOLDER, WRITER, ReplicationFixture, view_of

PATH = b"/d/f"
OURS = random.Random(1).randbytes(BLOCK_SIZE_BYTES + 5)
pytestmark = pytest.mark.expected_warnings("headrace.writeback.replication.failover")


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[ReplicationFixture]:
    fixture = ReplicationFixture(folder)
    try:
        yield fixture
    finally:
        await fixture.close()


async def dropped(nodes: ReplicationFixture) -> list[str]:
    """Wait until the holder is done, and return what it keeps for the writer."""
    folder = nodes.hosts[HOLDER].folder_of(WRITER)
    await until(lambda: not os.path.exists(f"{folder}/tree") and not nodes.failover.status()["taking_over"])
    return sorted(os.listdir(folder))


async def test_what_only_the_replicas_had_is_persisted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        base = await nodes.writer.hold(b"/d/replaced", b"before")
        removed = await nodes.writer.hold(b"/d/removed", b"before")
        nodes.writer.write(PATH, OURS)
        nodes.writer.write_over(b"/d/replaced", b"ours", base)
        hide(nodes.writer.upper, b"/d/removed", removed)
        await nodes.replicated(PATH, b"/d/replaced", b"/d/removed")
        await nodes.leave()
        assert await dropped(nodes) == ["taken.db"]
        assert await nodes.writer.origin_bytes(PATH) == OURS
        assert await nodes.writer.origin_bytes(b"/d/replaced") == b"ours"
        assert await nodes.writer.origin_bytes(b"/d/removed") is None
        assert nodes.persisted == [WRITER] and nodes.failover.files_persisted == 2


@pytest.mark.expected_warnings("headrace.writeback.conflicts", "headrace.writeback.removal")
async def test_what_others_put_at_the_origin_meanwhile_stays(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        base = await nodes.writer.hold(PATH, b"before")
        removed = await nodes.writer.hold(b"/d/removed", b"before")
        nodes.writer.write_over(PATH, OURS, base)
        hide(nodes.writer.upper, b"/d/removed", removed)
        await nodes.replicated(PATH, b"/d/removed")
        for key in ("d/f", "d/removed"):
            nodes.writer.memory.hold(key, b"theirs")
        await nodes.leave()
        await dropped(nodes)
        assert await nodes.writer.origin_bytes(PATH) == b"theirs"
        assert await nodes.writer.origin_bytes(b"/d/removed") == b"theirs"
        await nodes.writer.listed(PATH)
        directory = await nodes.writer.namespace.resolver.resolve(b"/d")
        names = {entry.name for entry in nodes.writer.store.index.children(directory.id)}
        (kept,) = [name for name in names if b".conflict-" in name]
        assert await nodes.writer.origin_bytes(b"/d/" + kept) == OURS


async def test_the_bytes_of_another_holder_are_no_conflict(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        nodes.writer.memory.hold("d/f", OURS)
        await nodes.leave()
        await dropped(nodes)
        await nodes.writer.listed(PATH)
        directory = await nodes.writer.namespace.resolver.resolve(b"/d")
        assert [entry.name for entry in nodes.writer.store.index.children(directory.id)] == [b"f"]


@pytest.mark.expected_warnings("headrace.writeback.replication.failover", "headrace.writeback.executor")
async def test_nothing_is_dropped_before_the_origin_has_it(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        nodes.holder.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=range(3))
        await nodes.leave()
        await until(lambda: nodes.holder.origin.count("put") == 2)
        assert nodes.replica(PATH) == OURS and nodes.persisted == []
        await dropped(nodes)
        assert await nodes.writer.origin_bytes(PATH) == OURS and nodes.persisted == [WRITER]


async def test_replicas_that_do_not_count_are_dropped_unpersisted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        await nodes.records.put(WRITER, {"n2"})
        await nodes.leave()
        await dropped(nodes)
        assert await nodes.writer.origin_bytes(PATH) is None and nodes.persisted == []


async def test_a_writer_that_is_back_in_time_keeps_its_files(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        await nodes.leave()
        nodes.view = view_of(WRITER, HOLDER)
        nodes.failover.on_view()  # before the first task of the take-over runs
        assert nodes.failover.status()["taking_over"] == []
        assert nodes.replica(PATH) == OURS and await nodes.writer.origin_bytes(PATH) is None


@pytest.mark.parametrize("step", ["failover.persisted", "failover.cleared", "persist.put", "persist.noted"])
@pytest.mark.expected_warnings("headrace.writeback.replication.failover", "a change can't be persisted")
async def test_a_failover_that_breaks_off_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    breaks = [step]

    def hit(name: str) -> None:
        if name in breaks:
            breaks.remove(name)
            raise RuntimeError(name)

    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        monkeypatch.setattr(failpoint, "hit", hit)
        await nodes.leave()
        assert await dropped(nodes) == ["taken.db"] and not breaks
        await nodes.writer.listed(PATH)
        directory = await nodes.writer.namespace.resolver.resolve(b"/d")
        assert [entry.name for entry in nodes.writer.store.index.children(directory.id)] == [b"f"]
        assert await nodes.writer.origin_bytes(PATH) == OURS


async def test_a_replica_that_dies_while_it_drops_its_files_brings_none_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node has removed a persisted file meanwhile. The journal may be deleted first."""
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        folder, remove_tree = nodes.hosts[HOLDER].folder_of(WRITER), SafePath.remove_tree
        deaths: list[bytes] = []

        def die(path: SafePath) -> None:
            if deaths or path.root.path != os.fsencode(folder) or path.path not in (b"/tree", b"/work"):
                remove_tree(path)
                return
            deaths.append(path.path)
            for name in os.listdir(folder):
                if name.startswith("known.db"):
                    os.unlink(f"{folder}/{name}")
            nodes.writer.memory.delete("d/f")
            raise RuntimeError("the node dies")

        monkeypatch.setattr(SafePath, "remove_tree", die)
        await nodes.leave()
        await dropped(nodes)
        assert deaths and await nodes.writer.origin_bytes(PATH) is None


async def test_the_writer_learns_the_versions_of_its_own_files(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        status = nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        await nodes.leave()
        await dropped(nodes)
        (file,) = (await nodes.failover.report(WRITER, done=False)).files
        assert (file.path, file.inode, file.ctime_ns, file.size_bytes) == (
            *(PATH, status.st_ino, status.st_ctime_ns, len(OURS)),
        )
        assert file.version == await nodes.writer.origin_version(PATH)
        assert (await nodes.failover.report(WRITER, done=True)).files == []
        assert (await nodes.failover.report(WRITER, done=False)).files == []


@pytest.mark.expected_warnings("headrace.writeback.replication.failover", "headrace.writeback.executor")
async def test_the_writer_learns_of_files_that_take_more_than_half_of_the_holders_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder dies after the first file, before it records that. Its next run must not demote that file, or the
    report would lack it."""
    settings = WriteBackSettings(delay_s=1.0, timeout_s=20.0, layer_bytes_max=1)
    monkeypatch.setattr(WriteBackSettings, "of", lambda config: settings)
    record, unrecorded = failover._record_persisted, [True]
    monkeypatch.setattr(
        failover, "_record_persisted", lambda folder: (unrecorded and unrecorded.pop()) or record(folder)
    )
    async with cluster(tmp_path) as nodes:
        await nodes.holder.hold(b"/d/other", b"theirs")
        nodes.writer.write(PATH, OURS)
        nodes.writer.write(b"/d/second", b"second")
        await nodes.replicated(PATH, b"/d/second")
        nodes.holder.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=range(1, 7))
        await nodes.leave()
        await dropped(nodes)
        files = (await nodes.failover.report(WRITER, done=False)).files
        assert {file.path for file in files} == {PATH, b"/d/second"}


async def test_a_writer_that_was_not_persisted_learns_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        folder = nodes.hosts[HOLDER].folder_of(WRITER)
        os.makedirs(folder)
        SyncJournal(f"{folder}/taken.db").close()
        assert (await nodes.failover.report(WRITER, done=False)).files == []


# ------------------------------------------------------------ a writer that is back while its files are persisted


class HeldPuts:
    """Puts whose objects are at the origin, and whose answers wait. has_reached: of the first. may_answer: of all."""

    def __init__(self, nodes: ReplicationFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_reached, self.may_answer = asyncio.Event(), asyncio.Event()
        self.count = 0
        put = nodes.writer.memory.put

        async def hold(*arguments: Any, **options: Any) -> ObjectInfo:
            self.count += 1
            info = await put(*arguments, **options)
            self.has_reached.set()
            await self.may_answer.wait()
            return info

        monkeypatch.setattr(nodes.writer.memory, "put", hold)


def is_back(nodes: ReplicationFixture) -> None:
    nodes.view = view_of(WRITER, HOLDER)
    nodes.failover.on_view()


async def assert_no_conflict(nodes: ReplicationFixture) -> None:
    """The writer persists what is left, and keeps nothing under another name."""
    async with nodes.writer.running(nodes.writer.write_back()) as write:
        await write.persist(b"/")
        assert nodes.writer.kept() == []


@pytest.mark.parametrize("first", ["view", "report"])
async def test_a_put_in_flight_is_reported_to_a_writer_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """The view may have the writer before or after its question comes."""
    monkeypatch.setattr("headrace.writeback.executor.CONCURRENCY_MAX", 1)
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        nodes.writer.write(b"/d/second", b"second")
        await nodes.replicated(PATH, b"/d/second")
        puts = HeldPuts(nodes, monkeypatch)
        await nodes.leave()
        await puts.has_reached.wait()
        if first == "view":
            is_back(nodes)
        async with OwnedTasks() as tasks:
            report = tasks.start(nodes.failover.report(WRITER, done=False))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not report.done()
            if first == "report":
                is_back(nodes)
            puts.may_answer.set()
            files = (await report).files
        assert [file.version for file in files] == [await nodes.writer.origin_version(files[0].path)]
        assert puts.count == 1, "no other put began"
        assert nodes.persisted == [] and nodes.failover.files_persisted == 1
        assert nodes.replica(PATH) == OURS and nodes.replica(b"/d/second") == b"second"
        assert nodes.failover.status()["taking_over"] == []
        await nodes.failback.ask()
        await assert_no_conflict(nodes)
        assert await nodes.writer.origin_bytes(PATH) == OURS
        assert await nodes.writer.origin_bytes(b"/d/second") == b"second"


async def test_a_put_that_does_not_end_delays_the_report_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        puts = HeldPuts(nodes, monkeypatch)
        await nodes.leave()
        await puts.has_reached.wait()
        is_back(nodes)
        began_s = monotonic_s()
        assert (await nodes.failover.report(WRITER, done=False)).files == []
        assert monotonic_s() - began_s == pytest.approx(PUTS_END_S)
        assert nodes.replica(PATH) == OURS and nodes.persisted == []


async def test_a_writer_that_leaves_again_at_once_is_persisted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        puts = HeldPuts(nodes, monkeypatch)
        await nodes.leave()
        await puts.has_reached.wait()
        is_back(nodes)
        await nodes.leave()
        assert nodes.failover.status()["taking_over"] == [WRITER]
        puts.may_answer.set()
        assert await dropped(nodes) == ["taken.db"]
        assert nodes.persisted == [WRITER] and await nodes.writer.origin_bytes(PATH) == OURS


async def test_a_put_that_ends_just_in_time_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failover is cancelled while it stops after its last put."""
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, OURS)
        await nodes.replicated(PATH)
        puts, stop = HeldPuts(nodes, monkeypatch), WriteBack.stop
        await nodes.leave()
        await puts.has_reached.wait()
        failover = nodes.failover._failovers[WRITER].task
        assert failover is not None

        async def slow_stop(write: WriteBack) -> None:
            await until(failover.cancelling)
            await stop(write)

        with monkeypatch.context() as patches:
            patches.setattr(WriteBack, "stop", slow_stop)
            is_back(nodes)
            puts.may_answer.set()
            files = (await nodes.failover.report(WRITER, done=False)).files
        assert [file.path for file in files] == [PATH]
        assert files[0].version == await nodes.writer.origin_version(PATH)
        assert nodes.persisted == [] and nodes.failover.files_persisted == 1
        await nodes.failback.ask()
        await assert_no_conflict(nodes)
