"""A node has replaced a file of a writer that left: what a replica answers before, during and after the failover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.base.errors import ClusterUnavailableError, StoreError
from headrace.base.model import Version
from headrace.cluster.embedded import EmbeddedRecords
from headrace.node.dirty_data import DirtyData
from headrace.overlay.pending_version import PendingVersion
from headrace.testing.waiting import until
from headrace.wire.peer_messages import ResolveVersion, VersionResolved
from headrace.writeback.coherence.service import CoherenceService
from headrace.writeback.coherence.subscriber import DirtyNamesSubscriber
from tests.faulty_origin import PlannedFault
from tests.unit.writeback.replication_fixture import HOLDER, WRITER, ReplicationFixture, view_of

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(60),
    pytest.mark.expected_warnings("headrace.writeback.replication.failover", "headrace.writeback.executor"),
]

PATH, OURS = b"/d/f", b"what the writer wrote"


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[ReplicationFixture]:
    nodes = ReplicationFixture(folder)
    try:
        yield nodes
    finally:
        await nodes.close()


def service_of(nodes: ReplicationFixture) -> CoherenceService:
    """Return what answers other nodes on the replica."""
    return CoherenceService(HOLDER, None, nodes.hosts[HOLDER], None, None, None)  # type: ignore[arg-type]


class WriterAnswer:
    """Peers of which only the writer answers, if it is asked."""

    def __init__(self, answer: Version | None) -> None:
        self.answer = answer

    def usable(self, node: object) -> bool:
        return True

    async def resolve_version(
        self, node: object, request: ResolveVersion, deadline: object
    ) -> VersionResolved:
        return VersionResolved(self.answer)


def dirty_data_of(nodes: ReplicationFixture, answer: Version | None = None) -> DirtyData:
    """Return how the replica itself resolves versions. answer: the writer's, while it is a member."""
    elsewhere = DirtyNamesSubscriber(
        HOLDER,
        EmbeddedRecords(),
        WriterAnswer(answer),  # type: ignore[arg-type]
        view=lambda: nodes.view,
    )
    return DirtyData(nodes.hosts[HOLDER], None, elsewhere, None, None, None)  # type: ignore[arg-type]


def pending_of(nodes: ReplicationFixture, data: bytes) -> PendingVersion:
    status = nodes.writer.write(PATH, data)
    return PendingVersion(WRITER, status.st_ino, status.st_ctime_ns)


async def test_a_version_that_its_failover_will_persist_is_not_lost(tmp_path: Path) -> None:
    """ "Never" would make a conflict copy of the file that replaced it, and drop a removal."""
    async with cluster(tmp_path) as nodes:
        pending = pending_of(nodes, OURS)
        await nodes.replicated(PATH)
        nodes.holder.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=range(3))
        version = Version(len(OURS), 1, pending.token)
        await nodes.leave()
        for puts in range(3):
            await until(lambda: nodes.holder.origin.count("put") >= puts)  # noqa: B023 - it is called at once
            with pytest.raises(ClusterUnavailableError):
                await service_of(nodes).resolve_version(PATH, pending.token)
            with pytest.raises(ClusterUnavailableError):
                await dirty_data_of(nodes).resolve_version(PATH, version)
        await until(lambda: nodes.failover.files_persisted)
        persisted = await nodes.writer.origin_version(PATH)
        assert persisted is not None
        assert await service_of(nodes).resolve_version(PATH, pending.token) == persisted
        assert await dirty_data_of(nodes).resolve_version(PATH, version) == persisted


async def test_a_version_that_its_writer_replaced_is_lost(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        replaced = pending_of(nodes, b"earlier")
        nodes.writer.upper.at(PATH).unlink()
        pending_of(nodes, OURS)
        await nodes.replicated(PATH)
        nodes.holder.origin.fail("put", PlannedFault.UNAVAILABLE, numbers=range(3))
        await nodes.leave()
        assert await service_of(nodes).resolve_version(PATH, replaced.token) is None
        assert await dirty_data_of(nodes).resolve_version(PATH, Version(7, 1, replaced.token)) is None


@pytest.mark.parametrize("answer", [None, Version(1, 1, "tag")])
async def test_the_answer_of_a_writer_that_is_there_counts(tmp_path: Path, answer: Version | None) -> None:
    """Its replica may be older than its answer."""
    async with cluster(tmp_path) as nodes:
        pending = pending_of(nodes, OURS)
        await nodes.replicated(PATH)
        version = Version(len(OURS), 1, pending.token)
        assert nodes.view.nodes.keys() == view_of(WRITER, HOLDER).nodes.keys()
        assert await dirty_data_of(nodes, answer).resolve_version(PATH, version) == answer


async def test_a_replica_that_cannot_be_read_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> tuple[int, ...]:
        raise OSError(5, "Input/output error")

    async with cluster(tmp_path) as nodes:
        pending = pending_of(nodes, OURS)
        await nodes.replicated(PATH)
        with monkeypatch.context() as patches:
            patches.setattr("headrace.writeback.replication.replica_host.copy_of", fail)
            with pytest.raises(StoreError):
                await service_of(nodes).resolve_version(PATH, pending.token)
