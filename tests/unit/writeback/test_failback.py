"""A writer that is back asks what others persisted in its place, and goes on from there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import PeerError
from headrace.base.model import Version
from headrace.base.tasks import OwnedTasks
from headrace.ring.view import NodeInfo
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire.peer_messages import FailedOverFile
from headrace.writeback.replication import failback, failover
from headrace.writeback.sync_journal import JournalRecord, SyncJournal
from tests.unit.writeback.replication_fixture import HOLDER, WRITER, ReplicationFixture, view_of

PATH = b"/d/f"
pytestmark = pytest.mark.expected_warnings("headrace.writeback.replication.failover")


@asynccontextmanager
async def persisted_elsewhere(folder: Path) -> AsyncIterator[ReplicationFixture]:
    """The holder persisted the writer's file, and the writer is back."""
    nodes = ReplicationFixture(folder)
    nodes.writer.write(PATH, b"ours")
    await nodes.replicated(PATH)
    await nodes.leave()
    await until(lambda: nodes.persisted == [WRITER])
    nodes.view = view_of(WRITER, HOLDER)
    try:
        yield nodes
    finally:
        await nodes.close()


async def test_a_file_that_is_still_the_same_is_clean(tmp_path: Path) -> None:
    async with persisted_elsewhere(tmp_path) as nodes:
        await nodes.failback.ask()
        writer = nodes.writer
        row = writer.journal.get(PATH)
        assert row is not None and row.describes(writer.upper.at(PATH).lstat())
        assert row.version == await writer.origin_version(PATH)
        assert (await nodes.failover.report(WRITER, done=False)).files == []  # the holder forgot them


async def test_a_file_that_was_written_again_replaces_what_the_holder_put(tmp_path: Path) -> None:
    """Also where the writer learns of it only by the conflict: it was cut off, and lived."""
    async with persisted_elsewhere(tmp_path) as nodes:
        nodes.writer.write(PATH, b"ours, newer")
        assert await nodes.writer.uploads.put(PATH) is not None
        assert await nodes.writer.origin_bytes(PATH) == b"ours, newer"
        assert nodes.writer.kept() == [] and nodes.writer.names(b"/d") == [b"f"]


@pytest.mark.expected_warnings("headrace.writeback.conflicts")
async def test_what_others_put_over_the_holders_version_stays(tmp_path: Path) -> None:
    async with persisted_elsewhere(tmp_path) as nodes:
        nodes.writer.memory.hold("d/f", b"theirs")
        nodes.writer.write(PATH, b"ours, newer")
        assert await nodes.writer.uploads.put(PATH) is None
        (conflict,) = nodes.writer.kept()
        assert nodes.writer.content(conflict.kept) == b"ours, newer"
        assert await nodes.writer.origin_bytes(PATH) == b"theirs"


async def test_a_newer_upload_of_the_writer_is_not_forgotten(tmp_path: Path) -> None:
    async with persisted_elsewhere(tmp_path) as nodes:
        (file,) = (await nodes.failover.report(WRITER, done=False)).files
        newer = JournalRecord(PATH, file.inode, file.ctime_ns + 1, 4, file.version)
        nodes.writer.journal.note(newer)
        await nodes.failback.ask()
        assert nodes.writer.journal.get(PATH) == newer


@pytest.mark.parametrize("newer", ["the holder's", "the writer's"])
async def test_a_clock_that_was_set_back_makes_no_conflict(tmp_path: Path, newer: str) -> None:
    """By the times the older version seems to be the newer one. The file became a needless conflict copy."""
    async with persisted_elsewhere(tmp_path) as nodes:
        writer = nodes.writer
        (file,) = (await nodes.failover.report(WRITER, done=False)).files
        own = JournalRecord(PATH, file.inode, file.ctime_ns + 10, 6, Version(6, 1, '"older"'))
        if newer == "the writer's":
            version = writer.memory.hold("d/f", b"mine")
            own = JournalRecord(PATH, file.inode, file.ctime_ns - 10, 4, version)
        writer.journal.note(own)
        await nodes.failback.ask()
        writer.write(PATH, b"ours, newest")
        assert await writer.uploads.put(PATH) is not None
        assert await writer.origin_bytes(PATH) == b"ours, newest"
        assert writer.kept() == [] and writer.names(b"/d") == [b"f"]


async def test_the_holder_forgets_only_what_is_on_the_writers_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("the test says so")

    async with persisted_elsewhere(tmp_path) as nodes:
        with monkeypatch.context() as patch:
            patch.setattr(nodes.writer.journal, "sync", fail)
            await nodes.failback.ask()
        files: list[FailedOverFile] = (await nodes.failover.report(WRITER, done=False)).files
        assert [file.path for file in files] == [PATH]


async def test_a_node_that_does_not_answer_is_skipped(tmp_path: Path) -> None:
    """Its upload is recognised by the bytes."""
    async with persisted_elsewhere(tmp_path) as nodes:
        nodes.peers.away.add(HOLDER)
        await nodes.failback.ask()
        assert nodes.writer.journal.get(PATH) is None
        assert await nodes.writer.uploads.put(PATH) is not None
        assert nodes.writer.kept() == [] and await nodes.writer.origin_bytes(PATH) == b"ours"


async def test_a_conflict_waits_for_a_node_that_does_not_answer_yet(tmp_path: Path) -> None:
    """A writer that was cut off, or paused, may reach the origin before it reaches the holder."""
    async with persisted_elsewhere(tmp_path) as nodes, OwnedTasks() as tasks:
        nodes.writer.write(PATH, b"ours, newer")
        nodes.peers.away.add(HOLDER)
        putting = tasks.start(nodes.writer.uploads.put(PATH))
        await pass_time(failback.SILENT_LIMIT_S / 2)
        assert not putting.done()
        nodes.peers.away.clear()
        assert await putting is not None
        assert await nodes.writer.origin_bytes(PATH) == b"ours, newer"
        assert nodes.writer.kept() == []


@pytest.mark.expected_warnings("headrace.writeback.conflicts")
async def test_conflicts_wait_once_for_a_node_that_never_answers(tmp_path: Path) -> None:
    async with persisted_elsewhere(tmp_path) as nodes:
        nodes.peers.away.add(HOLDER)
        began_s = monotonic_s()
        for content in (b"ours, newer", b"ours, newest of all"):
            nodes.writer.memory.hold("d/f", b"theirs" + content)
            nodes.writer.write(PATH, content)
            assert await nodes.writer.uploads.put(PATH) is None
        assert len(nodes.writer.kept()) == 2
        assert failback.SILENT_LIMIT_S <= monotonic_s() - began_s < failback.SILENT_LIMIT_S * 1.5


@pytest.mark.parametrize("origin_has", ["the second version", "a version of the silent member"])
async def test_a_second_version_is_tried_before_a_silent_member_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin_has: str
) -> None:
    """The put waited for 30 s, although the node knew the answer from an earlier report. If the origin has neither
    version, the silent member is waited for."""
    async with persisted_elsewhere(tmp_path) as nodes, OwnedTasks() as tasks:
        writer = nodes.writer
        (file,) = (await nodes.failover.report(WRITER, done=False)).files
        writer.journal.note(JournalRecord(PATH, file.inode, file.ctime_ns + 10, 6, Version(6, 1, '"older"')))
        await nodes.failback.ask()
        nodes.view = view_of(WRITER, HOLDER, "silent")
        nodes.peers.away.add("silent")
        if origin_has != "the second version":
            version = writer.memory.hold("d/f", b"from silent")
            query = nodes.peers.query_failover
            left = [[FailedOverFile(PATH, file.inode, file.ctime_ns + 20, 11, version)]]

            async def with_silent(
                node: NodeInfo, of: str, *, done: bool, deadline: Deadline
            ) -> list[FailedOverFile]:
                if node.id != "silent" or "silent" in nodes.peers.away:
                    return await query(node, of, done=done, deadline=deadline)
                if done:
                    left.clear()
                return left[0] if left else []

            monkeypatch.setattr(nodes.peers, "query_failover", with_silent)
        writer.write(PATH, b"ours, newest")
        began_s = monotonic_s()
        putting = tasks.start(writer.uploads.put(PATH))
        if origin_has != "the second version":
            await pass_time(failback.SILENT_LIMIT_S / 2)
            assert not putting.done()
            nodes.peers.away.clear()
        assert await putting is not None
        if origin_has == "the second version":
            assert monotonic_s() - began_s < failback.RETRY_S
        assert await writer.origin_bytes(PATH) == b"ours, newest"
        assert writer.kept() == [] and writer.names(b"/d") == [b"f"]


async def test_a_node_that_reports_files_without_end_is_left_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that starts, or was cut off, waits for the reports before it persists anything."""
    async with persisted_elsewhere(tmp_path) as nodes:
        (file,) = (await nodes.failover.report(WRITER, done=False)).files
        reports: list[bytes] = []

        async def endless(
            node: NodeInfo, writer: str, *, done: bool, deadline: Deadline
        ) -> list[FailedOverFile]:
            await pass_time(failback.QUERY_LIMIT_S / 2)
            if done:
                return []
            reports.append(b"/d/%d" % len(reports))
            return [FailedOverFile(reports[-1], file.inode, file.ctime_ns, file.size_bytes, file.version)]

        monkeypatch.setattr(nodes.peers, "query_failover", endless)
        began_s = monotonic_s()
        await nodes.failback.ask()
        assert monotonic_s() - began_s < failback.REPORTS_LIMIT_S + 2 * failback.QUERY_LIMIT_S
        assert all(nodes.writer.journal.get(path) is not None for path in reports)


async def test_many_nodes_that_do_not_answer_are_waited_for_at_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that starts, or was cut off, waits before it persists anything."""
    async with persisted_elsewhere(tmp_path) as nodes:
        nodes.view = view_of(WRITER, *(f"silent-{number}" for number in range(20)), HOLDER)
        query = nodes.peers.query_failover

        async def slow_query(
            node: NodeInfo, writer: str, *, done: bool, deadline: Deadline
        ) -> list[FailedOverFile]:
            if node.id == HOLDER:
                return await query(node, writer, done=done, deadline=deadline)
            await pass_time(deadline.left_s())
            raise PeerError(f"node {node.id}", why="the test says so")

        monkeypatch.setattr(nodes.peers, "query_failover", slow_query)
        began_s = monotonic_s()
        await nodes.failback.ask()
        assert monotonic_s() - began_s < 2 * failback.QUERY_LIMIT_S
        assert nodes.writer.journal.get(PATH) is not None


async def test_a_cancelled_query_is_none_for_those_who_wait_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the file of the next in the queue becomes a needless conflict copy."""
    async with persisted_elsewhere(tmp_path) as nodes, OwnedTasks() as tasks:
        waits, answers = asyncio.Event(), asyncio.Event()
        query = nodes.peers.query_failover

        async def slow_query(*words: Any, **options: Any) -> list[FailedOverFile]:
            waits.set()
            await answers.wait()
            return await query(*words, **options)

        monkeypatch.setattr(nodes.peers, "query_failover", slow_query)
        first = tasks.start(nodes.failback.ask())
        await waits.wait()
        waits.clear()
        second, third = tasks.start(nodes.failback.ask()), tasks.start(nodes.failback.ask())
        await pass_time(0.01)
        first.cancel()
        await waits.wait()  # the second queries
        second.cancel()
        await asyncio.wait([first, second])
        answers.set()
        await third
        row = nodes.writer.journal.get(PATH)
        assert row is not None and row.version == await nodes.writer.origin_version(PATH)


@pytest.mark.parametrize(("limit", "value"), [("REPORT_FILES_MAX", 2), ("REPORT_BYTES_MAX", 600)])
async def test_all_files_are_reported_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """A report of long paths is larger than an answer may be, also with fewer files."""
    monkeypatch.setattr(failover, limit, value)
    paths = [b"/d/%d-" % number + b"n" * 200 for number in range(5)]
    nodes = ReplicationFixture(tmp_path)
    try:
        for path in paths:
            nodes.writer.write(path, path)
        await nodes.replicated(*paths)
        await nodes.leave()
        await until(lambda: nodes.persisted == [WRITER])
        nodes.view = view_of(WRITER, HOLDER)
        assert len((await nodes.failover.report(WRITER, done=False)).files) == 2
        await nodes.failback.ask()
        for path in paths:
            row = nodes.writer.journal.get(path)
            assert row is not None and row.version == await nodes.writer.origin_version(path)
        assert (await nodes.failover.report(WRITER, done=False)).files == []
    finally:
        await nodes.close()


async def test_a_file_that_was_persisted_after_the_report_is_not_forgotten_with_it(tmp_path: Path) -> None:
    """The writer left again before it had recorded the report."""
    async with persisted_elsewhere(tmp_path) as nodes:
        (file,) = (await nodes.failover.report(WRITER, done=False)).files
        with contextlib.closing(SyncJournal(f"{nodes.hosts[HOLDER].folder_of(WRITER)}/taken.db")) as table:
            table.note(JournalRecord(b"/d/later", 7, 8, 9, file.version))
        await nodes.failover.report(WRITER, done=True)
        files = (await nodes.failover.report(WRITER, done=False)).files
        assert [file.path for file in files] == [b"/d/later"]
