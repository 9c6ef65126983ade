"""Run a node's services in its cluster: answer peers, take part in jobs, hand over files, attach the shared mounts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec

from headrace.base.errors import ClusterUnavailableError, UsageError
from headrace.base.model import FileId
from headrace.cluster.membership import PREFIX as MEMBERS
from headrace.config.schema import Config
from headrace.dataplane.peer_service import NodePeerService, ReplicationService
from headrace.dataplane.read import ReadPath
from headrace.dataplane.rebalance import Rebalance
from headrace.jobs.cluster_jobs import KINDS, WATCH, ClusterJobs
from headrace.jobs.jobs import Jobs
from headrace.namespace.tree import Namespace
from headrace.node.cluster_link import ClusterLink
from headrace.node.cluster_writing import ClusterWriting
from headrace.node.shared_mounts import Attach, Check, Detach, MountRecord, SharedMounts
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.store.store import Store
from headrace.wire.messages import JobStart, JobState
from headrace.writeback.coherence.dirty_scope import PREFIX as WRITTEN
from headrace.writeback.coherence.service import CoherenceService
from headrace.writeback.replication.failover import Failover
from headrace.writeback.replication.placement import ReplicaSetRecords
from headrace.writeback.replication.replicator import ReplicaOffers
from headrace.writeback.writeback import WriteBack

log = logging.getLogger(__name__)

POLL_S = 0.25


class ClusterServices:
    """Holds the services of one node. hood: the link to the cluster, not started yet; `stop` also stops it. writing:
    None where nothing can be written. persister: builds the write-back of the replicas in a directory. attach, detach:
    change a mount on this node only. check: raises for an origin that a record may not attach."""

    def __init__(
        self,
        hood: ClusterLink,
        config: Config,
        *,
        store: Store,
        namespace: Namespace,
        reads: ReadPath,
        jobs: Jobs,
        writing: ClusterWriting | None,
        persister: Callable[[str], WriteBack],
        attach: Attach,
        detach: Detach,
        check: Check,
    ) -> None:
        self._hood = hood
        self._namespace = namespace
        self._elsewhere = hood.elsewhere
        self._local_jobs = jobs
        self._replicas = config.replicas
        self._writing = writing
        self._leases_lost = 0
        me = hood.info.id
        keeper = self.keeper = hood.keeper
        self._take_over = Failover(
            me,
            keeper,
            ReplicaSetRecords(hood.records),
            view=hood.view,
            build=persister,
            on_persisted=self._nothing_left,
            delay_s=config.take_over_s,
        )
        replicator = None if writing is None else writing.replicator
        self._desk = NodePeerService(
            namespace,
            store,
            reads,
            owns=self._owns,
            on_forget=self._relist,
            copies=ReplicationService(
                keeper, self._take_over, ReplicaOffers() if replicator is None else replicator.offers
            ),
            shared=CoherenceService(
                me,
                hood.files,
                keeper,
                publisher=None if writing is None else writing.publisher,
                own=None if writing is None else writing.own,
                give_up=self._give_up,
            ),
        )
        self._rebalance = Rebalance(
            me,
            store,
            hood.peers,
            view=hood.view,
            replicas=config.replicas,
            bytes_s=config.rebalance_bytes_s,
        )
        self.mounts = SharedMounts(hood.records, attach=attach, detach=detach, check=check)
        self.jobs = ClusterJobs(me, hood.records, jobs, view=hood.view, replicas=config.replicas)
        self._relisting: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Task[None] | None = None
        self._elsewhere.changed.add(namespace.schedule_refresh)
        if writing is not None:
            self._elsewhere.own_record_deleted.add(writing.publisher.record_again)

    async def start(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        """Serve peers and join the cluster, or join later when etcd is unavailable and the last known members are
        used. own: the mounts of the configuration; remembered: those of an earlier run. Raise the errors of
        ClusterLink.start, and UsageError when the cluster has another origin at one of the node's own mounts."""
        await self._hood.start(self._desk, self._on_new_view)
        if self._hood.membership.joined.is_set():
            await self._take_part(own, remembered)
        else:
            self._waiting = asyncio.ensure_future(self._take_part_later(own, remembered))

    async def come_back(self) -> None:
        """Learn what other nodes persisted of this node's files since its last run, before it persists them itself."""
        if self._writing is not None:
            await self._writing.failback.ask()

    async def look_whether_given_up(self) -> None:
        """Learn what other nodes did in this node's place, if they took it for dead while it was alive."""
        leases_lost = self._hood.records.leases_lost
        if leases_lost != self._leases_lost:
            self._leases_lost = leases_lost
            await self.come_back()

    async def _nothing_left(self, writer: str) -> None:
        """Delete the record of a dead node whose files are all persisted, so that others stop showing its dirty
        names. A node that is back keeps its record, because it wrote the record again."""
        await self._hood.records.delete(f"{WRITTEN}/{writer}", unless=f"{MEMBERS}{writer}")

    async def _give_up(self, folder: bytes) -> None:
        if self._writing is not None:
            await self._writing.leases.give_up(folder)

    async def claim(self, folder: bytes) -> None:
        """Acquire the lease for new names in a directory."""
        if self._writing is not None:
            await self._writing.leases.claim(folder)

    async def _take_part(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        await self.mounts.start(own, remembered)
        await self._elsewhere.start()
        await self.jobs.start()

    async def _take_part_later(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        await self._hood.membership.joined.wait()
        while True:
            try:
                return await self._take_part(own, remembered)
            except ClusterUnavailableError:
                await asyncio.sleep(POLL_S)
            except UsageError as error:
                log.error("the node does not follow the mounts and jobs of the cluster error=%s", error)
                return None

    async def stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)
        await self.jobs.stop()
        self._namespace.stop()
        await self._take_over.stop()
        self._hood.announcer.stop()
        await self._rebalance.stop()
        await self.mounts.stop()
        for task in self._relisting:
            task.cancel()
        await self._hood.stop()

    def runs(self, request: JobStart) -> bool:
        """Return whether this is a job for all nodes, or one that waits for them."""
        return request.kind in (*KINDS, WATCH, "sync", "drain")

    def run(self, request: JobStart) -> AsyncIterator[JobState]:
        if request.kind == "sync":
            return self._sync(request)
        if request.kind == "drain":
            return self._drain()
        return self.jobs.run(request.kind, request.path, request.options)

    def names_changed(self, names: Iterable[tuple[FileId, bytes]]) -> None:
        """Report the (parent, name) pairs whose meaning changed."""
        self.jobs.pins.names_changed(names)

    def status(self) -> dict[str, Any]:
        cluster = {**self._hood.status(), **self._take_over.status()}
        return {"cluster": cluster, "rebalance": self._rebalance.statistics()}

    # ------------------------------------------------------------ internal

    def _on_new_view(self, view: ClusterView) -> None:
        self._rebalance.on_view(view)
        self.jobs.on_view()
        self._take_over.on_view()
        self._elsewhere.on_view()
        if self._writing is not None and self._writing.replicator is not None:
            self._writing.replicator.on_view()

    def _owns(self, path: bytes, start: int) -> bool:
        return self._hood.owns(path, start // SEGMENT_BYTES, self._replicas)

    def _relist(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - the service's signature
        task = asyncio.ensure_future(self._namespace.relist_below(path, below=below))
        self._relisting.add(task)
        task.add_done_callback(self._relisting.discard)

    async def _sync(self, request: JobStart) -> AsyncIterator[JobState]:
        """Sync a directory: every node first drops its listings, then the owners list at the origin and the others
        at the owners. A node that can't be notified sees the change when its listings expire."""
        path = os.fsencode(request.path)
        failures = dict(await self._hood.forget(path, relist=False))
        async for state in self._local_jobs.run(request.kind, request.path, request.options):
            if not state.done:
                yield state
                continue
            failures |= dict(await self._hood.forget(path, relist=True))
            failed = [(f"node {id}", why) for id, why in failures.items()]
            yield msgspec.structs.replace(
                state, failed=[*state.failed, *failed], failed_files=state.failed_files + len(failed)
            )

    async def _drain(self) -> AsyncIterator[JobState]:
        """Drain this node. At the end other nodes have everything that it owned, except for files that failed."""
        if len(self._hood.view().nodes) < 2:
            raise UsageError("node drain", why="the cluster has no other node that could take over")
        await self._hood.membership.drain()
        me = self._hood.info.id
        while any(member.id == me for member in self._hood.view().ring.members):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)  # until this node's view shows it as draining
        while self._rebalance.running:
            yield self._rebalance.state(done=False)
            await asyncio.sleep(POLL_S)
        yield self._rebalance.state(done=True)
