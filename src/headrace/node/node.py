"""Build a node from the objects of all packages, lowest package first; stop them in reverse. No other module builds
them."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import uvloop

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    CorruptIndexError,
    DeadlineExceededError,
    HeadraceError,
    OriginUnavailableError,
    UsageError,
)
from headrace.base.logs import log_to_stderr
from headrace.base.model import FileId
from headrace.base.namespace_path import check_long_names
from headrace.base.places import check_places
from headrace.base.private_folder import make_private
from headrace.base.write_modes import WriteModes
from headrace.config.schema import Config, broker_socket_of, public_options
from headrace.config.secret_options import resolve_options
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.read import ReadPath, ReadSettings
from headrace.dataplane.scrub import Scrub
from headrace.dataplane.source import SourceFactory
from headrace.entry.rpc.server import RpcServer, Subscribers
from headrace.jobs.jobs import Jobs
from headrace.jobs.persist import persist_begun, persist_states
from headrace.namespace.mounts import Mount, MountTable, normal_path
from headrace.namespace.tree import Namespace
from headrace.node.brokering import build_broker
from headrace.node.cache import (
    close_after_failure,
    index_folder,
    mark_index_corrupt,
    open_store,
    put_aside,
)
from headrace.node.gateways import Gateways, describe
from headrace.node.lifecycle import say_failed, say_ready, stop_on_signals
from headrace.node.session_events import NAMES_A_MESSAGE, SessionEvents
from headrace.node.writing import CacheOfLayer, build_persister, build_single
from headrace.origin.allowed import AllowedOrigins
from headrace.origin.factory import build_origin, parse_origin
from headrace.origin.object_check import check_origin
from headrace.origin.options import verifies_opens
from headrace.store.recovery import doubt
from headrace.store.store import Store
from headrace.wire.messages import (
    PROTOCOL,
    AcquireLease,
    Answer,
    Changed,
    Completed,
    Describe,
    Done,
    Evicted,
    Filled,
    FillRange,
    GatewayCounts,
    Invalidated,
    JobCancel,
    JobList,
    JobRetry,
    JobRows,
    JobStart,
    List,
    Lookup,
    MountAdd,
    MountList,
    MountRemove,
    MountRow,
    Mounts,
    Open,
    Opened,
    OpenedMany,
    OpenMany,
    Report,
    Request,
    Resolve,
    Resolved,
    Secure,
    Shutdown,
    StatusAsk,
    Touch,
    Welcome,
)
from headrace.writeback.writeback import WriteBack

if TYPE_CHECKING:
    from headrace.entry.broker.server import Broker
    from headrace.jobs.cluster_jobs import ClusterJobs
    from headrace.node.cluster_link import ClusterLink
    from headrace.node.cluster_services import ClusterServices
    from headrace.node.cluster_writing import ClusterWriting

log = logging.getLogger(__name__)

DISK_THREADS = 4
UPKEEP_INTERVAL_S = 1.0
SYNC_INTERVAL_S = 30.0
IDLE_FILL_S = 15.0
CHECK_LIMIT_S = 10.0
CONFIGURED = "configured"
"""Marks a mount in the index that the configuration names."""
BY_OPERATOR = "by_operator"
"""Marks a mount in the index that an operator of this host attached, without limits, while the node had no cluster."""
GC_THRESHOLD = 50_000
"""Reference counting frees most garbage of a node; the collector's default would run after every 700 objects."""


class Node:
    """Is a running node. Build it with `Node.start`; end it with `stop`."""

    def __init__(self, config: Config, store: Store, hood: ClusterLink | None = None) -> None:
        self.config = config
        self.hood = hood
        self.store = store
        self.began_s = time.monotonic()
        self.stopping = asyncio.Event()
        self.failed = False
        self.disks_full: list[str] = []
        self.subscribers = Subscribers()
        self.gateways = Gateways()
        self.mounts = MountTable()
        self._allowed = AllowedOrigins(config.allowed_origins, config.mounts)
        self.gate = Gate(Window(maximum=config.fill_concurrency_max), bytes_max=config.fill_bytes_max)
        self.sources = (
            SourceFactory(self.gate, timeout_s=config.origin_timeout_s)
            if hood is None
            else hood.sources(self.gate)
        )
        self.disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="disk")
        self.namespace = Namespace(
            store.index,
            self.mounts,
            timeout_s=config.origin_timeout_s,
            on_changed=self._names_changed,
            shared=None if hood is None else hood.names(),
            others=None if hood is None else hood.elsewhere,
        )
        sessions = SessionEvents(self.subscribers)
        cache = CacheOfLayer(store, self.sources.owns)
        self.cluster_writing: ClusterWriting | None = None
        if hood is None:
            self.write = build_single(config, self.namespace, cache, sessions)
        else:
            self.cluster_writing = _writing_in_cluster(config, hood, self.namespace, cache, sessions)
            self.write = None if self.cluster_writing is None else self.cluster_writing.write_back
        self.reads = ReadPath(
            self.namespace,
            store,
            self.sources,
            self.disk,
            ReadSettings(
                range_bytes=config.fill_range_bytes,
                small_file_bytes_max=config.small_file_bytes_max,
                readahead_bytes=config.readahead_bytes,
                whole_file_after_bytes=config.whole_file_after_bytes,
                verify_origin=config.verify_origin,
            ),
            on_complete=lambda ids: self.subscribers.publish(Completed(ids=[int(id) for id in ids])),
            on_damaged=lambda ids: self.subscribers.drop_damaged([int(id) for id in ids]),
            bring=None if self.write is None else self.write.into_cache,
        )
        store.evicted.add(self._evicted)
        self.jobs = Jobs(self.namespace, store, self.reads, self.disk, on_damaged=self._damaged)
        self.server = RpcServer(
            _welcome(config, store), self.subscribers, answer=self.answer, stream=self._stream
        )
        self.together: ClusterServices | None = None
        self.broker: Broker | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self.scrub: Scrub | None = None
        if config.scrub_bytes_s > 0:
            self.scrub = Scrub(
                *(store, config.scrub_bytes_s),
                load=self.reads.load,
                on_damaged=self._damaged,
                entry_of=self.namespace.entry_at,
                written=None if self.write is None else self.write.for_scrub(),
            )

    @classmethod
    async def start(cls, config: Config, *, again: bool = False) -> Node:
        """Recover the cache, attach the mounts and listen. On HeadraceError everything is released. again: don't
        check origins first, so that a killed node can serve its cache while an origin is unavailable."""
        try:
            return await cls._started(config, again=again)
        except CorruptIndexError as error:  # found at first use
            put_aside(config, error)
            return await cls._started(config, again=again)

    @classmethod
    async def _started(cls, config: Config, *, again: bool) -> Node:
        store = open_store(config)
        hood: ClusterLink | None = None
        node: Node | None = None
        try:
            hood = _neighbourhood(config, store)
            node = cls(config, store, hood)
            await node._attach_configured(check=not again)
            if hood is not None:
                await node._join(hood)
            if node.write is not None:
                if node.together is not None:
                    await node.together.come_back()
                await node.write.start()
            make_private(os.path.dirname(config.socket_path))
            await node.server.start(config.socket_path)
            if config.open_to_others:
                node.broker = build_broker(
                    config, node.namespace, store, node.reads, on_corrupt=node._give_up_index
                )
                node.broker.start(broker_socket_of(config.socket_path))
        except BaseException:
            if node is not None and node.together is not None:
                await node.together.stop()
            elif hood is not None:
                await hood.stop()
            close_after_failure(store)
            raise
        node._look_at_disks()
        node._upkeep = asyncio.ensure_future(node._keep_up())
        if node.scrub is not None:
            node.scrub.start()
        return node

    async def _join(self, hood: ClusterLink) -> None:
        """Serve peers and join the cluster; the cluster's mounts are attached on return, or soon after."""
        from headrace.node.cluster_services import ClusterServices
        from headrace.node.shared_mounts import MountRecord
        from headrace.writeback.coherence.invalidation import InvalidationObserver

        observers = [InvalidationObserver(hood.announcer), SessionEvents(self.subscribers)]
        self.together = ClusterServices(
            hood,
            self.config,
            store=self.store,
            namespace=self.namespace,
            reads=self.reads,
            jobs=self.jobs,
            writing=self.cluster_writing,
            persister=lambda folder: build_persister(
                self.config, self.namespace, folder, hood.settle, observers
            ),
            attach=self._attach_shared,
            detach=self._mount_remove_here,
            check=self._allowed.check,
        )
        own = {
            normal_path(path): MountRecord(mount.url, dict(mount.options))
            for path, mount in self.config.mounts.items()
        }
        remembered = {
            mount.path: MountRecord(mount.url) for mount in self.mounts.all() if mount.path not in own
        }
        await self.together.start(own, remembered)

    async def _attach_shared(self, path: str, url: str, options: dict[str, str]) -> None:
        """Attach a mount that was added on another node; its origin need not answer now."""
        await self._attach(path, url, options, check=False)
        self.store.index.put_mount(path, {"url": url, **options})
        self.subscribers.publish(Invalidated(names=self._name_of(path)))

    async def stop(self) -> None:
        if self._upkeep is not None:
            self._upkeep.cancel()
        if self.scrub is not None:
            await self.scrub.stop()
        await self.server.stop()
        if self.broker is not None:
            await self.broker.stop()
        if self.write is not None:
            await self.write.stop()
        if self.together is not None:
            await self.together.stop()
        await self.reads.close()
        for mount in self.mounts.all():
            await mount.origin.close()
        self.disk.shutdown()
        self.store.close()

    async def answer(self, request: Request) -> Answer:
        """Answer a request of the RPC server."""
        try:
            return await self._answer(request)
        except CorruptIndexError as error:
            self._give_up_index(error)
            raise

    def _give_up_index(self, error: CorruptIndexError) -> None:
        """Stop the node because a page of the index is damaged. The next run starts with a new index."""
        log.error(
            "the index is corrupt, the node stops so that the next run creates it again error=%s", error
        )
        self.failed = True
        mark_index_corrupt(self.config)
        self.stopping.set()

    async def _answer(self, request: Request) -> Answer:
        """Dispatch each kind of request."""
        match request:
            case Lookup(parent=parent, name=name):
                await self.namespace.lookup(FileId(parent), name)
                return Done()
            case Open(id=id):
                return Opened(complete=await self.reads.open(FileId(id)), path="")
            case FillRange(id=id, start=start, end=end, sequential=sequential):
                return Filled(complete=await self.reads.fill(FileId(id), start, end, sequential=sequential))
            case List(directory=directory):
                await self.namespace.list(FileId(directory))
                return Done()
            case Touch(ids=ids):
                self.store.touch([FileId(id) for id in ids])
                return Done()
            case Resolve(path=path):
                entry = await self.namespace.resolve(path)
                version = entry.version
                return Resolved(
                    id=entry.id,
                    kind=int(entry.kind),
                    size_bytes=version.size_bytes,
                    mtime_ns=version.mtime_ns,
                    token=version.token,
                )
            case MountAdd():
                await self._mount_add(request)
                return Done()
            case MountRemove(path=path):
                await self._mount_remove(normal_path(path))
                return Done()
            case MountList():
                rows = [
                    MountRow(path=mount.path, url=mount.url, sync_interval_s=mount.sync_interval_s)
                    for mount in self.mounts.all()
                ]
                return Mounts(rows=rows)
            case StatusAsk():
                return Report(status=self.status())
            case JobList(id=id):
                return JobRows(rows=self._cluster_jobs().rows(id))
            case JobCancel(id=id):
                await self._cluster_jobs().cancel(id)
                return Done()
            case JobRetry(id=id):
                await self._cluster_jobs().retry(id)
                return Done()
            case Changed(paths=paths, source=source, begun=begun):
                if self.write is not None:
                    self.write.changed(paths, source)
                    for path in begun:
                        self.write.writing(path)
                return Done()
            case Secure(path=path):
                await self._writing().secure(path)
                return Done()
            case AcquireLease(path=path):
                if self.together is not None:
                    await self.together.claim(path)
                return Done()
            case Describe(id=id):
                return await describe(self.namespace, self.store, FileId(id), self.config.origin_timeout_s)
            case GatewayCounts():
                self.gateways.record(request)
                return Done()
            case Shutdown():
                self.stopping.set()
                return Done()
        raise UsageError(f"request {type(request).__name__}", why="a node does not answer such requests")

    def _writing(self) -> WriteBack:
        if self.write is None:
            raise UsageError("nothing can be written here", why="write is off", hint="use --write back")
        return self.write

    def _persist_states(self, request: JobStart) -> AsyncIterator[Answer]:
        """Yield the states of a persist job. persist-soon: yield one state, while the work goes on."""
        try:
            check_long_names(os.fsencode(request.path))
        except ValueError as error:
            raise UsageError(f"path {request.path[:80]!r}…", why=str(error)) from None
        if request.options.get("forget_conflicts"):
            self._writing().forget_conflicts()
        if request.kind == "persist-soon":
            self._writing().soon(os.fsencode(request.path))
            return persist_begun(self._writing(), request.path)
        return persist_states(self._writing(), request.path)

    def _cluster_jobs(self) -> ClusterJobs:
        if self.together is None:
            raise UsageError(
                "jobs", why="this node has no cluster, and its jobs end with the command that started them"
            )
        return self.together.jobs

    def status(self) -> dict[str, object]:
        """Return what `headrace status --json` prints of a node."""
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
                "disks_full": self.disks_full,
                "disks_too_small": [volume.folder for volume in self.store.disks if volume.is_cut],
            },
            "index": self.store.index.statistics(),
            "origin": {**total, "mounts": origins, "checksums": self.reads.digests.statistics()},
            "mounts": [
                {"path": mount.path, "url": mount.url, "sync_interval_s": mount.sync_interval_s}
                for mount in self.mounts.all()
            ],
            "scrub": {} if self.scrub is None else self.scrub.statistics(),
            "fill": {"in_flight": self.gate.in_flight, "concurrency": round(self.gate.window.limit, 1)},
            "peers": self.sources.statistics(),
            "gateways": self.gateways.status(),
            "write": {} if self.write is None else self.write.status(),
            **({"cluster": {}, "rebalance": {}} if self.together is None else self.together.status()),
        }

    async def _stream(self, request: JobStart | OpenMany) -> AsyncIterator[Answer]:
        try:
            states = self._opened(request.ids) if isinstance(request, OpenMany) else await self._job(request)
            async for state in states:
                yield state
        except CorruptIndexError as error:
            self._give_up_index(error)
            raise

    async def _opened(self, ids: list[int]) -> AsyncIterator[Answer]:
        async for complete_ids in self.reads.open_many([FileId(id) for id in ids]):
            yield OpenedMany(ids=[*complete_ids], done=False)
        yield OpenedMany(ids=[], done=True)

    async def _job(self, request: JobStart) -> AsyncIterator[Answer]:
        if request.kind == "drain" and self.write is not None:
            await self.write.persist(b"/")
        if request.kind in ("persist", "persist-soon"):
            return self._persist_states(request)
        if self.together is not None and self.together.runs(request):
            return self.together.run(request)
        return self.jobs.run(request.kind, request.path, request.options)

    async def _attach_configured(self, *, check: bool) -> None:
        """Attach the mounts of the configuration, then those that the index remembers at other paths. The index also
        stores the URLs of configured mounts, because clients name origins by it; entries of an earlier configuration
        are deleted."""
        remembered = self.store.index.mounts()
        for path, record in remembered.items():
            if CONFIGURED in record:
                self.store.index.drop_mount(path)
        for path, mount in self.config.mounts.items():
            known = remembered.get(normal_path(path), {}).get("url") == mount.url
            options = resolve_options(
                mount.options
            )  # only for the configuration: other sources may not name files of this host
            await self._attach(normal_path(path), mount.url, options, check=check, known=known)
            self.store.index.put_mount(normal_path(path), {"url": mount.url, CONFIGURED: "true"})
        for path, record in remembered.items():
            if CONFIGURED not in record and path not in {mount.path for mount in self.mounts.all()}:
                options = {key: value for key, value in record.items() if key not in ("url", BY_OPERATOR)}
                try:
                    if self.hood is not None or BY_OPERATOR not in record:
                        self._allowed.check(record["url"], options)
                    await self._attach(path, record["url"], options, check=False, known=True)
                except HeadraceError as error:
                    log.warning("a remembered mount could not be attached path=%s error=%s", path, error)

    async def _attach(
        self, path: str, url: str, options: dict[str, str], *, check: bool, known: bool = False
    ) -> None:
        origin = build_origin(url, options)
        if WriteModes.parse(self.config.write).persists_below(os.fsencode(path)) and not origin.writable:
            raise UsageError(
                f"writing to {url}",
                why="origins of this type are read-only",
                hint="use --write off or --write local",
            )
        if check:
            limit_s = min(CHECK_LIMIT_S, self.config.origin_timeout_s)
            try:
                # a user waits: an origin that does not answer fails at once
                await check_origin(origin, Deadline.after(limit_s, patience_s=0.0))
            except (OriginUnavailableError, DeadlineExceededError, BucketNotFoundError) as error:
                if not (known and self.write is not None and self.write.has_written):
                    raise
                log.warning("the origin is unavailable, dirty files wait for it url=%s error=%s", url, error)
        mount = Mount(path, parse_origin(url), origin, self.config.sync_interval_s, origin.circuit)
        self.namespace.attach(mount, known=known)
        if verifies_opens(options):
            async for ids in self.namespace.files_below(os.fsencode(path)):
                doubt(self.store.index, ids)

    async def _mount_add(self, request: MountAdd) -> None:
        """Attach a mount. The operator of a host without a cluster may attach any origin; in a cluster other nodes
        would refuse."""
        path, url, options = normal_path(request.path), request.url, request.options
        if request.restricted or self.together is not None:
            self._allowed.check(url, options)
        if self.together is None:
            mark = {} if request.restricted else {BY_OPERATOR: "true"}
            await self._mount_add_here(path, url, options, mark)
        else:
            await self.together.mounts.add(path, url, options, attach=self._mount_add_here)

    async def _mount_add_here(
        self, path: str, url: str, options: dict[str, str], mark: dict[str, str] | None = None
    ) -> None:
        check_places([volume.folder for volume in self.config.cache], [url])
        await self._attach(path, url, options, check=True)
        self.store.index.put_mount(path, {"url": url, **public_options(options), **(mark or {})})
        self.subscribers.publish(Invalidated(names=self._name_of(path)))

    async def _mount_remove(self, path: str) -> None:
        if self.together is None:
            await self._mount_remove_here(path)
        else:
            await self.together.mounts.remove(path)

    async def _mount_remove_here(self, path: str) -> None:
        mount = self.namespace.detach(path)
        self.store.index.drop_mount(path)
        await mount.origin.close()

    def _names_changed(self, names: list[tuple[FileId, bytes]]) -> None:
        if self.together is not None:
            self.together.names_changed(names)
        if self.write is not None:
            self.write.names_changed(self.namespace.paths_of(names))
        for start in range(0, len(names), NAMES_A_MESSAGE):
            batch = names[start : start + NAMES_A_MESSAGE]
            self.subscribers.publish(Invalidated(names=[(int(parent), name) for parent, name in batch]))

    def _name_of(self, path: str) -> list[tuple[int, bytes]]:
        """Return the first name on the path to a mount: the kernel may have cached it as absent."""
        first = path.strip("/").split("/", 1)[0]
        return [(1, os.fsencode(first))] if first else []

    def _evicted(self, ids: list[FileId]) -> None:
        self.reads.forget(ids)
        self.subscribers.publish(Evicted(ids=[int(id) for id in ids]))

    async def _damaged(self, ids: list[FileId]) -> None:
        """Make clients of this host drop the cached bytes of damaged files. On return only handles that are already
        open read them."""
        self.reads.forget(ids)
        await self.subscribers.drop_damaged([int(id) for id in ids])

    async def _keep_up(self) -> None:
        """Evict ahead of need, and sync what was filled, so that a power loss costs little."""
        synced_s = dropped_s = time.monotonic()
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            self._look_at_disks()
            try:
                self.store.keep_room()
                self.store.set_written(self._bytes_written())
                while self.store.evict_if_needed():  # noqa: ASYNC110 - steps; others have their turn between
                    await asyncio.sleep(0)
                if time.monotonic() - dropped_s > IDLE_FILL_S:
                    dropped_s = time.monotonic()
                    self.reads.drop_idle()
                if time.monotonic() - synced_s > SYNC_INTERVAL_S:
                    synced_s = time.monotonic()
                    await asyncio.get_running_loop().run_in_executor(self.disk, self.store.sync)
                    if self.together is not None:
                        await self.together.keeper.drop_idle()
                        await self.together.keeper.measure()
                        await self.together.look_whether_given_up()
            except CorruptIndexError as error:
                self._give_up_index(error)
            except HeadraceError as error:
                log.warning("the periodic upkeep failed error=%s", error)
            except Exception:
                log.exception("the periodic upkeep failed")  # eviction and sync must continue

    def _bytes_written(self) -> int:
        """Return the bytes on the first volume beside the cache: dirty files of this host, and replicas of other
        nodes' files."""
        own = 0 if self.write is None else self.write.upper_bytes
        return own + (0 if self.together is None else self.together.keeper.bytes_kept)

    def _look_at_disks(self) -> None:
        was_full = self.disks_full
        self.disks_full = [volume.folder for volume in self.store.disks if volume.disk_is_full]
        for folder in self.disks_full:
            if folder not in was_full:
                log.warning("a cache disk is full, nothing new is cached until it has room folder=%s", folder)
        for folder in was_full:
            if folder not in self.disks_full:
                log.warning("a cache disk has room again folder=%s", folder)


def _neighbourhood(config: Config, store: Store) -> ClusterLink | None:
    """Return the link to the cluster, or None without a cluster. A node without one doesn't import its modules."""
    if not config.cluster:
        return None
    from headrace.node.cluster_link import ClusterLink

    return ClusterLink(config, capacity_bytes=sum(volume.capacity_bytes for volume in store.disks))


def _welcome(config: Config, store: Store) -> Welcome:
    return Welcome(
        protocol=PROTOCOL,
        index=index_folder(config),
        volumes=[volume.folder for volume in store.volumes],
        generation=store.generation,
        upper=config.upper_folder,
        write=config.write,
        durable_puts=config.durable_puts,
    )


def _writing_in_cluster(
    config: Config, hood: ClusterLink, namespace: Namespace, cache: CacheOfLayer, sessions: SessionEvents
) -> ClusterWriting | None:
    from headrace.node.cluster_writing import build_in_cluster

    return build_in_cluster(config, hood, namespace, cache, sessions)


def run_node(config: Config, *, ready_fd: int | None = None, again: bool = False) -> int:
    """Run a node until SIGTERM, SIGINT or Shutdown; return 0 then, and 1 when it could not start."""
    log_to_stderr(config.log_level)
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(config, ready_fd, again=again))


async def _run(config: Config, ready_fd: int | None, *, again: bool) -> int:
    try:
        node = await Node.start(config, again=again)
    except HeadraceError as error:
        say_failed(ready_fd, error)
        log.error("node did not start error=%s", error)
        return 1
    stop_on_signals(node.stopping)
    say_ready(ready_fd, config.socket_path)
    await node.stopping.wait()
    try:
        await node.stop()
    except CorruptIndexError as error:
        node._give_up_index(error)
    return 1 if node.failed else 0
