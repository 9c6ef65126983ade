"""A node answers about the names of a writer whose replicas it has."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.base.beneath import SafePath
from headrace.base.deadline import Deadline
from headrace.overlay.pending_version import PendingEntry
from headrace.overlay.snapshot import EntryType, Snapshot
from headrace.overlay.upper import Upper
from headrace.ring.view import NodeInfo
from headrace.wire.peer_messages import ListPending, PendingNamesPage, Replicate
from headrace.writeback.coherence import service, subscriber
from headrace.writeback.coherence.dirty_scope import DirtyScope
from headrace.writeback.coherence.service import CoherenceService
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber
from headrace.writeback.replication import dirty_files
from headrace.writeback.replication.dirty_files import DirtyFiles
from headrace.writeback.replication.replica_host import ReplicaHost
from tests.unit.writeback.publisher_fixture import Answering, PublisherFixture, elsewhere_of, view_of

pytestmark = pytest.mark.timeout(60)


class Replica(Answering):
    """The node n1, which has replicas of n0, and the peers that ask it. pages: number of names of each answer."""

    def __init__(self, folder: Path, threads: ThreadPoolExecutor) -> None:
        super().__init__(cast(Any, None))
        self.host = ReplicaHost(
            "n1", str(folder / "replicas"), cast(Any, None), threads, view=lambda: view_of("n0", "n1")
        )
        locate = Upper(str(folder / "upper")).at
        files = DirtyFiles("n1", threads, locate=locate, folder_of=self.host.folder_of)
        self.service = CoherenceService("n1", files, self.host, None, None, cast(Any, None))
        self.pages: list[int] = []

    async def list_pending(
        self, node: NodeInfo, request: ListPending, deadline: Deadline
    ) -> PendingNamesPage:
        page = await self.service.answer(request)
        self.pages.append(len(page.names))
        return page


@pytest.mark.parametrize("count", [0, 5, 6, 7])
async def test_a_large_directory_of_a_writer_that_left_is_answered_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """An answer of all names could be larger than a node accepts: the names would not be shown."""
    monkeypatch.setattr(service, "NAMES_PER_PAGE_MAX", 3)
    names = [b"%d" % number for number in range(count)]
    files = [Snapshot(b"/d/" + name, EntryType.FILE, 7, 1, 1, 1, 0o644, content=b"x") for name in names]
    here = PublisherFixture()
    with ThreadPoolExecutor(1) as threads:
        here.peers = replica = Replica(tmp_path, threads)
        await replica.host.replicate(Replicate("n0", files, begin=True, end=True))
        elsewhere = elsewhere_of(here, "n2", "n1", "n2")
        await elsewhere.start()
        await here.records.put("copies/n0", b'["n1"]')
        await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
        for _ in range(2):
            assert sorted(await elsewhere.rows(b"/d")) == names
        pages = {0: [0], 5: [3, 2], 6: [3, 3], 7: [3, 3, 1]}[count]
        assert replica.pages == 2 * pages
        await elsewhere.stop()


async def test_a_state_that_no_replica_gave_begins_anew(tmp_path: Path) -> None:
    file = Snapshot(b"/d/a", EntryType.FILE, 7, 1, 1, 1, 0o644, content=b"x")
    with ThreadPoolExecutor(1) as threads:
        replica = Replica(tmp_path, threads)
        await replica.host.replicate(Replicate("n0", [file], begin=True, end=True))
        for state in ("", "run:5", "after:", "after:nonsense"):
            page = await replica.service.answer(ListPending("n0", b"/d", state))
            assert [entry.name for entry in page.names] == [b"a"] and page.whole and not page.more


@pytest.mark.parametrize("asks", ["another node", "the replica itself"])
async def test_names_of_a_replica_are_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    """Fifty thousand names took the loop for 2 s."""
    monkeypatch.setattr(subscriber, "ENTRIES_PER_TURN", 3)
    names = [b"%d" % number for number in range(8)]
    files = [Snapshot(b"/d/" + name, EntryType.FILE, 7, 1, 1, 1, 0o644, content=b"x") for name in names]
    threads_used: set[int] = set()
    read = dirty_files.replica_entry

    def noted(safe_path: SafePath, name: bytes) -> PendingEntry:
        threads_used.add(threading.get_ident())
        return read(safe_path, name)

    monkeypatch.setattr(dirty_files, "replica_entry", noted)
    here = PublisherFixture()
    with ThreadPoolExecutor(1) as threads:
        here.peers = replica = Replica(tmp_path, threads)
        await replica.host.replicate(Replicate("n0", files, begin=True, end=True))
        me = "n1" if asks == "the replica itself" else "n2"
        entries = replica.service.files.replica_entries
        elsewhere = DirtyNamesSubscriber(
            me,
            here.records,
            cast(Any, here.peers),
            view=lambda: view_of("n1", "n2"),
            replica_entries=entries,
        )
        await elsewhere.start()
        await here.records.put("copies/n0", b'["n1"]')
        await here.records.put("written/n0", DirtyScope.of({b"/d"}, set()).encode())
        assert sorted(await elsewhere.rows(b"/d")) == names
        assert bool(replica.pages) == (me == "n2")
        assert threads_used and threading.get_ident() not in threads_used
        await elsewhere.stop()
