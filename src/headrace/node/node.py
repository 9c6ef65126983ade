"""Build a node from the objects of all packages, lowest package first; stop them in reverse. No other module builds
them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol

import uvloop

from headrace.base.errors import (
    CorruptIndexError,
    HeadraceError,
    StoreError,
)
from headrace.base.garbage_collector import collect_rarely
from headrace.base.kept_file import KeptFile
from headrace.base.listeners import Listeners
from headrace.base.logs import log_to_stderr
from headrace.base.model import FileId
from headrace.base.private_folder import make_private
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config, broker_socket_of
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.read import ReadPath
from headrace.dataplane.scrub import Scrub
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.source import SourceFactory
from headrace.dataplane.tier_mover import TierMover
from headrace.entry.rpc.server import RpcServer, Subscribers
from headrace.jobs.auto_seal import AutoSealRules
from headrace.jobs.expiry import CachedLives, Expiry
from headrace.jobs.jobs import Jobs
from headrace.namespace.mounts import MountTable, normal_path
from headrace.namespace.namespace import Namespace
from headrace.node.attachments import Attachments
from headrace.node.brokering import build_broker
from headrace.node.cache import (
    close_after_failure,
    index_folder,
    mark_index_corrupt,
    move_index_away,
    open_store,
)
from headrace.node.cluster_spending import ClusterSpending
from headrace.node.cluster_trial import build_trial
from headrace.node.gateways import Gateways
from headrace.node.lifecycle import report_failed, report_ready, stop_on_signals
from headrace.node.location_requests import LocationRequests
from headrace.node.mount_traces import MountTraces
from headrace.node.origin_budgets import OriginBudgets
from headrace.node.origin_costs import OriginCosts
from headrace.node.origin_events import OriginEvents
from headrace.node.plan_requests import PlanRequests
from headrace.node.policies import Policies, PolicyFile, load_policy
from headrace.node.policy_advice import ReadStatistics
from headrace.node.policy_requests import PolicyRequests
from headrace.node.requests import (
    Handlers,
    JobRequests,
    MountRequests,
    NameRequests,
    ReadRequests,
    Requests,
    SealRequests,
    WriteRequests,
)
from headrace.node.seals_status import SealsStatus
from headrace.node.session_events import SessionEvents
from headrace.node.space_policy import NodeCapacity, Regrouping
from headrace.node.upkeep import Upkeep
from headrace.node.writing import CacheOfLayer, build_persister, build_single
from headrace.origin.pace import OriginPaces
from headrace.plan.planned_files import PlannedFiles
from headrace.policy.current import CurrentPolicy
from headrace.policy.spending import RECORD_BYTES_MAX
from headrace.prefetch.cached_numbers import CachedNumbers
from headrace.prefetch.fetcher import PlannedFetcher
from headrace.prefetch.kept_epochs import KeptEpochs
from headrace.prefetch.plan_table import PlanTable
from headrace.prefetch.predicted_fetcher import PredictedFetcher
from headrace.prefetch.prediction_table import PredictionTable
from headrace.seal.catalogue import Catalogue
from headrace.store.store import Store
from headrace.store.volume import Volume
from headrace.wire.messages import (
    PROTOCOL,
    Answer,
    Completed,
    Done,
    Evicted,
    GatewayCounts,
    JobStart,
    OpenMany,
    Report,
    Request,
    Shutdown,
    StatusAsk,
    Welcome,
)
from headrace.writeback.exclusive_claims import ExclusiveClaims
from headrace.writeback.native_changes import native_changes_of
from headrace.writeback.writeback import WriteBack

if TYPE_CHECKING:
    from headrace.entry.broker.server import Broker
    from headrace.namespace.owner_listing import OwnerListingClient
    from headrace.node.cluster_link import ClusterLink
    from headrace.node.cluster_services import ClusterServices
    from headrace.node.cluster_writing import ClusterWriting

log = logging.getLogger(__name__)

DISK_THREADS = 4


class _Stoppable(Protocol):
    async def stop(self) -> None: ...


class Node:
    """Holds the parts of a running node. Build it with `Node.start`; end it with `stop`."""

    def __init__(
        self,
        config: Config,
        store: Store,
        planned: PlannedFiles,
        policies: Policies,
        lives: CachedLives,
        link: ClusterLink | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.began_s = time.monotonic()
        self.stopping = asyncio.Event()
        self.failed = False
        self.subscribers = Subscribers()
        self.sessions = SessionEvents(self.subscribers)
        self.gateways = Gateways()
        self.disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        # names, and where bytes come from
        self.mounts = MountTable()
        self.policies = policies
        self.paces = OriginPaces()
        self.origin_budgets = _build_origin_budgets(self, link)
        self.costs = _build_costs(self, link)
        self.gate = Gate(Window(maximum=config.fill_concurrency_max), bytes_max=config.fill_bytes_max)
        self.sources, owner_listing = self._build_sources(link)
        self.namespace = Namespace.build(
            store.index,
            self.mounts,
            timeout_s=config.origin_timeout_s,
            on_changed=self._names_changed,
            policy=self.policies.current,
            shared=owner_listing,
            others=None if link is None else link.dirty.elsewhere,
        )
        self.origin_events = OriginEvents(self.namespace.changed_directories, link)
        self.trial = build_trial(store, policies, config.replicas, link)
        # writes, then reads, which take a file of the upper layer before they ask an origin
        cache = CacheOfLayer(store, self.sources.owns)
        writing = None if link is None else self._build_cluster_writing(link, cache)
        if link is None:
            self.write = build_single(config, self.namespace, cache, self.sessions)
        else:
            self.write = None if writing is None else writing.write_back
        self.native = None if self.write is None else native_changes_of(self.write)
        self.reads = self._build_reads()
        self.plans = _build_plans(self, planned)
        self.planned_fetcher = _build_planned_fetcher(self)
        self.predictions, self.predicted_fetcher, self.kept_epochs = self._build_predictions()
        self.regrouping = Regrouping(store.space, policies.current)
        self.expiry = Expiry(store, policies.current, lives, self.disk, forget=self.reads.forget)
        store.space.evicted.add(self._evicted)
        # parts that work on whole directories, and on the whole cache
        self.attachments = _build_attachments(self, link)
        self.jobs = _build_jobs(self)
        self.scrub = self._build_scrub() if config.scrub_bytes_s > 0 else None
        self.tier_mover = _build_tier_mover(self)
        self.cluster = None if link is None else self._build_cluster(link, writing, cache.adopted)
        self.upkeep = Upkeep(
            *(store, self.reads, self.disk),
            write=self.write,
            cluster=self.cluster,
            revoke_seal=self.jobs.auto_seal.revoke_oldest,
            release_seals=self.jobs.sealing.release_unused,
            on_corrupt=self._stop_for_corrupt_index,
        )
        self.requests = self._build_requests()
        welcome = _welcome(config, store)
        self.server = RpcServer(welcome, self.subscribers, answer=self.answer, stream=self._stream)
        self.broker: Broker | None = None

    def _build_sources(self, link: ClusterLink | None) -> tuple[SourceFactory, OwnerListingClient | None]:
        """Return where bytes and listings come from; None: listings come from the origins alone."""
        if link is None:
            return SourceFactory(self.gate, timeout_s=self.config.origin_timeout_s, accounts=self.costs), None
        from headrace.node.cluster_reading import build_owner_listing, build_sources

        return build_sources(self.config, link, self.gate, self.costs), build_owner_listing(self.config, link)

    def _build_cluster_writing(self, link: ClusterLink, cache: CacheOfLayer) -> ClusterWriting | None:
        from headrace.node.cluster_writing import build_in_cluster

        return build_in_cluster(self.config, link, self.namespace, cache, self.sessions)

    def _build_reads(self) -> ReadPath:
        return ReadPath(
            self.namespace,
            self.store,
            self.sources,
            self.disk,
            ReadSettings(
                range_bytes=self.config.fill_range_bytes,
                small_file_bytes_max=self.config.small_file_bytes_max,
                readahead_bytes=self.config.readahead_bytes,
                whole_file_after_bytes=self.config.whole_file_after_bytes,
                verify_origin=self.config.verify_origin,
            ),
            on_complete=lambda ids: self.subscribers.publish(Completed(ids=[int(id) for id in ids])),
            on_damaged=lambda ids: self.subscribers.drop_damaged([int(id) for id in ids]),
            demote=None if self.write is None else self.write.demote,
        )

    def _build_predictions(self) -> tuple[PredictionTable, PredictedFetcher, KeptEpochs]:
        table = PredictionTable(self.namespace.tree, self.plans.is_planned)
        fetcher = PredictedFetcher(
            *(table, self.planned_fetcher, self.reads, self.sources),
            store=self.store,
            tree=self.namespace.tree,
            watermark_low=self.config.watermark_low,
        )
        has_room = partial(self.store.space.has_free, 0, share=self.config.watermark_low)
        kept_epochs = KeptEpochs(table, has_room)
        if self.config.predict_reads:
            self.store.space.evicted.add(kept_epochs.note_evicted)
            self.reads.objections.append(kept_epochs.keeps_out)
        return table, fetcher, kept_epochs

    def _build_requests(self) -> Requests:
        statistics = ReadStatistics(self.store.index, self.mounts, self.policies.current, self.costs)
        reads, writes = (
            ReadRequests(self.reads, self.store, self.predictions, statistics, self.namespace.refresh_ahead),
            WriteRequests(self.write, self.cluster),
        )
        jobs = JobRequests(self.jobs, writes, self.cluster, self.subscribers.deliver)
        handlers: Handlers = {
            **NameRequests(self.namespace, self.store, self.config.origin_timeout_s).handlers,
            **reads.handlers,
            **writes.handlers,
            **MountRequests(self.attachments, self.mounts, self.cluster, self.policies).handlers,
            **jobs.handlers,
            **SealRequests(self.jobs.shared_seals).handlers,
            **PlanRequests(self.plans, self.planned_fetcher, self.predictions).handlers,
            **self.origin_events.handlers,
            **self.attachments.traces.handlers,
            **PolicyRequests(
                self.policies, self.mounts, self.store, self.config, self.trial, statistics
            ).handlers,
            **LocationRequests(self.namespace.tree, self.store, self.policies.current, self.cluster).handlers,
            StatusAsk: partial(self._report, SealsStatus(self.jobs.sealing.status, self.disk)),
            GatewayCounts: self._record_gateway,
            Shutdown: self._shut_down,
        }
        return Requests(handlers, reads, jobs)

    def _build_scrub(self) -> Scrub:
        return Scrub(
            *(self.store, self.config.scrub_bytes_s),
            load=partial(self.reads.load, job="scrub"),
            on_damaged=self._damaged,
            entry_of=self.namespace.tree.entry_at,
            written=None if self.write is None else self.write.for_scrub(),
        )

    def _build_cluster(
        self, link: ClusterLink, writing: ClusterWriting | None, adopted: Listeners[[list[FileId]]]
    ) -> ClusterServices:
        from headrace.node.cluster_services import build_services
        from headrace.node.shared_mounts import SharedMounts
        from headrace.writeback.coherence.invalidation import InvalidationObserver

        observers = [InvalidationObserver(link.dirty.announcer), self.sessions]
        mounts = SharedMounts(
            link.records,
            attach=self.attachments.attach_shared,
            detach=self.attachments.remove,
            check=self.attachments.allowed.check,
        )
        return build_services(
            *(link, self.config, mounts),
            store=self.store,
            namespace=self.namespace,
            reads=self.reads,
            jobs=self.jobs,
            writing=writing,
            trial=self.trial.own,
            adopted=adopted,
            persister=lambda directory: build_persister(
                self.config, self.namespace, directory, link.dirty.resolve_version, observers
            ),
        )

    @classmethod
    async def start(cls, config: Config, *, again: bool = False) -> Node:
        """Recover the cache, attach the mounts and listen. On HeadraceError everything is released. again: don't
        check origins first, so that a killed node can serve its cache while an origin is unavailable."""
        try:
            return await cls._started(config, again=again)
        except CorruptIndexError as error:  # found at first use
            move_index_away(config, error)
            return await cls._started(config, again=again)

    @classmethod
    async def _started(cls, config: Config, *, again: bool) -> Node:
        planned, policy = PlannedFiles(), CurrentPolicy()
        lives = CachedLives(policy)
        capacity = NodeCapacity(sum(volume.capacity_bytes for volume in config.cache))
        file = PolicyFile(config.cache[0].folder)
        await load_policy(policy, file)
        store = open_store(config, planned, policy, lives, capacity)
        link: ClusterLink | None = None
        node: Node | None = None
        try:
            link = _build_link(config, store, policy)
            if link is not None:
                link.on_view.add(partial(capacity.note_view, link.info.id))
            policies = Policies(policy, capacity, file, None if link is None else link.records)
            node = cls(config, store, planned, policies, lives, link)
            await node.attachments.attach_configured(check=not again)
            await node._join(again=again)
            make_private(os.path.dirname(config.socket_path))
            await node.server.start(config.socket_path)
            node._serve_others()
            _start_background(node)
        except BaseException:
            if node is not None:
                await _stop_after_failure(node)
            if link is not None and (node is None or node.cluster is None):
                await link.stop()
            close_after_failure(store)
            raise
        return node

    async def _join(self, *, again: bool) -> None:
        """Serve peers and join the cluster, and begin to persist. The cluster's mounts are attached on return, or soon
        after. again: the node was killed."""
        if self.cluster is not None:
            from headrace.node.shared_mounts import MountRecord, remembered_mounts

            own = {
                normal_path(path): MountRecord(mount.url, dict(mount.options))
                for path, mount in self.config.mounts.items()
            }
            attached = {mount.path: mount.url for mount in self.mounts.all()}
            remembered = remembered_mounts(attached, self.store.index.mounts.all(), own=own)
            await self.cluster.start(own, remembered)
            self.policies.start(self.cluster.joined)
        joined = None if self.cluster is None else self.cluster.joined
        self.origin_budgets.start(joined)
        await self.costs.start(joined)
        if self.write is not None and self.native is not None:
            if self.cluster is not None:
                await self.cluster.fail_back()
            await self._claim_exclusive(self.write, again=again)
            self.native.start()
            await self.write.start()

    async def _claim_exclusive(self, write: WriteBack, *, again: bool) -> None:
        """Claim the exclusive directories, in the cluster and against the origin."""
        claims = ExclusiveClaims(self.namespace, write.layer, limit_s=self.config.origin_timeout_s)
        kept = claims.tokens()
        tokens = {} if self.cluster is None else await self.cluster.claim_directories(kept)
        try:
            await claims.claim(again=again, tokens=tokens)
        except HeadraceError:
            if self.cluster is not None:
                await self.cluster.give_up_claims(partial(_is_new, kept, tokens))
            raise

    def _serve_others(self) -> None:
        """Hand descriptors of cached files to other users, if the configuration permits it."""
        if self.config.open_to_others:
            parts = (self.namespace, self.store, self.reads)
            self.broker = build_broker(self.config, *parts, on_corrupt=self._stop_for_corrupt_index)
            self.broker.start(broker_socket_of(self.config.socket_path))

    async def stop(self) -> None:
        for part in _parts_to_stop(self):
            if part is self.write and self.write is not None and self.cluster is not None:
                await self.cluster.give_up_claims(self.write.programs.has_persisted)
            await part.stop()
        await self.reads.close()
        for mount in self.mounts.all():
            await mount.origin.close()
        self.disk.shutdown()
        self.store.close()

    # ------------------------------------------------------------ requests

    async def answer(self, request: Request) -> Answer:
        """Answer a request of the RPC server."""
        try:
            return await self.requests.answer(request)
        except CorruptIndexError as error:
            self._stop_for_corrupt_index(error)
            raise

    async def _stream(self, request: JobStart | OpenMany) -> AsyncIterator[Answer]:
        try:
            async for state in self.requests.stream(request):
                yield state
        except CorruptIndexError as error:
            self._stop_for_corrupt_index(error)
            raise

    async def _report(self, seals: SealsStatus, _: StatusAsk) -> Report:
        return Report(status={**self.status(), **await seals.get()})

    async def _record_gateway(self, counts: GatewayCounts) -> Done:
        self.gateways.record(counts)
        return Done()

    async def _shut_down(self, _: Shutdown) -> Done:
        self.stopping.set()
        return Done()

    def status(self) -> dict[str, object]:
        """Return the fields of `headrace status --json` for a node."""
        origins = {mount.path: mount.origin.statistics() for mount in self.mounts.all()}  # type: ignore[attr-defined]
        total = {
            key: sum(int(statistics.get(key, 0)) for statistics in origins.values())
            for key in ("requests", "bytes_read", "errors")
        }
        return {
            "node": {
                "pid": os.getpid(),
                "uptime_s": round(time.monotonic() - self.began_s, 1),
                "socket": self.config.socket_path,
            },
            "cache": {
                **self.store.statistics(),
                "disks_full": self.upkeep.disks_full,
                "disks_spent": self.upkeep.disks_spent,
                "disks_failing": [volume.folder for volume in self.store.disks if volume.is_failing],
                "volumes": {volume.folder: _volume_status(volume) for volume in self.store.disks},
                "moves": self.tier_mover.statistics(),
                "disks_too_small": [volume.folder for volume in self.store.disks if volume.is_cut],
            },
            "index": self.store.index.statistics(),
            "origin": {**total, "mounts": origins, "checksums": self.reads.digests.statistics()},
            "mounts": [
                {"path": mount.path, "url": mount.url, "sync_interval_s": mount.sync_interval_s}
                for mount in self.mounts.all()
            ],
            "seal_auto": self.jobs.auto_seal.status(),
            "plans": self.planned_fetcher.statistics(),
            "predictions": {
                **self.predicted_fetcher.statistics(),
                "files_kept_out": self.kept_epochs.kept_out_files,
            },
            "policy": {
                **self.policies.status(self.store.space),
                "origins": self.origin_budgets.status(),
            },
            "events": self.origin_events.status(),
            "costs": self.costs.status(),
            "expiry": self.expiry.statistics(),
            "scrub": {} if self.scrub is None else self.scrub.statistics(),
            "fill": {"in_flight": self.gate.in_flight, "concurrency": round(self.gate.window.limit, 1)},
            "peers": self.sources.statistics(),
            "gateways": self.gateways.status(),
            "write": {} if self.write is None else self.write.status(),
            **(
                {"cluster": {}, "rebalance": {}, "copies": {}}
                if self.cluster is None
                else self.cluster.status()
            ),
        }

    # ------------------------------------------------------------ events

    def _names_changed(self, names: list[tuple[FileId, bytes]]) -> None:
        if self.cluster is not None:
            self.cluster.names_changed(names)
        if self.write is not None:
            self.write.names_changed(self.namespace.tree.paths_of(names))
        self.jobs.auto_seal.names_changed(names)
        self.sessions.invalidate(names)

    def _evicted(self, ids: list[FileId]) -> None:
        self.reads.forget(ids)
        self.subscribers.publish(Evicted(ids=[int(id) for id in ids]))

    async def _damaged(self, ids: list[FileId]) -> None:
        """Make clients of this host drop the cached bytes of damaged files. On return only handles that are already
        open read them."""
        self.reads.forget(ids)
        await self.subscribers.drop_damaged([int(id) for id in ids])

    def _stop_for_corrupt_index(self, error: CorruptIndexError) -> None:
        """Stop the node because a page of the index is damaged. The next run starts with a new index."""
        log.error(
            "the index is corrupt, the node stops so that the next run creates it again error=%s", error
        )
        self.failed = True
        mark_index_corrupt(self.config)
        self.stopping.set()


def _volume_status(volume: Volume) -> dict[str, object]:
    return {
        "tier": volume.tier,
        "capacity_bytes": volume.capacity_bytes,
        "used_bytes": volume.used_bytes,
        "written_bytes": volume.written.total_bytes,
        "written_bytes_day": volume.written.day_bytes(),
        "writes_a_day": volume.writes_a_day,
        "failures": volume.failures,
    }


def _start_background(node: Node) -> None:
    """Start the parts that work by themselves."""
    node.upkeep.start()
    node.origin_events.start()
    node.attachments.traces.start(
        node.attachments.remove if node.cluster is None else node.cluster.mounts.remove
    )
    node.planned_fetcher.start()
    node.regrouping.start()
    node.tier_mover.start()
    node.expiry.start()
    if node.config.predict_reads:
        node.predicted_fetcher.start()
    node.jobs.auto_seal.start()
    node.jobs.lazy_seals.start()
    if node.scrub is not None:
        node.scrub.start()


def _parts_to_stop(node: Node) -> list[_Stoppable]:
    """Return the parts that stop before the reads end, in that order. Each also stops if it was not started."""
    parts: tuple[_Stoppable | None, ...] = (
        *(node.upkeep, node.origin_events, node.namespace.changed_directories),
        *(node.predicted_fetcher, node.planned_fetcher, node.jobs.auto_seal, node.jobs.lazy_seals),
        *(node.policies, node.origin_budgets, node.costs, node.regrouping, node.tier_mover, node.expiry),
        *(node.namespace.refresh_ahead, node.namespace.freshness, node.scrub, node.server, node.broker),
        *(node.native, node.write),
        *(node.attachments.traces, node.cluster),
    )
    return [part for part in parts if part is not None]


async def _stop_after_failure(node: Node) -> None:
    """Stop what a failed start began: the node may start again in this process. Errors are only logged, because the
    first failure is the one to report. A claim is kept: the next start has it."""
    stops = [part.stop for part in _parts_to_stop(node)]
    origins = [mount.origin.close for mount in node.mounts.all()]
    for stop in (*stops, node.reads.close, *origins):
        try:
            await stop()
        except Exception:
            log.exception("a part of a node that did not start can't be stopped")
    node.disk.shutdown()


async def _is_new(kept: dict[bytes, str], tokens: dict[bytes, str], top: bytes) -> bool:
    """Return whether this node claimed a directory just now, and has nothing there that it must persist."""
    return kept.get(top) != tokens[top]


def _build_link(config: Config, store: Store, policy: CurrentPolicy) -> ClusterLink | None:
    """Return the link to the cluster, or None without a cluster. A node without one doesn't import its modules."""
    if not config.cluster:
        return None
    from headrace.node.cluster_link import build_link

    return build_link(config, policy, capacity_bytes=sum(volume.capacity_bytes for volume in store.disks))


def _build_origin_budgets(node: Node, link: ClusterLink | None) -> OriginBudgets:
    parts = (node.policies.current, node.paces, node.policies.capacity)
    if link is None:
        return OriginBudgets(*parts, node="", records=None)
    return OriginBudgets(*parts, node=link.info.id, records=link.records)


def _build_costs(node: Node, link: ClusterLink | None) -> OriginCosts:
    return OriginCosts(
        *(node.policies.current, node.policies.capacity),
        KeptFile(node.config.cache[0].folder, "costs.json", bytes_max=RECORD_BYTES_MAX),
        cluster=None
        if link is None
        else ClusterSpending(link.info.id, link.records, lambda: link.view().nodes),
    )


def _build_attachments(node: Node, link: ClusterLink | None) -> Attachments:
    return Attachments(
        node.config,
        node.store.index,
        node.namespace,
        node.subscribers,
        paces=node.paces,
        events=node.origin_events,
        traces=MountTraces(node.mounts, link),
        has_written=lambda: node.write is not None and node.write.has_written,
    )


def _build_jobs(node: Node) -> Jobs:
    config = node.config
    return Jobs(
        *(node.namespace, node.store, node.reads, node.disk),
        catalogue=Catalogue.of_cache(config.cache[0].folder),
        modes=WriteModes.parse(config.write),
        on_damaged=node._damaged,
        auto_seal=AutoSealRules(node.policies.current, config.seal == "auto", config.seal_quiet_s),
    )


def _build_tier_mover(node: Node) -> TierMover:
    mover = TierMover(node.store, node.disk, node.gate, bytes_s=node.config.tier_move_bytes_s)
    node.policies.current.changed.add(lambda _: mover.place_again())
    return mover


def _build_plans(node: Node, planned: PlannedFiles) -> PlanTable:
    cached = CachedNumbers(planned, node.store.index, node.reads.has)
    return PlanTable(planned, node.namespace, cached)


def _build_planned_fetcher(node: Node) -> PlannedFetcher:
    node.store.space.evicted.add(node.plans.note_evicted)
    parts = (node.plans, node.reads, node.store, node.namespace.tree)
    return PlannedFetcher(*parts, watermark_low=node.config.watermark_low)


def _welcome(config: Config, store: Store) -> Welcome:
    return Welcome(
        protocol=PROTOCOL,
        index=index_folder(config),
        volumes=[volume.folder for volume in store.volumes],
        generation=store.generation,
        upper=config.upper_folder,
        write=config.write,
        durable_puts=config.durable_puts,
        tiers=tuple(volume.tier for volume in store.disks),
    )


def run_node(config: Config, *, ready_fd: int | None = None, again: bool = False) -> int:
    """Run a node until SIGTERM, SIGINT, SIGHUP or Shutdown; return 0 then, and 1 when it could not start."""
    log_to_stderr(config.log_level)
    collect_rarely()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, ready_fd, again=again))


async def _run(config: Config, ready_fd: int | None, *, again: bool) -> int:
    try:
        node = await Node.start(config, again=again)
    except HeadraceError as error:
        report_failed(ready_fd, error)
        log.error("node did not start error=%s", error)
        return 1
    stop_on_signals(node.stopping)
    if not report_ready(ready_fd, config.socket_path):
        log.warning(
            "the process that started this node has ended, so the node ends"
        )  # no command knows of it
        node.stopping.set()
    await node.stopping.wait()
    try:
        await node.stop()
    except CorruptIndexError as error:
        node._stop_for_corrupt_index(error)
    except StoreError as error:  # a disk has failed
        log.error(
            "the cache was not synced at the end, the next start verifies its new files error=%s", error
        )
        return 1
    return 1 if node.failed else 0
