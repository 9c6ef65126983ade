"""Answer the requests of this host's clients: one row of a table, and one small method, for each message.

`entry/rpc` decodes the messages and knows who sent them. Each class here answers those about one part of the node.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.model import Entry, FileId, Version
from headrace.base.namespace_path import check_long_names
from headrace.dataplane.intent import ReadIntent
from headrace.dataplane.read import ReadPath
from headrace.jobs.jobs import Jobs
from headrace.jobs.persist import persist_begun, persist_states
from headrace.jobs.shared_seals import SharedSeals
from headrace.namespace.mounts import MountTable, normal_path
from headrace.namespace.namespace import Namespace
from headrace.namespace.refresh_ahead import RefreshAhead
from headrace.node.attachments import Attachments
from headrace.node.gateways import describe
from headrace.node.policies import Policies
from headrace.node.policy_advice import ReadStatistics
from headrace.prefetch.prediction_table import PredictionTable
from headrace.seal.catalogue import SealId
from headrace.store.store import Store
from headrace.wire.messages import (
    AcquireLease,
    Answer,
    BreakClaim,
    Changed,
    Describe,
    Described,
    Done,
    Filled,
    FillRange,
    JobCancel,
    JobList,
    JobRetry,
    JobRows,
    JobStart,
    JobState,
    List,
    Lookup,
    LookupVersion,
    MountAdd,
    MountList,
    MountRemove,
    MountRow,
    Mounts,
    Open,
    Opened,
    OpenedMany,
    OpenMany,
    Request,
    Resolve,
    Resolved,
    Secure,
    Touch,
)
from headrace.wire.seal_messages import SealList, SealOpen, SealOpened, SealRows
from headrace.writeback.writeback import WriteBack

if TYPE_CHECKING:
    from headrace.jobs.cluster_jobs import ClusterJobs
    from headrace.node.cluster_services import ClusterServices

Handler = Callable[[Any], Awaitable[Answer]]
Handlers = Mapping[type[Request], Handler]


class NameRequests:
    """Answer clients' requests about names. timeout_s: limit of one request to an origin."""

    def __init__(self, namespace: Namespace, store: Store, timeout_s: float) -> None:
        self._namespace = namespace
        self._store = store
        self._timeout_s = timeout_s
        self.handlers: Handlers = {
            Lookup: self._lookup,
            List: self._list,
            Resolve: self._resolve,
            LookupVersion: self._resolve_version,
            Describe: self._describe,
        }

    async def _lookup(self, request: Lookup) -> Done:
        await self._namespace.resolver.lookup(FileId(request.parent), request.name)
        return Done()

    async def _list(self, request: List) -> Done:
        await self._namespace.listings.list(FileId(request.directory))
        return Done()

    async def _resolve(self, request: Resolve) -> Resolved:
        return _resolved(await self._namespace.resolver.resolve(request.path))

    async def _resolve_version(self, request: LookupVersion) -> Resolved:
        version = Version(request.size_bytes, request.mtime_ns, request.token)
        return _resolved(await self._namespace.resolver.find_version(request.path, version))

    async def _describe(self, request: Describe) -> Described:
        return await describe(self._namespace.tree, self._store, FileId(request.id), self._timeout_s)


def _resolved(entry: Entry) -> Resolved:
    return Resolved(
        id=entry.id,
        kind=int(entry.kind),
        size_bytes=entry.version.size_bytes,
        mtime_ns=entry.version.mtime_ns,
        token=entry.version.token,
    )


class ReadRequests:
    """Fetch files and ranges into the cache for clients, which then read the cache files."""

    def __init__(
        self,
        reads: ReadPath,
        store: Store,
        predictions: PredictionTable,
        statistics: ReadStatistics,
        refresh_ahead: RefreshAhead,
    ) -> None:
        self._reads = reads
        self._refresh_ahead = refresh_ahead
        self._statistics = statistics
        self._store = store
        self._predictions = predictions
        self.handlers: Handlers = {Open: self._open, FillRange: self._fill, Touch: self._touch}

    async def _open(self, request: Open) -> Opened:
        self._predictions.note_misses([FileId(request.id)])
        return Opened(complete=await self._reads.open(FileId(request.id)), path="")

    async def _fill(self, request: FillRange) -> Filled:
        intent = ReadIntent(is_sequential=request.sequential)
        is_complete = await self._reads.fill(FileId(request.id), request.start, request.end, intent)
        return Filled(complete=is_complete)

    async def _touch(self, request: Touch) -> Done:
        ids = [FileId(id) for id in request.ids]
        self._store.touch(ids)
        self._statistics.note_opens(ids)
        self._refresh_ahead.note_opens(ids)
        if request.process:
            await self._predictions.note_opens(ids, request.process, request.streams)
        return Done()

    async def open_many(self, request: OpenMany) -> AsyncIterator[Answer]:
        """Yield the ids of files as they are complete, in groups."""
        async for ids in self._reads.open_many([FileId(id) for id in request.ids]):
            yield OpenedMany(ids=[*ids], done=False)
        yield OpenedMany(ids=[], done=True)


class WriteRequests:
    """Receive clients' changes of the upper layer, and make them durable. write: None if nothing can be written.
    cluster: None without one."""

    def __init__(self, write: WriteBack | None, cluster: ClusterServices | None) -> None:
        self._write = write
        self._cluster = cluster
        self.handlers: Handlers = {
            Changed: self._changed,
            Secure: self._secure,
            AcquireLease: self._acquire_lease,
            BreakClaim: self._break_claim,
        }

    async def _changed(self, request: Changed) -> Done:
        if self._write is not None:
            self._write.changed(request.paths, request.source)
            for path in request.begun:
                self._write.writing(path)
        return Done()

    async def _secure(self, request: Secure) -> Done:
        await self.write_back().secure(request.path)
        return Done()

    async def _acquire_lease(self, request: AcquireLease) -> Done:
        if self._cluster is not None:
            await self._cluster.acquire_lease(request.path)
        return Done()

    async def _break_claim(self, request: BreakClaim) -> Done:
        if self._cluster is None:
            raise UsageError("node break-claim", why="this node has no cluster")
        await self._cluster.break_claim(os.fsencode(normal_path(request.path)), force=request.force)
        return Done()

    def write_back(self) -> WriteBack:
        """Return the write-back of this node. Raise UsageError where nothing can be written."""
        if self._write is None:
            raise UsageError("nothing can be written here", why="write is off", hint="use --write back")
        return self._write

    async def persist_all(self) -> None:
        if self._write is not None:
            await self._write.persist(b"/")

    def persist(self, request: JobStart) -> AsyncIterator[Answer]:
        """Yield the states of a persist job. persist-soon: yield one state, while the work continues."""
        try:
            check_long_names(os.fsencode(request.path))
        except ValueError as error:
            raise UsageError(f"path {request.path[:80]!r}…", why=str(error)) from None
        write = self.write_back()
        if request.options.get("forget_conflicts"):
            write.forget_conflicts()
        if request.kind == "persist-soon":
            write.persist_soon(os.fsencode(request.path))
            return persist_begun(write, request.path)
        return persist_states(write, request.path)


class MountRequests:
    """Attaches and detaches mounts: on this node, and in its cluster on all nodes."""

    def __init__(
        self,
        attachments: Attachments,
        mounts: MountTable,
        cluster: ClusterServices | None,
        policies: Policies,
    ) -> None:
        self._policies = policies
        self._attachments = attachments
        self._mounts = mounts
        self._cluster = cluster
        self.handlers: Handlers = {MountAdd: self._add, MountRemove: self._remove, MountList: self._list}

    async def _add(self, request: MountAdd) -> Done:
        """Attach a mount. The operator of a host without a cluster may attach any origin; in a cluster other nodes
        would refuse."""
        path, url, options = normal_path(request.path), request.url, request.options
        if request.restricted or self._cluster is not None:
            self._attachments.allowed.check(url, options)
        if self._cluster is None:
            warning = await self._attachments.add(path, url, options, by_operator=not request.restricted)
        else:
            warning = await self._cluster.mounts.add(path, url, options, attach=self._attachments.add)
        return Done(warning)

    async def _remove(self, request: MountRemove) -> Done:
        path = normal_path(request.path)
        if any(mount.path == path for mount in self._mounts.all()):
            await self._policies.end_rule_of_mount(path)  # first: if that fails, the command can be repeated
        if self._cluster is None:
            await self._attachments.remove(path)
        else:
            await self._cluster.mounts.remove(path)
        return Done(await self._end_late_rule(path))

    async def _end_late_rule(self, path: str) -> str:
        """End a rule that a `mount add` at the same time gave the mount. Return a warning if that fails."""
        try:
            await self._policies.end_rule_of_mount(path)
        except HeadraceError as error:
            return f"the mount is detached, and the policy may still have its rule: {error}"
        return ""

    async def _list(self, _: MountList) -> Mounts:
        rows = [
            MountRow(path=mount.path, url=mount.url, sync_interval_s=mount.sync_interval_s)
            for mount in self._mounts.all()
        ]
        return Mounts(rows=rows)


class SealRequests:
    """Answer clients' requests about seals."""

    def __init__(self, seals: SharedSeals) -> None:
        self._seals = seals
        self.handlers: Handlers = {SealList: self._list, SealOpen: self._open}

    async def _list(self, request: SealList) -> SealRows:
        if request.from_origin:
            return SealRows(rows=await self._seals.rows(request.path))
        return SealRows(rows=await self._seals.own_rows())

    async def _open(self, request: SealOpen) -> SealOpened:
        return await self._seals.open(SealId.parse(request.seal), request.known_id)


class JobRequests:
    """Runs jobs: on this node, or in its cluster on all nodes. deliver_events: returns when the sessions of this host
    have handled all events so far."""

    def __init__(
        self,
        jobs: Jobs,
        writes: WriteRequests,
        cluster: ClusterServices | None,
        deliver_events: Callable[[], Awaitable[None]],
    ) -> None:
        self._deliver_events = deliver_events
        self._jobs = jobs
        self._writes = writes
        self._cluster = cluster
        self.handlers: Handlers = {JobList: self._list, JobCancel: self._cancel, JobRetry: self._retry}

    async def _list(self, request: JobList) -> JobRows:
        return JobRows(rows=self._cluster_jobs().rows(request.id))

    async def _cancel(self, request: JobCancel) -> Done:
        await self._cluster_jobs().cancel(request.id)
        return Done()

    async def _retry(self, request: JobRetry) -> Done:
        await self._cluster_jobs().retry(request.id)
        return Done()

    def _cluster_jobs(self) -> ClusterJobs:
        if self._cluster is None:
            raise UsageError(
                "jobs", why="this node has no cluster, and its jobs end with the command that started them"
            )
        return self._cluster.jobs

    async def run(self, request: JobStart) -> AsyncIterator[Answer]:
        """Start a job, and return the iterator over its states. Closing that cancels a job of this node."""
        if request.kind == "drain":
            if self._cluster is None:
                raise UsageError(
                    "drain",
                    why="this node belongs to no cluster, so no other node can take its files",
                    hint="`headrace persist` uploads what is not persisted",
                )
            await self._writes.persist_all()
        if request.kind in ("persist", "persist-soon"):
            return self._writes.persist(request)
        if self._cluster is not None and self._cluster.runs(request):
            states = self._cluster.run(request)
        else:
            states = self._jobs.run(request.kind, request.path, request.options)
        return self._delivered(states) if request.kind == "sync" else states

    async def _delivered(self, states: AsyncIterator[JobState]) -> AsyncIterator[Answer]:
        """Yield the states of a job. Before the last one, the kernels of this host learn which names changed: a program
        that begins afterwards must read the new files."""
        async for state in states:
            if state.done:
                await self._deliver_events()
            yield state


@dataclass(frozen=True, slots=True)
class Requests:
    """Answers every message of this host's clients. handlers: of all messages with one answer."""

    handlers: Handlers
    reads: ReadRequests
    jobs: JobRequests

    async def answer(self, request: Request) -> Answer:
        """Return the answer of the request's handler. Raise UsageError for a message that has none."""
        handler = self.handlers.get(type(request))
        if handler is None:
            raise UsageError(f"request {type(request).__name__}", why="a node does not answer such requests")
        return await handler(request)

    async def stream(self, request: JobStart | OpenMany) -> AsyncIterator[Answer]:
        """Yield the answers to a request that has many."""
        if isinstance(request, OpenMany):
            states = self.reads.open_many(request)
        else:
            states = await self.jobs.run(request)
        async for state in states:
            yield state
