"""What a node does together with the others of its cluster: it answers them, takes its part of jobs, hands over what
moved, attaches the mounts that all have."""

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

LOOK_S = 0.25
KEEP_THREADS = 8


class ClusterServices:
    """hood: not started yet; `stop` stops it, too. attach, detach: a mount, on this node only. check: raises
    for an origin that nobody else may attach."""

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
        hood.on_view = self._viewed

    async def start(self, own: dict[str, MountRecord], remembered: dict[str, MountRecord]) -> None:
        """Peers are answered and this node is in the cluster on return; while etcd is away, later, where it can go by
        the view of its last run. own: the mounts of its configuration; remembered: of an earlier run. Errors as of
        Neighbourhood.start, and UsageError where the cluster has another origin at one of its own."""
        await self._hood.start(self._desk)
        if self._hood.membership.joined.is_set():
            await self._take_part(own, remembered)
        else:
            self._waiting = asyncio.ensure_future(self._take_part_later(own, remembered))

    async def come_back(self) -> None:
        """Before this node persists what it wrote in its last run: what others persisted of it meanwhile is noted."""
        if self._write is not None:
            await self._write.ask_others()

    async def look_whether_given_up(self) -> None:
        """A node that others took for gone, although it lived, learns what they did in its place."""
        lost = self._hood.records.leases_lost
        if lost != self._leases_lost:
            self._leases_lost = lost
            await self.come_back()

    def _share_writes(self, config: Config, write: WriteBack | None) -> DirtyFiles:
        """What other nodes write is seen here, and the other way round."""
        hood = self._hood
        upper = Upper(config.upper_folder)
        files = DirtyFiles(hood.info.id, self._threads, at=upper.at, folder_of=self.keeper.folder_of)
        self._elsewhere.mirrored = files.mirrored
        self._elsewhere.on_stirred = self._namespace.stirred
        hood.share_written(self._elsewhere.sources, files.read, self._settle)
        if write is None:
            return files
        write.settle_by(self._settle)
        told = write.told
        me, records, peers = hood.info.id, hood.records, hood.peers
        self._rights = told.rights = DirectoryLeases(
            me, records, peers, upper, view=hood.view, look=self._look_at, tell=told.tell_all_of
        )
        told.registry = DirtyNamesPublisher(
            *(me, hood.info.instance, records, peers),
            view=hood.view,
            look=told.means,
            is_clean=told.is_clean,
            unmark=told.unmark,
        )
        self._elsewhere.on_own_gone = told.registry.record_again
        return files

    def _persister(self, build: Callable[[str], WriteBack], folder: str) -> WriteBack:
        write = build(folder)
        write.settle_by(self._settle)
        return write

    async def _settle(self, path: bytes, version: Version) -> Version | None:
        """As Elsewhere.settle, and this node may itself have persisted it in its writer's place."""
        written = PendingVersion.parse(version.token)
        own = None if written is None else self._take_over.taken(path, written)
        return own if own is not None else await self._elsewhere.settle(path, version)

    async def _nothing_left(self, writer: str) -> None:
        """Of a node that is gone: its record goes, and with that what others show of it. Not of one that is back: it
        has written its record again."""
        await self._hood.records.delete(f"{WRITTEN}/{writer}", unless=f"{MEMBERS}{writer}")

    async def _give_up(self, folder: bytes) -> None:
        if self._rights is not None:
            await self._rights.give_up(folder)

    async def claim(self, folder: bytes) -> None:
        """Of the right to make new names in a folder."""
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
                await asyncio.sleep(LOOK_S)
            except UsageError as error:
                log.error("mounts and jobs of the cluster are not followed error=%s", error)
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
        """Whether it is a job for all nodes, or waits for them."""
        return request.kind in (*KINDS, WATCH, "sync", "drain")

    def run(self, request: JobStart) -> AsyncIterator[JobState]:
        if request.kind == "sync":
            return self._sync(request)
        if request.kind == "drain":
            return self._drain()
        return self.jobs.run(request.kind, request.path, request.options)

    def names_changed(self, names: Iterable[tuple[FileId, bytes]]) -> None:
        """(parent, name) that mean something else than before."""
        self.jobs.pins.names_changed(names)

    async def announce(self, folders: set[bytes]) -> None:
        """Listings of these changed at their origin, by what this node put there."""
        await self._announcer.announce(folders)

    def status(self) -> dict[str, Any]:
        cluster = {**self._hood.status(), **self._take_over.status()}
        return {"cluster": cluster, "rebalance": self._rebalance.statistics()}

    # ------------------------------------------------------------ inside

    def _viewed(self, view: ClusterView) -> None:
        self._rebalance.on_view(view)
        self.jobs.on_view()
        self._take_over.on_view()
        self._elsewhere.on_view()
        if self._copies is not None:
            self._copies.on_view()

    def _owns(self, path: bytes, start: int) -> bool:
        return self._hood.owns(path, start // SEGMENT_BYTES, self._replicas)

    def _relist(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - as the desk calls it
        task = asyncio.ensure_future(self._namespace.relist_below(path, below=below))
        self._relisting.add(task)
        task.add_done_callback(self._relisting.discard)

    async def _sync(self, request: JobStart) -> AsyncIterator[JobState]:
        """Every node forgets first; then the owners ask the origin, and the others them. A node that can't be told
        sees the change when its listings expire."""
        path = os.fsencode(request.path)
        untold = dict(await self._hood.forget(path, relist=False))
        async for state in self._local_jobs.run(request.kind, request.path, request.options):
            if not state.done:
                yield state
                continue
            untold |= dict(await self._hood.forget(path, relist=True))
            failed = [(f"node {id}", why) for id, why in untold.items()]
            yield msgspec.structs.replace(
                state, failed=[*state.failed, *failed], failed_files=state.failed_files + len(failed)
            )

    async def _drain(self) -> AsyncIterator[JobState]:
        """Everything this node owned is with the others when it is done, but for what failed."""
        if len(self._hood.view().nodes) < 2:
            raise UsageError("node drain", why="there is no other node to hand over to")
        await self._hood.membership.drain()
        me = self._hood.info.id
        while any(member.id == me for member in self._hood.view().ring.members):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)  # until the cluster has told us so
        while self._rebalance.running:
            yield self._rebalance.state(done=False)
            await asyncio.sleep(LOOK_S)
        yield self._rebalance.state(done=True)


def _keeper(hood: ClusterLink, config: Config, threads: Executor) -> ReplicaHost:
    place = (hood.info.id, config.copies_folder, hood.peers, threads)
    return ReplicaHost(*place, view=hood.view, is_durable=config.durable_puts)
