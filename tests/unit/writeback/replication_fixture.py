"""A writer and the holders of its replicas, joined by calls instead of connections, over one origin."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from headrace.base.deadline import Deadline
from headrace.base.errors import ClusterUnavailableError, PeerError
from headrace.base.model import Arrived, Version
from headrace.cluster.embedded import EmbeddedRecords
from headrace.config.schema import CacheVolume, Config
from headrace.entry.peer.channel import REQUEST_BYTES_MAX
from headrace.node.writing import build_persister
from headrace.overlay.upper import Upper
from headrace.peer.client import PeerClient
from headrace.ring.view import ClusterView, NodeInfo, next_view
from headrace.testing.virtual_loop import pass_time
from headrace.testing.waiting import until
from headrace.wire import peer_frame
from headrace.wire.peer_messages import FailedOverFile, FileRange, Replicate, ReplicateAhead
from headrace.writeback.replication.failback import Failback
from headrace.writeback.replication.failover import Failover
from headrace.writeback.replication.placement import ReplicaSetRecords
from headrace.writeback.replication.replica_host import ReplicaHost
from headrace.writeback.replication.replicator import Replicator
from headrace.writeback.replication.snapshots import Snapshots
from headrace.writeback.writeback import WriteBack
from tests.unit.writeback.layer_fixture import LayerFixture

WRITER, HOLDER = "n0", "n1"


def view_of(*ids: str) -> ClusterView:
    return next_view(None, {id: NodeInfo(id, "", "", "", 1 << 30, "", 3) for id in ids}, epoch=1)


class LoopbackPeers(PeerClient):
    """Peers in this process. away: ids of nodes that do not answer. silent: those whose answers never come. sent: what
    was told to whom, in order. fetched: ranges that holders fetched."""

    def __init__(self, cluster: ReplicationFixture) -> None:
        self._cluster = cluster
        self.away: set[str] = set()
        self.silent: set[str] = set()
        self.sent: list[tuple[str, Replicate | ReplicateAhead]] = []
        self.fetched: list[tuple[int, int]] = []

    async def replicate(
        self, node: NodeInfo, request: Replicate | ReplicateAhead, deadline: Deadline
    ) -> None:
        self._check(node)
        if node.id in self.silent:
            await pass_time(deadline.left_s())
            raise PeerError(f"node {node.id}", why="its answer did not come in time")
        if len(peer_frame.encode(request)) > REQUEST_BYTES_MAX + peer_frame.HEADER_BYTES:
            raise PeerError(f"node {node.id}", why="it closed the connection")  # as the peers' server does
        self.sent.append((node.id, request))
        host = self._cluster.hosts[node.id]
        await (host.replicate(request) if isinstance(request, Replicate) else host.replicate_ahead(request))

    async def fetch(self, node: NodeInfo, file: FileRange, **options: Any) -> Arrived:
        self._check(node)
        self.fetched.append((file.start, file.end))
        offered = self._cluster.replicator.offers.open(file)
        try:
            return Arrived(os.pread(offered.fileno(), file.end - file.start, file.start))
        finally:
            offered.close()

    async def query_failover(
        self, node: NodeInfo, writer: str, *, done: bool, deadline: Deadline
    ) -> list[FailedOverFile]:
        self._check(node)
        return (await self._cluster.failover.report(writer, done=done)).files

    def _check(self, node: NodeInfo) -> None:
        if node.id in self.away:
            raise PeerError(f"node {node.id}", why="the test says so")

    def snapshots_of(self, node: str) -> list[bytes]:
        """Return the paths that a node was told of, in order."""
        requests = [request for id, request in self.sent if id == node and isinstance(request, Replicate)]
        return [snapshot.path for request in requests for snapshot in request.snapshots]


class ReplicationFixture:
    """The writer n0 and the nodes that may hold its replicas. writer: its layer. holder: the layer, index and store of
    n1, which persists the replicas when the writer is gone. persisted: the writers of whom nothing is left."""

    def __init__(self, folder: Path, *, nodes: tuple[str, ...] = (WRITER, HOLDER)) -> None:
        self.writer = LayerFixture(
            folder / WRITER, modes="back:2", query_replicas=lambda path: self.failback.ask(path)
        )
        self.holder = LayerFixture(folder / HOLDER, self.writer.memory)
        self.view = view_of(*nodes)
        self.records = ReplicaSetRecords(EmbeddedRecords())
        self.peers = LoopbackPeers(self)
        self._threads = ThreadPoolExecutor(4)
        self.hosts = {
            id: ReplicaHost(
                id, str(folder / f"{id}-replicas"), self.peers, self._threads, view=lambda: self.view
            )
            for id in nodes
            if id != WRITER
        }
        state = self.writer.state
        snapshots = Snapshots(self.writer.layer, state.preconditions, state.planner)
        self.replicator = Replicator(
            WRITER,
            self.peers,
            view=lambda: self.view,
            records=self.records,
            count=2,
            locate=self.writer.upper.at,
            take=snapshots.of,
            names=snapshots.names,
        )
        self.persisted: list[str] = []
        self.failover = Failover(
            HOLDER,
            self.hosts[HOLDER],
            self.records,
            view=lambda: self.view,
            build=self._persister,
            on_persisted=self._on_persisted,
            delay_s=0.0,
        )
        self.failback = Failback(WRITER, self.peers, self.writer.journal, view=lambda: self.view)

    def _persister(self, folder: str) -> WriteBack:
        async def resolve_version(path: bytes, version: Version) -> Version | None:
            return None

        config = Config(cache=[CacheVolume(str(self.holder.folder), 1 << 30)], run_folder="/run/none")
        return build_persister(config, self.holder.namespace, folder, resolve_version, [])

    async def _on_persisted(self, writer: str) -> None:
        self.persisted.append(writer)

    def replica(self, path: bytes, *, of: str = HOLDER) -> bytes | None:
        """Return the bytes that a holder has of the writer's file; None if it has no file there."""
        place = Upper(self.hosts[of].folder_of(WRITER)).at(path)
        try:
            fd = place.open(os.O_RDONLY)
        except OSError:
            return None
        with open(fd, "rb") as file:
            return file.read()

    async def replicated(self, *paths: bytes) -> None:
        """Return when the holder has these paths, and the records say that it does."""
        self.replicator.on_view()
        await until(lambda: self.peers.sent)
        for path in paths:
            await self.replicator.secure(path, 2)
        await until(self._is_recorded)

    async def _is_recorded(self) -> bool:
        try:
            return await self.records.is_holder(WRITER, HOLDER)
        except ClusterUnavailableError:
            return False

    async def leave(self) -> None:
        """The writer is gone: its node sends nothing more, and the view is without it."""
        await self.replicator.stop()
        self.view = view_of(*(id for id in self.view.nodes if id != WRITER))
        self.failover.on_view()

    async def close(self) -> None:
        await self.replicator.stop()
        await self.failover.stop()
        self._threads.shutdown(wait=True)
        self.writer.crash()
        self.holder.crash()
