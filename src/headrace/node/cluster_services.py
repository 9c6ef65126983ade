"""Run a node's services in its cluster: answer peers, take part in jobs, hand over files, attach the shared mounts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import msgspec

from headrace.base.errors import ClusterUnavailableError, UsageError
from headrace.base.model import FileId, Version
from headrace.base.write_modes import WriteModes
from headrace.cluster.membership import PREFIX as MEMBERS
from headrace.config.schema import Config
from headrace.dataplane.coherence_service import CoherenceService
from headrace.dataplane.directory_lease import DirectoryLeases
from headrace.dataplane.dirty_files import DirtyFiles
from headrace.dataplane.failback import Failback
from headrace.dataplane.failover import Failover
from headrace.dataplane.peer_service import NodePeerService, ReplicationService
from headrace.dataplane.placement import ReplicaSetRecords
from headrace.dataplane.publisher import DirtyNamesPublisher
from headrace.dataplane.read import ReadPath
from headrace.dataplane.rebalance import Rebalance
from headrace.dataplane.replica_host import ReplicaHost
from headrace.dataplane.replicator import ReplicaOffers
from headrace.dataplane.writeback import WriteBack
from headrace.jobs.cluster_jobs import KINDS, WATCH, ClusterJobs
from headrace.jobs.jobs import Jobs
from headrace.namespace.dirty_scope import PREFIX as WRITTEN
from headrace.namespace.tree import Namespace
from headrace.node.cluster_link import ClusterLink
from headrace.node.invalidation import InvalidationBroadcaster
from headrace.node.shared_mounts import Attach, Check, Detach, MountRecord, SharedMounts
from headrace.overlay.pending_version import PendingVersion
from headrace.overlay.upper import Upper
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.store.store import Store
from headrace.wire.messages import JobStart, JobState

log = logging.getLogger(__name__)

POLL_S = 0.25
KEEP_THREADS = 8


class ClusterServices:
    """Holds the services of one node. hood: the link to the cluster, not started yet; `stop` also stops it. attach,
    detach: change a mount on this node only. check: raises for an origin that a record may not attach."""

    def __init__(
        self,
        hood: ClusterLink,
        config: Config,
        *,
        store: Store,
        namespace: Namespace,
        reads: ReadPath,
        jobs: Jobs,
        write: WriteBack | None,
        persister: Callable[[str], WriteBack],
        attach: Attach,
        detach: Detach,
        check: Check,
    ) -> None:
        self._hood = hood
        self._namespace = namespace
        self._elsewhere = hood.elsewhere
        self._rights: DirectoryLeases | None = None
        self._local_jobs = jobs
        self._replicas = config.replicas
        self._write = write
        self._copies = None
        holders = ReplicaSetRecords(hood.records)
        self._leases_lost = 0
        self._announcer = InvalidationBroadcaster(hood.forget, hood.view)
        if write is not None:
            write.ask_others = Failback(hood.info.id, hood.peers, write.known, view=hood.view).ask
        if write is not None and WriteModes.parse(config.write).copies_max > 1:
            self._copies = write.keep_copies(hood.info.id, hood.peers, hood.view, holders)
        self._threads = ThreadPoolExecutor(KEEP_THREADS, thread_name_prefix="keep")
        keeper = self.keeper = _keeper(hood, config, self._threads)
        self._take_over = Failover(
            hood.info.id,
            keeper,
            holders,
            view=hood.view,
            build=lambda folder: self._persister(persister, folder),
            on_persisted=self._nothing_left,
            delay_s=config.take_over_s,
        )
        files = self._share_writes(config, write)
        self._desk = NodePeerService(
            namespace,
            store,
            reads,
            owns=self._owns,
            on_forget=self._relist,
            copies=ReplicationService(
                keeper, self._take_over, ReplicaOffers() if self._copies is None else self._copies.offers
            ),
            shared=CoherenceService(
                hood.info.id, files, self._take_over, None if write is None else write.told, self._give_up
            ),
        )
        self._rebalance = Rebalance(
            hood.info.id,
            store,
            hood.peers,
            view=hood.view,
            replicas=config.replicas,
            bytes_s=config.rebalance_bytes_s,
        )
        self.mounts = SharedMounts(hood.records, attach=attach, detach=detach, check=check)
        self.jobs = ClusterJobs(hood.info.id, hood.records, jobs, view=hood.view, replicas=config.replicas)
        self._relisting: set[asyncio.Task[None]] = set()
        self._waiting: asyncio.Task[None] | None = None
        hood.on_view = self._on_new_view

    async def start(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        """Serve peers and join the cluster, or join later when etcd is unavailable and the last known members are
        used. own: the mounts of the configuration; remembered: those of an earlier run. Raise the errors of
        ClusterLink.start, and UsageError when the cluster has another origin at one of the node's own mounts."""
        await self._hood.start(self._desk)
        if self._hood.membership.joined.is_set():
            await self._take_part(own, remembered)
        else:
            self._waiting = asyncio.ensure_future(self._take_part_later(own, remembered))

    async def come_back(self) -> None:
        """Learn what other nodes persisted of this node's files since its last run, before it persists them itself."""
        if self._write is not None:
            await self._write.ask_others()

    async def look_whether_given_up(self) -> None:
        """Learn what other nodes did in this node's place, if they took it for dead while it was alive."""
        leases_lost = self._hood.records.leases_lost
        if leases_lost != self._leases_lost:
            self._leases_lost = leases_lost
            await self.come_back()

    def _share_writes(self, config: Config, write: WriteBack | None) -> DirtyFiles:
        """Connect this node's dirty names and those of the other nodes, in both directions."""
        hood = self._hood
        upper = Upper(config.upper_folder)
        files = DirtyFiles(hood.info.id, self._threads, at=upper.at, folder_of=self.keeper.folder_of)
        self._elsewhere.mirrored = files.mirrored
        self._elsewhere.on_changed = self._namespace.schedule_refresh
        hood.share_written(self._elsewhere.sources, files.read, self._settle)
        if write is None:
            return files
        write.settle_by(self._settle)
        pending_names = write.told
        me, records, peers = hood.info.id, hood.records, hood.peers
        self._rights = pending_names.rights = DirectoryLeases(
            me, records, peers, upper, view=hood.view, look=self._look_at, tell=pending_names.tell_all_of
        )
        pending_names.registry = DirtyNamesPublisher(
            *(me, hood.info.instance, records, peers),
            view=hood.view,
            look=pending_names.means,
            is_clean=pending_names.is_clean,
            unmark=pending_names.unmark,
        )
        self._elsewhere.on_own_record_deleted = pending_names.registry.record_again
        return files

    def _persister(self, build: Callable[[str], WriteBack], folder: str) -> WriteBack:
        write = build(folder)
        write.settle_by(self._settle)
        return write

    async def _settle(self, path: bytes, version: Version) -> Version | None:
        """Return the version at the origin that a pending version became, as DirtyNamesSubscriber.settle does; this
        node may itself have persisted it in the writer's place."""
        pending = PendingVersion.parse(version.token)
        persisted = None if pending is None else self._take_over.taken(path, pending)
        return persisted if persisted is not None else await self._elsewhere.settle(path, version)

    async def _nothing_left(self, writer: str) -> None:
        """Delete the record of a dead node whose files are all persisted, so that others stop showing its dirty
        names. A node that is back keeps its record, because it wrote the record again."""
        await self._hood.records.delete(f"{WRITTEN}/{writer}", unless=f"{MEMBERS}{writer}")

    async def _give_up(self, folder: bytes) -> None:
        if self._rights is not None:
            await self._rights.give_up(folder)

    async def claim(self, folder: bytes) -> None:
        """Acquire the lease for new names in a directory."""
        if self._rights is not None:
            await self._rights.claim(folder)

    async def _look_at(self, folder: bytes) -> None:
        await self._elsewhere.catch_up()
        await self._namespace.refresh_for_names(folder)

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
        self._announcer.stop()
        await self._rebalance.stop()
        await self.mounts.stop()
        for task in self._relisting:
            task.cancel()
        await self._hood.stop()
        self._threads.shutdown(wait=False)

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

    async def announce(self, folders: set[bytes]) -> None:
        """Invalidate the listings of directories that this node changed at their origin."""
        await self._announcer.announce(folders)

    def status(self) -> dict[str, Any]:
        cluster = {**self._hood.status(), **self._take_over.status()}
        return {"cluster": cluster, "rebalance": self._rebalance.statistics()}

    # ------------------------------------------------------------ internal

    def _on_new_view(self, view: ClusterView) -> None:
        self._rebalance.on_view(view)
        self.jobs.on_view()
        self._take_over.on_view()
        self._elsewhere.on_view()
        if self._copies is not None:
            self._copies.on_view()

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


def _keeper(hood: ClusterLink, config: Config, threads: Executor) -> ReplicaHost:
    arguments = (hood.info.id, config.copies_folder, hood.peers, threads)
    return ReplicaHost(*arguments, view=hood.view, is_durable=config.durable_puts)
