"""Copies of what another node wrote: what becomes of a take-over's own notes."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import xxhash

from headrace.base.model import BLOCK_SIZE_BYTES, Arrived
from headrace.base.tasks import OwnedTasks
from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.peer.client import PeerClient
from headrace.ring.view import NodeInfo, next_view
from headrace.wire.peer_messages import FileRange, Replicate, ReplicateAhead
from headrace.writeback.replication.replica_host import ReplicaHost
from headrace.writeback.replication.replica_layer import ReplicaLayer
from headrace.writeback.sync_journal import SyncJournal

VIEW = next_view(None, {"n0": NodeInfo("n0", "", "", "", 1 << 30, "", 3)}, epoch=1)


async def test_a_writer_that_is_back_is_not_measured_by_what_was_put_in_its_place(tmp_path: Path) -> None:
    """It has put newer versions since, which the take-over's table doesn't know; the answer to the writer stays."""

    def tables(folder: Path) -> list[str]:
        return sorted(file.name for file in folder.glob("*.db*"))

    with ThreadPoolExecutor(1) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), cast(Any, None), threads, view=lambda: VIEW)
        await keeper.replicate(Replicate("n0", [], begin=True, end=True))
        folder = Path(keeper.folder_of("n0"))
        for name in ("known.db", "taken.db"):
            SyncJournal(str(folder / name)).close()
        await keeper.replicate(Replicate("n0", [], begin=False, end=False))
        assert tables(folder) == ["known.db", "taken.db"]
        await keeper.replicate(Replicate("n0", [], begin=True, end=True))
        assert tables(folder) == ["taken.db"]


async def test_a_request_that_was_given_up_does_not_overwrite_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread cannot be cancelled, so the next request of that writer waits for it."""
    begun, go_on = threading.Event(), threading.Event()
    place = ReplicaLayer.place

    def slow_place(layer: ReplicaLayer, snapshot: Snapshot) -> None:
        if snapshot.content == b"older":
            begun.set()
            go_on.wait()
        place(layer, snapshot)

    def replicate_of(content: bytes, inode: int) -> Replicate:
        size_bytes = len(content)
        file = Snapshot(b"/f", EntryType.FILE, inode, 1, 1, size_bytes, 0o644, content=content)
        return Replicate("n0", [file], begin=False, end=False)

    monkeypatch.setattr(ReplicaLayer, "place", slow_place)
    with ThreadPoolExecutor(4) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), cast(Any, None), threads, view=lambda: VIEW)
        async with OwnedTasks() as tasks:
            older = tasks.start(keeper.replicate(replicate_of(b"older", 1)))
            try:
                await asyncio.to_thread(begun.wait, 60)
                for _ in range(2):
                    older.cancel()
                    await asyncio.sleep(0)
                newer = tasks.start(keeper.replicate(replicate_of(b"newer", 2)))
                await asyncio.wait([newer], timeout=0.5)  # without the lock it ends meanwhile
            finally:
                go_on.set()
            await asyncio.wait([older, newer])
            await newer
            assert older.cancelled()
    with open(ReplicaLayer(keeper.folder_of("n0")).upper.at(b"/f").open(0), "rb") as file:
        assert file.read() == b"newer"


class SlowPeers(PeerClient):
    """A writer whose first answer is read at once, and arrives when the test says so."""

    def __init__(self, older: bytes, newer: bytes) -> None:
        self._contents = [newer, older]
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def fetch(self, node: NodeInfo, file: FileRange, **options: Any) -> Arrived:
        is_first = not self.asked.is_set()
        content = self._contents[is_first]
        if is_first:
            self.asked.set()
            await self.go_on.wait()
        return Arrived(content[file.start : file.end])


async def test_an_older_range_that_was_sent_ahead_does_not_get_into_a_newer_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range arrives late, when the blocks of the newer content are complete and not yet in their place."""
    older, newer = bytes(2 * BLOCK_SIZE_BYTES), b"n" * (2 * BLOCK_SIZE_BYTES)
    begun, go_on = threading.Event(), threading.Event()
    place = ReplicaLayer.place

    def slow_place(layer: ReplicaLayer, snapshot: Snapshot) -> None:
        begun.set()
        go_on.wait()
        place(layer, snapshot)

    sums = [xxhash.xxh3_64_intdigest(newer[:BLOCK_SIZE_BYTES])] * 2
    file = Snapshot(b"/f", EntryType.FILE, 7, 1, 1, len(newer), 0o644, sums=sums)
    monkeypatch.setattr(ReplicaLayer, "place", slow_place)
    peers = SlowPeers(older, newer)
    with ThreadPoolExecutor(4) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), peers, threads, view=lambda: VIEW)
        async with OwnedTasks() as tasks:
            ahead = tasks.start(keeper.replicate_ahead(ReplicateAhead("n0", 7, 0, len(older))))
            try:
                await peers.asked.wait()
                placed = tasks.start(keeper.replicate(Replicate("n0", [file], begin=False, end=False)))
                await asyncio.to_thread(begun.wait, 60)
                peers.go_on.set()
                await asyncio.wait([ahead], timeout=0.5)  # without a lock it ends meanwhile
            finally:
                go_on.set()
            await placed
            await ahead
        for _ in range(2):
            with open(ReplicaLayer(keeper.folder_of("n0")).upper.at(b"/f").open(0), "rb") as replica:
                assert replica.read() == newer
            changed = msgspec.structs.replace(file, ctime_ns=2)
            await keeper.replicate(Replicate("n0", [changed], begin=False, end=False))


async def test_a_range_that_was_sent_ahead_before_a_failover_does_not_get_into_a_later_snapshot(
    tmp_path: Path,
) -> None:
    """It arrives when the writer is back and has sent newer content of the same file ahead."""
    older, newer = bytes(2 * BLOCK_SIZE_BYTES), b"n" * (2 * BLOCK_SIZE_BYTES)
    sums = [xxhash.xxh3_64_intdigest(newer[:BLOCK_SIZE_BYTES])] * 2
    file = Snapshot(b"/f", EntryType.FILE, 7, 1, 1, len(newer), 0o644, sums=sums)
    ahead, peers = ReplicateAhead("n0", 7, 0, len(older)), SlowPeers(older, newer)
    with ThreadPoolExecutor(4) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), peers, threads, view=lambda: VIEW)
        async with OwnedTasks() as tasks:
            late = tasks.start(keeper.replicate_ahead(ahead))
            await peers.asked.wait()
            async with keeper.lock_of("n0"):
                await keeper.forget("n0")
            await keeper.replicate_ahead(ahead)
            peers.go_on.set()
            await late
        await keeper.replicate(Replicate("n0", [file], begin=False, end=False))
    with open(ReplicaLayer(keeper.folder_of("n0")).upper.at(b"/f").open(0), "rb") as replica:
        assert replica.read() == newer


async def test_upkeep_does_not_wait_for_a_file_that_is_being_fetched(tmp_path: Path) -> None:
    """It also evicts and syncs cached files. A large file of a writer that hangs takes minutes."""
    content = b"n" * (2 * BLOCK_SIZE_BYTES)
    sums = [xxhash.xxh3_64_intdigest(content[:BLOCK_SIZE_BYTES])] * 2
    file = Snapshot(b"/f", EntryType.FILE, 7, 1, 1, len(content), 0o644, sums=sums)
    peers = SlowPeers(content, content)
    with ThreadPoolExecutor(4) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), peers, threads, view=lambda: VIEW)
        async with OwnedTasks() as tasks:
            replicated = tasks.start(keeper.replicate(Replicate("n0", [file], begin=False, end=False)))
            await peers.asked.wait()
            dropped = tasks.start(keeper.drop_idle())
            await asyncio.wait([dropped], timeout=60)
            assert dropped.done() and not replicated.done()
            peers.go_on.set()
            await replicated


async def test_replicas_that_are_given_to_a_failover_leave_no_descriptor(tmp_path: Path) -> None:
    file = Snapshot(b"/f", EntryType.FILE, 7, 1, 1, 4, 0o644, content=b"ours")
    with ThreadPoolExecutor(1) as threads:
        keeper = ReplicaHost("n1", str(tmp_path), cast(Any, None), threads, view=lambda: VIEW)
        counts = []
        for _ in range(10):
            await keeper.replicate(Replicate("n0", [file], begin=False, end=False))
            async with keeper.lock_of("n0"):
                await keeper.forget("n0")
            gc.collect()
            counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[1]  # by then nothing of earlier tests is left
