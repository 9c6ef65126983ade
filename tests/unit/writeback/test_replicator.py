"""Replicas of unpersisted files: the same bytes and conditions as at their writer, in the order of its changes."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.base.clock import monotonic_s
from headrace.base.errors import ClusterUnavailableError, PeerError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.overlay.hiding import hide
from headrace.overlay.marks import is_whiteout, make_removed
from headrace.overlay.snapshot import SMALL_BYTES_MAX, Snapshot, take
from headrace.overlay.upper import Upper
from headrace.ring.view import NodeInfo, next_view
from headrace.testing.waiting import until
from headrace.wire.peer_messages import Replicate
from headrace.writeback.replication import replicator, snapshots
from headrace.writeback.replication.placement import choose_replicas
from headrace.writeback.replication.replica_layer import copy_of
from headrace.writeback.replication.replicated import ReplicaObserver, ReplicatedDurability
from tests.unit.writeback.failing_disk import FailingDirectory
from tests.unit.writeback.replication_fixture import HOLDER, WRITER, ReplicationFixture, view_of

PATH = b"/d/f"


@asynccontextmanager
async def cluster(folder: Path, *nodes: str) -> AsyncIterator[ReplicationFixture]:
    fixture = ReplicationFixture(folder, nodes=(WRITER, HOLDER, *nodes))
    try:
        yield fixture
    finally:
        await fixture.close()


@pytest.mark.parametrize("size_bytes", [0, 5, SMALL_BYTES_MAX + 1, 2 * BLOCK_SIZE_BYTES + 5])
async def test_a_secured_file_is_the_same_on_the_holder(tmp_path: Path, size_bytes: int) -> None:
    data = random.Random(size_bytes).randbytes(size_bytes)
    async with cluster(tmp_path) as nodes:
        base = await nodes.writer.hold(PATH, b"before")
        status = nodes.writer.write_over(PATH, data, base)
        await nodes.replicator.secure(PATH, 2)
        assert nodes.replica(PATH) == data
        replica = Upper(nodes.hosts[HOLDER].folder_of(WRITER))
        assert replica.base_of(PATH) == base
        copy = replica.at(PATH).lstat()
        assert (copy.st_mode, copy.st_mtime_ns) == (status.st_mode, status.st_mtime_ns)
        assert copy_of(replica.at(PATH)) == (status.st_ino, status.st_ctime_ns, size_bytes)
        await until(lambda: nodes.replicator.status()["copies_on"] == [HOLDER])


async def test_a_removal_is_replicated_with_the_version_that_it_removes(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        base = await nodes.writer.hold(PATH, b"before")
        nodes.writer.upper.at(b"/d").make_directories(0o755)
        hide(nodes.writer.upper, PATH, base)
        await nodes.replicator.secure(PATH, 2)
        replica = Upper(nodes.hosts[HOLDER].folder_of(WRITER))
        assert is_whiteout(replica.at(PATH).lstat()) and replica.base_of(PATH) == base


class UnreadFiles:
    """Files that the disk can't read: `take` fails for these paths. attempts: how often each was tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.paths: set[bytes] = set()
        self.attempts: Counter[bytes] = Counter()
        self._number, self._take = number, take
        monkeypatch.setattr(snapshots, "take", self._fail)

    def _fail(self, path: bytes, *arguments: Any) -> Snapshot:
        if path in self.paths:
            self.attempts[path] += 1
            raise OSError(self._number, os.strerror(self._number))
        return self._take(path, *arguments)


@pytest.mark.expected_warnings("headrace.writeback.replication.replicator")
@pytest.mark.parametrize("why", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EACCES])
async def test_a_file_that_can_not_be_read_does_not_count_as_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """The close would succeed without a replica of the file, and the holder would delete what it has."""
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, b"old")
        await nodes.replicator.secure(PATH, 2)
        nodes.writer.write(PATH, b"newer")
        unread = UnreadFiles(monkeypatch, why)
        unread.paths = {PATH}
        with pytest.raises(StoreError):
            await nodes.replicator.secure(PATH, 2)
        assert nodes.replica(PATH) == b"old"
        unread.paths = set()
        await until(lambda: nodes.replica(PATH) == b"newer")  # without another close


@pytest.mark.expected_warnings("a name was not replicated")
async def test_a_file_that_can_not_be_read_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files of one batch failed together, as long as one of them did."""
    paths = [b"/d/%d" % number for number in range(5)]
    async with cluster(tmp_path) as nodes:
        await nodes.replicated()
        unread = UnreadFiles(monkeypatch, errno.EIO)
        unread.paths = {paths[2]}
        for path in paths:
            nodes.writer.write(path, path)
        secured = await asyncio.gather(
            *(nodes.replicator.secure(path, 2) for path in paths), return_exceptions=True
        )
        assert [isinstance(error, StoreError) for error in secured] == [path == paths[2] for path in paths]
        await until(lambda: unread.attempts[paths[2]] > 3)
        assert caplog.text.count("a name was not replicated") == 1
        unread.paths = set()
        await until(lambda: nodes.replica(paths[2]) == paths[2])


@pytest.mark.expected_warnings("a name was not replicated")
async def test_a_complete_list_without_a_file_deletes_no_replica_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The replica may be the only readable copy. Others are replicated meanwhile."""
    async with cluster(tmp_path) as nodes:
        for path in (PATH, b"/d/removed", b"/d/persisted"):
            nodes.writer.write(path, b"ours")
            await nodes.replicator.secure(path, 2)
        await nodes.writer.uploads.put(b"/d/persisted")
        unread = UnreadFiles(monkeypatch, errno.EIO)
        unread.paths = {PATH}
        restart_list(nodes)
        nodes.writer.upper.at(b"/d/removed").unlink()  # nobody reports it
        await until(lambda: unread.attempts[PATH] > 3)
        nodes.writer.write(b"/d/other", b"other")
        await nodes.replicator.secure(b"/d/other", 2)
        assert nodes.replica(PATH) == b"ours" and nodes.replica(b"/d/other") == b"other"
        nodes.replicator.note([b"/d/persisted"])
        await until(lambda: nodes.replica(b"/d/persisted") is None)
        unread.paths = set()
        await until(lambda: nodes.replica(b"/d/removed") is None)
        assert nodes.replica(PATH) == b"ours"
        assert caplog.text.count("a name was not replicated") == 1


def restart_list(nodes: ReplicationFixture) -> None:
    """Have the stream send a complete list again."""
    (stream,) = nodes.replicator._streams.values()
    stream.has_caught_up.clear()
    stream._has_begun = False


@pytest.mark.expected_warnings("a name was not replicated")
async def test_a_complete_list_without_a_directory_deletes_no_replica_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(tmp_path) as nodes:
        for path in (PATH, b"/e/f", b"/removed"):
            nodes.writer.write(path, b"ours")
            await nodes.replicator.secure(path, 2)
        failing = FailingDirectory(monkeypatch, b"/d")
        nodes.writer.upper.at(b"/removed").unlink()
        restart_list(nodes)
        await until(lambda: failing.attempts > 3)
        nodes.writer.write(b"/other", b"other")
        await nodes.replicator.secure(b"/other", 2)
        with pytest.raises(StoreError):
            await ReplicatedDurability(
                nodes.writer.upper, nodes.writer.layer.modes, nodes.replicator, note=lambda paths: None
            ).secure(b"/")
        assert nodes.replica(PATH) == b"ours" and nodes.replica(b"/removed") == b"ours"
        failing.is_mended = True
        await until(lambda: nodes.replica(b"/removed") is None)
        assert nodes.replica(PATH) == b"ours" and nodes.replica(b"/e/f") == b"ours"
        assert caplog.text.count("a name was not replicated") == 1


async def test_the_holder_is_told_in_the_order_of_the_changes(tmp_path: Path) -> None:
    paths = [b"/d/%d" % number for number in (3, 1, 4, 0, 5, 9, 2, 6)]
    async with cluster(tmp_path) as nodes:
        await nodes.replicated()
        nodes.peers.sent.clear()
        for path in paths:
            nodes.writer.write(path, path)
            nodes.replicator.note([path])
        await nodes.replicator.secure(paths[-1], 2)
        assert nodes.peers.snapshots_of(HOLDER) == paths
        assert [nodes.replica(path) for path in paths] == paths


async def test_a_renamed_file_is_never_missing_on_the_holder(tmp_path: Path) -> None:
    """The new name comes before the old one goes, in whatever order they were noted."""
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(b"/d/old", b"ours")
        await nodes.replicated(b"/d/old")
        nodes.writer.upper.at(b"/d/old").rename(nodes.writer.upper.at(b"/d/new"))
        nodes.replicator.note([b"/d/old", b"/d/new"])
        await until(lambda: nodes.replica(b"/d/old") is None)
        assert nodes.peers.snapshots_of(HOLDER)[-2:] == [b"/d/new", b"/d/old"]
        assert nodes.replica(b"/d/new") == b"ours"


@pytest.mark.parametrize("is_at_origin", [False, True])
async def test_a_file_of_a_directory_that_moved_away_and_back_is_on_the_holder(
    tmp_path: Path, is_at_origin: bool
) -> None:
    """The holder deletes what is below a directory that went. The file is as it was sent before."""
    async with cluster(tmp_path) as nodes:
        upper, layer = nodes.writer.upper, nodes.writer.layer
        observer = ReplicaObserver(upper, layer.modes, nodes.replicator)
        nodes.writer.write(b"/d/sub/f", b"ours")
        observer.on_changed([b"/d"], 1)
        await nodes.replicated(b"/d/sub/f")
        upper.at(b"/d").rename(upper.at(b"/e"))
        if is_at_origin:
            hide(upper, b"/d", None)
        observer.on_changed([b"/d", b"/e"], 1)
        await until(lambda: nodes.replica(b"/e/sub/f") == b"ours" and nodes.replica(b"/d/sub/f") is None)
        if is_at_origin:
            upper.at(b"/d").unlink()
        upper.at(b"/e").rename(upper.at(b"/d"))
        observer.on_changed([b"/e", b"/d"], 1)
        await nodes.replicator.secure(b"/d/sub/f", 2)
        assert nodes.replica(b"/d/sub/f") == b"ours"


async def test_a_moved_directory_leaves_no_new_file_at_its_old_place_on_the_holder(tmp_path: Path) -> None:
    """The origin has the directory, so no session reports it when a file is created in it. It stays as a removed
    directory."""
    async with cluster(tmp_path) as nodes:
        upper, layer = nodes.writer.upper, nodes.writer.layer
        observer = ReplicaObserver(upper, layer.modes, nodes.replicator)
        await nodes.replicated()
        nodes.writer.write(b"/d/sub/f", b"ours")
        observer.on_changed([b"/d/sub/f"], 1)
        await nodes.replicator.secure(b"/d/sub/f", 2)
        removed = upper.new()
        make_removed(removed)
        upper.at(b"/d/sub").rename(upper.at(b"/e"))
        removed.rename(upper.at(b"/d/sub"))
        observer.on_changed([b"/d/sub", b"/e"], 1)
        for path in (b"/d/sub", b"/e/f"):
            await nodes.replicator.secure(path, 2)
        assert (nodes.replica(b"/d/sub/f"), nodes.replica(b"/e/f")) == (None, b"ours")


@pytest.mark.parametrize("size_bytes", [SMALL_BYTES_MAX, 64 << 10])
async def test_many_files_that_are_no_longer_small_are_sent_in_several_requests(
    tmp_path: Path, size_bytes: int
) -> None:
    """A node accepts requests of 4 MiB. A larger one would end the connection, again and again."""
    paths = [b"/d/%d" % number for number in range((9 << 20) // size_bytes)]
    chance = random.Random(size_bytes)
    contents = {path: chance.randbytes(size_bytes) for path in paths}
    async with cluster(tmp_path) as nodes:
        for path in paths[::2]:
            nodes.writer.write(path, contents[path])
        await nodes.replicated(*paths[::2])
        for path in paths[1::2]:
            nodes.writer.write(path, contents[path])
        nodes.replicator.note(paths[1::2])
        await nodes.replicator.secure(paths[-1], 2)
        assert all(nodes.replica(path) == contents[path] for path in paths)


async def test_a_moved_directory_of_many_files_is_sent_in_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its names are gone at the same time. Here a request has a hundredth of the bytes."""
    monkeypatch.setattr("tests.unit.writeback.replication_fixture.REQUEST_BYTES_MAX", 40 << 10)
    monkeypatch.setattr(replicator, "REQUEST_BYTES", 30 << 10)
    monkeypatch.setattr(replicator, "BATCH_NAMES", 10)
    names = [b"%d-" % number + b"n" * 200 for number in range(300)]
    async with cluster(tmp_path) as nodes:
        upper, layer = nodes.writer.upper, nodes.writer.layer
        observer = ReplicaObserver(upper, layer.modes, nodes.replicator)
        for name in names:
            nodes.writer.write(b"/d/" + name, b"")
        await nodes.replicated(b"/d/" + names[-1])
        removed = upper.new()
        make_removed(removed)
        upper.at(b"/d").rename(upper.at(b"/e"))
        removed.rename(upper.at(b"/d"))
        observer.on_changed([b"/d", b"/e"], 1)
        replica = Upper(nodes.hosts[HOLDER].folder_of(WRITER))
        await nodes.replicator.secure(b"/d", 2)
        await until(lambda: len(replica.names(b"/e")) == len(names))
        assert len(replica.names(b"/d")) == 0


async def test_a_file_whose_checksums_fit_into_no_request_keeps_no_other_from_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request would end the connection, again and again. What the holder has of it is older than the origin's."""
    monkeypatch.setattr(replicator, "FILE_BYTES_MAX", 2 * BLOCK_SIZE_BYTES)
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, bytes(2 * BLOCK_SIZE_BYTES))
        await nodes.replicated(PATH)
        assert nodes.replica(PATH) is not None
        nodes.peers.fetched.clear()
        nodes.writer.write(PATH, bytes(2 * BLOCK_SIZE_BYTES + 1))
        nodes.writer.write(b"/d/other", b"ours")
        nodes.replicator.note([PATH, b"/d/other"])
        with pytest.raises(StoreError, match="too large for a replica"):
            await nodes.replicator.secure(PATH, 2)
        await nodes.replicator.secure(b"/d/other", 2)
        assert (nodes.replica(PATH), nodes.replica(b"/d/other")) == (None, b"ours")
        assert nodes.peers.fetched == []
        await nodes.replicator.stop()
        nodes.replicator.on_view()
        await until(lambda: nodes.replicator._streams)
        await nodes.replicator.secure(b"/d/other", 2)
        (stream,) = nodes.replicator._streams.values()
        await stream.has_caught_up.wait()


async def test_only_changed_blocks_of_a_large_file_are_fetched_again(tmp_path: Path) -> None:
    data = bytearray(random.Random(1).randbytes(4 * BLOCK_SIZE_BYTES))
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, bytes(data))
        await nodes.replicated(PATH)
        nodes.peers.fetched.clear()
        data[2 * BLOCK_SIZE_BYTES + 5] ^= 1
        nodes.writer.write(PATH, bytes(data))
        await nodes.replicator.secure(PATH, 2)
        assert nodes.replica(PATH) == bytes(data)
        assert nodes.peers.fetched == [(2 * BLOCK_SIZE_BYTES, 3 * BLOCK_SIZE_BYTES)]


async def test_a_growing_file_is_sent_ahead(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * BLOCK_SIZE_BYTES)
    async with cluster(tmp_path) as nodes:
        await nodes.replicated()
        nodes.writer.write(PATH, bytes(data))
        following = asyncio.ensure_future(nodes.replicator.follow(PATH, 2))
        await until(lambda: nodes.peers.fetched)
        assert nodes.replica(PATH) is None  # until it is secured
        await nodes.replicator.secure(PATH, 2)
        following.cancel()
        assert nodes.replica(PATH) == data
        assert sum(end - start for start, end in nodes.peers.fetched) == len(data)  # each byte once


async def test_a_persisted_file_leaves_the_holder(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, b"ours")
        await nodes.replicated(PATH)
        await nodes.writer.uploads.put(PATH)
        nodes.replicator.note([PATH])
        await until(lambda: nodes.replica(PATH) is None)


async def test_too_few_nodes_secure_nothing(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, b"ours")
        nodes.view = view_of(WRITER)
        with pytest.raises(PeerError, match="0 other nodes"):
            await nodes.replicator.secure(PATH, 2)


@pytest.mark.parametrize("size_bytes", [5, 2 * BLOCK_SIZE_BYTES])
async def test_a_file_is_not_secured_by_a_holder_that_leaves_just_then(
    tmp_path: Path, size_bytes: int
) -> None:
    """The stream is stopped before the file is among the changes that it sends."""
    async with cluster(tmp_path) as nodes:
        await nodes.replicated()
        nodes.writer.write(PATH, random.Random(1).randbytes(size_bytes))
        securing = asyncio.ensure_future(nodes.replicator.secure(PATH, 2))
        await asyncio.sleep(0)
        nodes.view = view_of(WRITER)
        nodes.replicator.on_view()
        with pytest.raises(PeerError, match="no copies any more"):
            await asyncio.wait_for(securing, 60)


@pytest.mark.expected_warnings("headrace.writeback.replication.replicator")
async def test_a_holder_that_does_not_answer_is_an_error_and_gets_everything_later(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(b"/d/first", b"first")
        await nodes.replicated(b"/d/first")
        nodes.peers.away.add(HOLDER)
        nodes.writer.write(PATH, b"ours")
        with pytest.raises(PeerError):
            await nodes.replicator.secure(PATH, 2)
        nodes.writer.upper.at(b"/d/first").unlink()  # nobody reports it
        nodes.peers.away.clear()
        await until(lambda: nodes.replica(PATH) == b"ours")
        await until(lambda: nodes.replica(b"/d/first") is None)


@pytest.mark.expected_warnings("headrace.writeback.replication.replicator")
async def test_a_file_among_many_waits_for_one_failure_of_a_silent_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator, "BATCH_NAMES", 2)
    paths = [b"/d/%d" % number for number in range(6)]
    async with cluster(tmp_path) as nodes:
        await nodes.replicated()
        nodes.peers.silent.add(HOLDER)
        for path in paths:
            nodes.writer.write(path, path)
        nodes.replicator.note(paths)
        began_s = monotonic_s()
        with pytest.raises(PeerError, match="did not come in time"):
            await nodes.replicator.secure(paths[-1], 2)
        assert monotonic_s() - began_s < 2 * replicator.REPLICATE_LIMIT_S
        nodes.peers.silent.clear()
        await nodes.replicator.secure(paths[-1], 2)
        await until(lambda: [nodes.replica(path) for path in paths] == paths)


@pytest.mark.timeout(60)
async def test_a_close_while_a_holder_catches_up_leaves_the_loop_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is sent with the others, and nothing is left to do at once. The stream then took all turns of the
    loop."""
    monkeypatch.setattr(replicator, "BATCH_NAMES", 2)
    paths = [b"/d/%d" % number for number in range(6)]
    async with cluster(tmp_path) as nodes:
        for path in paths:
            nodes.writer.write(path, path)
        nodes.replicator.on_view()
        await until(lambda: nodes.peers.sent)
        await nodes.replicator.secure(paths[-1], 2)
        await until(lambda: [nodes.replica(path) for path in paths] == paths)
        await until(lambda: nodes.records.is_holder(WRITER, HOLDER))


async def test_another_life_of_the_holder_gets_everything_that_is_dirty(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.writer.write(PATH, b"ours")
        await nodes.replicated(PATH)
        await nodes.hosts[HOLDER].replicate(Replicate(WRITER, [], begin=True, end=True))
        assert nodes.replica(PATH) is None
        members = {
            id: NodeInfo(id, "again" if id == HOLDER else "", "", "", 1 << 30, "", 3)
            for id in (WRITER, HOLDER)
        }
        nodes.view = next_view(None, members, epoch=2)
        nodes.replicator.on_view()
        await until(lambda: nodes.replica(PATH) == b"ours")


async def test_a_former_holder_drops_its_replicas_when_the_new_one_has_all(tmp_path: Path) -> None:
    async with cluster(tmp_path, "n2") as nodes:
        first, second = await moved_to_another_holder(nodes)
        await until(lambda: nodes.records.is_holder(WRITER, second))
        await until(lambda: dropped_from_the_record(nodes, first))
        nodes.view = view_of(WRITER, HOLDER, "n2")
        nodes.replicator.on_view()
        await until(lambda: nodes.replica(PATH, of=first) == b"ours")
        await until(lambda: nodes.replica(PATH, of=second) is None)


@pytest.mark.expected_warnings("headrace.writeback.replication.replicator")
async def test_a_former_holder_gets_changes_until_the_new_one_has_all(tmp_path: Path) -> None:
    """Until then both persist what they have if the writer leaves. An older version would be put first, or beside."""
    async with cluster(tmp_path, "n2") as nodes:
        first, second = await moved_to_another_holder(nodes)
        await until(lambda: dropped_from_the_record(nodes, first))
        nodes.peers.away.add(first)
        nodes.view = view_of(WRITER, HOLDER, "n2")
        nodes.replicator.on_view()
        nodes.writer.write(PATH, b"newer")
        nodes.replicator.note([PATH])
        await until(lambda: nodes.replica(PATH, of=second) == b"newer")
        assert nodes.replicator.status()["copies_on"] == [first]
        nodes.writer.write(PATH, b"newest")
        with pytest.raises(PeerError):
            await nodes.replicator.secure(PATH, 2)
        await until(lambda: nodes.replica(PATH, of=second) == b"newest")
        nodes.peers.away.clear()
        await until(lambda: nodes.replica(PATH, of=first) == b"newest")
        await until(lambda: nodes.replica(PATH, of=second) is None)
        assert await dropped_from_the_record(nodes, second)


async def moved_to_another_holder(nodes: ReplicationFixture) -> tuple[str, str]:
    """Replicate a file, and again to the other holder after the first one left. Return the ids of both."""
    nodes.writer.write(PATH, b"ours")
    await nodes.replicator.secure(PATH, 2)
    (first,) = [id for id in (HOLDER, "n2") if nodes.replica(PATH, of=id) is not None]
    (second,) = {HOLDER, "n2"} - {first}
    nodes.view = view_of(WRITER, second)
    nodes.replicator.on_view()
    await until(lambda: nodes.replica(PATH, of=second) == b"ours")
    return first, second


async def dropped_from_the_record(nodes: ReplicationFixture, id: str) -> bool:
    return not await nodes.records.is_holder(WRITER, id)


async def test_the_record_is_not_written_for_each_file_while_another_node_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That node may have replicas from before, and is to delete them when it answers."""
    async with cluster(tmp_path, "n2") as nodes:
        _, other = choose_replicas(nodes.view, WRITER)
        nodes.peers.away.add(other.id)
        put, puts = nodes.records.put, 0

        async def counted_put(writer: str, holders: set[str]) -> None:
            nonlocal puts
            puts += 1
            await put(writer, holders)

        monkeypatch.setattr(nodes.records, "put", counted_put)
        nodes.replicator.on_view()
        await until(lambda: puts)
        began_s = monotonic_s()
        for number in range(100):
            nodes.writer.write(b"/d/%d" % number, b"ours")
            await nodes.replicator.secure(b"/d/%d" % number, 2)
        assert puts <= 4 + 2 * (monotonic_s() - began_s) / replicator.RETRY_S
        nodes.peers.away.clear()
        await until(lambda: other.id in [node for node, _ in nodes.peers.sent])


async def test_without_a_record_no_replica_counts(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        with pytest.raises(ClusterUnavailableError):
            await nodes.records.is_holder(WRITER, HOLDER)
