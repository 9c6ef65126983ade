"""Run a node's services in its cluster: answer peers, take part in jobs, hand over files, attach the shared mounts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec

from headrace.base.errors import ClusterUnavailableError, UsageError
from headrace.base.listeners import Listeners
from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.base.write_modes import WriteModes
from headrace.cluster.membership import PREFIX as MEMBERS
from headrace.config.schema import Config
from headrace.dataplane.fresh_copies import FreshCopies
from headrace.dataplane.peer_service import ClusterParts, NodePeerService, ReplicationService, TrialService
from headrace.dataplane.read import ReadPath
from headrace.dataplane.rebalance import Rebalance
from headrace.entry.peer.server import PeerServer
from headrace.jobs.cluster_jobs import WATCH, ClusterJobs
from headrace.jobs.job_records import KINDS
from headrace.jobs.jobs import Jobs
from headrace.namespace.namespace import Namespace
from headrace.node.cluster_link import ClusterLink
from headrace.node.cluster_writing import ClusterWriting
from headrace.node.copies import CopyKeeper, OwnedFiles
from headrace.node.dirty_data import DirtyData
from headrace.node.draining import drain
from headrace.node.hot_copies import EXTRA_SHARE, HotCopies
from headrace.node.shared_mounts import MountRecord, SharedMounts
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.store.store import Store
from headrace.wire.messages import JobStart, JobState
from headrace.writeback.coherence.directory_claims import DirectoryClaims
from headrace.writeback.coherence.dirty_scope import PREFIX as WRITTEN
from headrace.writeback.coherence.service import CoherenceService
from headrace.writeback.replication.failover import Failover
from headrace.writeback.replication.placement import ReplicaSetRecords
from headrace.writeback.replication.replicator import ReplicaOffers
from headrace.writeback.writeback import WriteBack

log = logging.getLogger(__name__)

POLL_S = 0.25


class Relisting:
    """Lists directories again in the background, when another node reports that their listings expired."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._tasks = OwnedTasks()

    def schedule(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - the service's signature
        self._tasks.start(self._namespace.listings.relist_below(path, below=below))

    async def stop(self) -> None:
        await self._namespace.refreshes.stop()
        await self._tasks.close()


class ClusterServices:
    """Holds the services of one node. link: the link to the cluster, not started yet; `stop` also stops it. server:
    serves the other nodes. writing: None where nothing can be written."""

    def __init__(
        self,
        link: ClusterLink,
        server: PeerServer,
        relisting: Relisting,
        *,
        mounts: SharedMounts,
        jobs: ClusterJobs,
        copies: CopyKeeper,
        failover: Failover,
        writing: ClusterWriting | None,
    ) -> None:
        self._link = link
        self._server = server
        self._relisting = relisting
        self.mounts = mounts
        self.jobs = jobs
        self._copies = copies
        self._rebalance = copies.rebalance
        self._failover = failover
        self._writing = writing
        self.replica_host = link.dirty.replica_host
        self._leases_lost = 0
        self.joined = link.membership.joined
        self._tasks = OwnedTasks()

    async def start(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        """Serve peers and join the cluster, or join later when etcd is unavailable and the last known members are
        used. own: the mounts of the configuration; remembered: those of an earlier run. Raise NodeIdTakenError,
        ClusterUnavailableError, and UsageError when the cluster has another origin at one of the node's own mounts."""
        self._link.on_view.add(self._on_new_view)
        self._server.start(self._link.member.host, self._link.member.port)
        await self._link.membership.start()
        self._copies.hot.start(self.joined)
        if self._link.membership.joined.is_set():
            await self._take_part(own, remembered)
        else:
            self._tasks.start(self._take_part_later(own, remembered))

    async def fail_back(self) -> None:
        """Record which of this node's files other nodes persisted since its last run, before it persists them
        itself."""
        if self._writing is not None:
            await self._writing.failback.ask()

    async def check_failover(self) -> None:
        """Record what other nodes persisted in this node's place, if it lost its lease while it was alive."""
        leases_lost = self._link.records.leases_lost
        if leases_lost != self._leases_lost:
            self._leases_lost = leases_lost
            await self.fail_back()

    async def acquire_lease(self, directory: bytes) -> None:
        """Acquire the lease for new names in a directory."""
        if self._writing is not None:
            await self._writing.leases.acquire(directory)

    async def claim_directories(self, kept: dict[bytes, str]) -> dict[bytes, str]:
        """Claim the exclusive directories of this node, or make sure that no other node has claimed what this one
        writes. kept: the tokens of an earlier run. Return the tokens."""
        return {} if self._writing is None else await self._writing.claims.acquire(kept)

    async def give_up_claims(self, is_done: Callable[[bytes], Awaitable[bool]]) -> None:
        """Give up the claims of directories for which `is_done` returns True."""
        if self._writing is not None:
            await self._writing.claims.give_up(is_done)

    async def break_claim(self, path: bytes, *, force: bool) -> None:
        """Break the claim of another node that is lost."""
        claims = (
            DirectoryClaims(self._link.info.id, self._link.records, WriteModes.parse("off"))
            if self._writing is None
            else self._writing.claims
        )
        await claims.break_claim(path, force=force)

    async def _take_part(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        await self.mounts.start(own, remembered)
        await self._link.dirty.elsewhere.start()
        await self.jobs.start()

    async def _take_part_later(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        await self._link.membership.joined.wait()
        while True:
            try:
                return await self._take_part(own, remembered)
            except ClusterUnavailableError:
                await asyncio.sleep(POLL_S)
            except UsageError as error:
                log.error("the node does not follow the mounts and jobs of the cluster error=%s", error)
                return None

    async def stop(self) -> None:
        await self._tasks.close()
        if self._writing is not None:
            await self._writing.claims.stop()
        await self.jobs.stop()
        await self._relisting.stop()
        await self._failover.stop()
        await self._link.dirty.announcer.stop()
        await self._link.dirty.elsewhere.stop()
        await self._copies.stop()
        await self.mounts.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._server.stop)
        await self._link.stop()

    def runs(self, request: JobStart) -> bool:
        """Return whether this is a job for all nodes, or one that waits for them."""
        return request.kind in (*KINDS, WATCH, "sync", "drain")

    def run(self, request: JobStart) -> AsyncIterator[JobState]:
        if request.kind == "sync":
            return self._sync(request)
        if request.kind == "drain":
            return drain(self.node_id, self._link.membership, self._rebalance)
        return self.jobs.run(request.kind, request.path, request.options)

    def names_changed(self, names: Iterable[tuple[FileId, bytes]]) -> None:
        """Report the (parent, name) pairs whose meaning changed."""
        self.jobs.pins.names_changed(names)

    def note_fetched(self, ids: Iterable[FileId]) -> None:
        """Note files that this node has now, whole or in part, and of which others may want copies."""
        self._copies.note_fetched(ids)

    @property
    def node_id(self) -> str:
        return self._link.info.id

    def copies_of(self, path: bytes) -> tuple[int, int]:
        """Return the number of copies that the policy or the configuration wants, and that a pin asks for (0: none)."""
        return self._link.copies.of(path), self.jobs.pins.copies(path)

    def owners_of(self, path: bytes, copies: int) -> tuple[list[str], list[str]]:
        """Return so many owners of a file's first segment by the ring, and its holders."""
        view = self._link.view()
        owners = [owner.id for owner in view.owners(path, replicas=copies)]
        all_owners = [owner.id for owner in self._link.copies.ownership.owners(view, path)]
        return owners, [id for id in all_owners if id not in owners]

    def will_offer(self, id: FileId) -> bool:
        """Return whether a file waits to be offered to other owners, also because a walk of all files is running."""
        return self._copies.fresh.is_waiting(id) or self._rebalance.running

    def status(self) -> dict[str, Any]:
        cluster = {**self._link.status(), **self._failover.status()}
        return {
            "cluster": cluster,
            "rebalance": self._rebalance.statistics(),
            "copies": self._copies.statistics(),
        }

    # ------------------------------------------------------------ internal

    def _on_new_view(self, view: ClusterView) -> None:
        self._rebalance.on_view(view)
        self.jobs.on_view()
        self._failover.on_view()
        self._link.dirty.elsewhere.on_view()
        self._link.dirty.announcer.on_view()
        if self._writing is not None:
            self._writing.publisher.on_view()
            if self._writing.replicator is not None:
                self._writing.replicator.on_view()

    async def _sync(self, request: JobStart) -> AsyncIterator[JobState]:
        """Sync a directory: every node first drops its listings, then the owners list at the origin and the others
        at the owners. A node that can't be notified sees the change when its listings expire."""
        path = os.fsencode(request.path)
        failures = dict(await self._link.dirty.listings.invalidate(path, relist=False))
        async for state in self.jobs.local.run(request.kind, request.path, request.options):
            if not state.done:
                yield state
                continue
            failures |= dict(await self._link.dirty.listings.invalidate(path, relist=True))
            failed = [(f"node {id}", why) for id, why in failures.items()]
            yield msgspec.structs.replace(
                state, failed=[*state.failed, *failed], failed_files=state.failed_files + len(failed)
            )


def build_services(
    link: ClusterLink,
    config: Config,
    mounts: SharedMounts,
    *,
    store: Store,
    namespace: Namespace,
    reads: ReadPath,
    jobs: Jobs,
    writing: ClusterWriting | None,
    trial: TrialService,
    adopted: Listeners[[list[FileId]]],
    persister: Callable[[str], WriteBack],
) -> ClusterServices:
    """Build a node's services in its cluster, on its loop. adopted: called with demoted files, which then get
    their copies. persister: builds the write-back of the replicas in a directory."""
    me, dirty = link.info.id, link.dirty

    async def forget_writer(writer: str) -> None:
        """Delete the record of a dead node whose files are all persisted, so that others stop showing its dirty
        names. A node that is back keeps its record, because it wrote the record again."""
        await link.records.delete(f"{WRITTEN}/{writer}", unless=f"{MEMBERS}{writer}")

    failover = Failover(
        me,
        dirty.replica_host,
        ReplicaSetRecords(link.records),
        view=link.view,
        build=persister,
        on_persisted=forget_writer,
        delay_s=config.take_over_s,
    )
    relisting = Relisting(namespace)
    copies = _build_copies(link, config, store)
    peer_service = NodePeerService(
        namespace,
        store,
        reads,
        owns=lambda path, start: link.owns(path, start // SEGMENT_BYTES),
        on_invalidate=relisting.schedule,
        hot=copies.hot,
        parts=ClusterParts(
            _replication_service(dirty, failover, writing), _coherence_service(me, dirty, writing), trial
        ),
    )
    reads.fetched.add(copies.fresh.note)
    adopted.add(copies.fresh.note)
    dirty.elsewhere.changed.add(namespace.refreshes.schedule)
    cluster_jobs = ClusterJobs(me, link.records, jobs, view=link.view, replicas=link.copies.of)
    link.copies.changed.add(copies.rebalance.on_policy)
    link.copies.changed.add(lambda _: cluster_jobs.pins.on_view())
    if writing is not None:
        dirty.elsewhere.own_record_deleted.add(writing.publisher.record_again)
    return ClusterServices(
        link,
        PeerServer(
            *(link.welcome, link.member.cluster, peer_service),
            loop=asyncio.get_running_loop(),
            tls=link.member.tls,
        ),
        relisting,
        mounts=mounts,
        jobs=cluster_jobs,
        copies=copies,
        failover=failover,
        writing=writing,
    )


def _build_copies(link: ClusterLink, config: Config, store: Store) -> CopyKeeper:
    ownership = link.copies.ownership
    rebalance = Rebalance(
        *(link.info.id, store, link.peers),
        view=link.view,
        ownership=ownership,
        bytes_s=config.rebalance_bytes_s,
        is_wanted=lambda: link.copies.is_wanted,
    )
    fresh = FreshCopies(
        *(link.info.id, store, link.peers),
        view=link.view,
        ownership=ownership,
        bytes_s=config.rebalance_bytes_s,
        is_wanted=lambda: link.copies.is_wanted,
        on_lost=rebalance.check_all,
    )
    hot = HotCopies(
        *(link.info.id, link.copies.hot),
        OwnedFiles(link.info.id, link.copies, store, fresh, view=link.view),
        link.records,
        nodes=lambda: [id for id, node in link.view().nodes.items() if not node.draining],
        is_wanted=lambda: link.copies.is_automatic,
        extra_bytes_max=int(EXTRA_SHARE * link.info.capacity_bytes),
    )
    return CopyKeeper(rebalance, fresh, hot)


def _replication_service(
    dirty: DirtyData, failover: Failover, writing: ClusterWriting | None
) -> ReplicationService:
    replicator = None if writing is None else writing.replicator
    offers = ReplicaOffers() if replicator is None else replicator.offers
    return ReplicationService(dirty.replica_host, failover, offers)


def _coherence_service(me: str, dirty: DirtyData, writing: ClusterWriting | None) -> CoherenceService:
    async def release_lease(directory: bytes) -> None:
        if writing is not None:
            await writing.leases.release(directory)

    return CoherenceService(
        me,
        dirty.files,
        dirty.replica_host,
        publisher=None if writing is None else writing.publisher,
        own=None if writing is None else writing.own,
        release_lease=release_lease,
    )
