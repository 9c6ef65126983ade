"""Serve peers: ranges of cache files, and names. The reading side is `cluster_source.py`.

An owner fetches missing bytes. Another node sends only the bytes that it has, as after a change of the members. A
request names a file by path and version, and gets that version or an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, NotOwnerError, PathNotFoundError, StoreError, UsageError
from headrace.base.model import Entry, FileId, ObjectMetadata, Version
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.intent import BACKGROUND_FOR_PEER, FOR_PEER, PEERS, ReadIntent
from headrace.dataplane.read import ReadPath
from headrace.dataplane.read_queue import ReadClass
from headrace.namespace.namespace import Namespace
from headrace.namespace.reported_paths import Scope
from headrace.overlay.content_type_codes import extras_by
from headrace.overlay.object_metadata import extras_of
from headrace.overlay.pending_version import PREFIX
from headrace.ring.view import SEGMENT_BYTES
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.wire.messages import Done
from headrace.wire.peer_messages import (
    DirtyNamesChanged,
    FailoverReport,
    Fetch,
    FileRange,
    HandoverAnswer,
    InvalidateListing,
    ListingRequest,
    ListPending,
    LookupShared,
    Names,
    OfferHandover,
    OriginChanged,
    PendingNamesAnswer,
    PendingNamesRequest,
    QueryFailover,
    RecallLease,
    ReplicaRequest,
    Replicate,
    ReportCorruption,
    ResolveVersion,
    TrialAnswer,
    TryPolicy,
    VersionResolved,
)
from headrace.writeback.coherence.service import CoherenceService
from headrace.writeback.replication.dirty_files import OwnDirtyFileReader
from headrace.writeback.replication.failover import Failover
from headrace.writeback.replication.replica_host import ReplicaHost
from headrace.writeback.replication.replicator import OFFER_TOKEN_PREFIX, OfferedFile, ReplicaOffers

log = logging.getLogger(__name__)

VIEW_WAIT_S = 5.0
VIEW_LOOK_S = 0.05
HANDOVERS_MAX, HANDOVER_BYTES_MAX = 64, 64 << 20
HANDOVER_TOLERANCE = 1.5
"""Multiple of the best time from which a handover counts as queueing. It is low, because readers share the link and
would wait behind that queue (decision 0008)."""
ATTEMPTS = 5
"""Times that a file may be evicted between its fetch and its opening."""


class ServedFile:
    """Serve one file for one request. Any thread may call ready, fileno and checksum; only the loop may call wait.

    intent: of the reads of missing bytes. is_arriving: returns whether the bytes are already being fetched from the
    origin; otherwise the file is not waited for. None: missing bytes are fetched.
    """

    def __init__(
        self,
        id: FileId,
        store: Store,
        reads: ReadPath,
        intent: ReadIntent,
        *,
        is_arriving: Callable[[], bool] | None = None,
    ) -> None:
        self._id = id
        self._store = store
        self._reads = reads
        self._intent = intent
        self._is_arriving = is_arriving
        self._reader: CacheReader | None = None
        self._extras: ObjectMetadata | None = None
        self.steady = True

    def ready(self, start: int, end: int) -> bool:
        """Return whether start..end can be sent now."""
        if self._reader is not None and self._reader.present(start, end):
            return True
        self.close()
        cached = self._store.index.cached(self._id)
        if cached is None or cached.unverified:
            return False
        try:
            reader = CacheReader.open(self._store.volumes[cached.volume].folder, cached, sums=True)
        except (PathNotFoundError, StoreError):
            return False
        self._reader, self._extras = reader, extras_by(cached.content_type_code)
        return reader.present(start, end)

    async def wait(self, start: int, end: int) -> None:
        """Wait until start..end can be sent. Raises the errors of the read path."""
        for _ in range(ATTEMPTS):
            if self._is_arriving is not None and not self._is_arriving():
                raise NotOwnerError(
                    f"cache file {self._id:x}", why="it did not come from the origin after all"
                )
            await self._reads.serve(self._id, start, end, self._intent)
            if self.ready(start, end):
                return
        raise StoreError(f"cache file {self._id:x}", why="it is evicted as soon as it was fetched")

    def fileno(self) -> int:
        assert self._reader is not None
        return self._reader.fd

    def checksum(self, block: int) -> int:
        """Return the xxh3 of a block that is ready."""
        assert self._reader is not None
        return self._reader.checksum(block)

    def extras(self) -> ObjectMetadata | None:
        return self._extras or extras_of(self.fileno(), os.fstat(self.fileno()))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


class ReadCounts:
    """Hears what peers read here, and which files this node takes over. This one ignores it."""

    def note_read(self, id: FileId, wanted: FileRange, reader: str) -> None:
        """Note that a peer reads a part of a file."""

    def note_taken(self, id: FileId, offered: FileRange) -> None:
        """Note that this node has a file now that it owns."""


@dataclass(frozen=True, slots=True)
class ReplicationService:
    """Hold the parts of replication that peers call. offers: the dirty files of this node, for its replicas."""

    replica_host: ReplicaHost
    failover: Failover
    offers: ReplicaOffers


class TrialService(Protocol):
    """Says what a policy would mean for this node."""

    async def answer(self, request: TryPolicy) -> TrialAnswer: ...


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """Hold the parts of a node, besides its cache, that peers call. copies: None on a node without replication. shared:
    answers for names that are not persisted; None on a node without writes. trial: None on a node without policies."""

    copies: ReplicationService | None = None
    shared: CoherenceService | None = None
    trial: TrialService | None = None


class NodePeerService:
    """Answer peers.

    owns: returns whether this node owns a range of a path, by its own view. on_invalidate: lists directories again
    whose listings are invalid. hot: counts what peers read. parts: what else the node has.
    """

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        reads: ReadPath,
        *,
        owns: Callable[[bytes, int], bool],
        on_invalidate: Callable[[bytes, bool], None],
        hot: ReadCounts | None = None,
        parts: ClusterParts = ClusterParts(),
    ) -> None:
        self._parts = parts
        window = Window(maximum=HANDOVERS_MAX, start=1, least=1, tolerance=HANDOVER_TOLERANCE)
        self._handovers = Gate(window, bytes_max=HANDOVER_BYTES_MAX)
        self._namespace = namespace
        self._store = store
        self._reads = reads
        self._owns = owns
        self._on_invalidate = on_invalidate
        self._hot = hot or ReadCounts()

    async def open_many(
        self, request: Fetch, *, peer: str
    ) -> list[ServedFile | OfferedFile | OwnDirtyFileReader | HeadraceError]:
        """Return a file or an error for each range, in order, without fetching any. peer: the node that asks."""
        return [await self._open(wanted, request, peer=peer) for wanted in request.files]

    async def _open(
        self, wanted: FileRange, request: Fetch, *, peer: str
    ) -> ServedFile | OfferedFile | OwnDirtyFileReader | HeadraceError:
        try:
            if wanted.token.startswith(PREFIX):
                return await self._shared_writes().files.open(wanted)
            if wanted.token.startswith(OFFER_TOKEN_PREFIX):
                return self._replication().offers.open(wanted)
            return self._serve(await self._entry_of(wanted), wanted, request, peer=peer)
        except HeadraceError as error:
            return error

    def _serve(self, entry: Entry, wanted: FileRange, request: Fetch, *, peer: str) -> ServedFile:
        """Return a file whose bytes are here, or will be. Raise NotOwnerError, and EvictedError."""
        fetches = not request.cached_only and self._owns(wanted.path, wanted.start)

        def is_arriving() -> bool:
            return self._reads.is_arriving(entry, wanted.path, wanted.start, wanted.end)

        intent = BACKGROUND_FOR_PEER if request.background else FOR_PEER
        file = ServedFile(
            entry.id, self._store, self._reads, intent, is_arriving=None if fetches else is_arriving
        )
        try:
            if file.ready(wanted.start, wanted.end):
                self._store.touch([entry.id])
            elif not fetches and not is_arriving():
                raise NotOwnerError(
                    os.fsdecode(wanted.path), why="this node does not own it, or has none of it"
                )
            self._hot.note_read(entry.id, wanted, peer)
        except BaseException:
            file.close()
            raise
        return file

    async def _entry_of(self, wanted: FileRange) -> Entry:
        if not 0 <= wanted.start < wanted.end <= wanted.size_bytes:
            raise NotOwnerError(os.fsdecode(wanted.path), why="the requested range is outside the file")
        return await self._namespace.resolver.ensure_entry(
            wanted.path, Version(wanted.size_bytes, wanted.mtime_ns, wanted.token)
        )

    async def names(self, request: ListingRequest) -> Iterator[Names]:
        """Return names in pages. The last page is marked. Taking a page blocks for some milliseconds; other work of the
        loop may run before the next one is taken."""
        self._namespace.tree.check_mounted(request.path)
        directory = self._namespace.tree.make_directories(request.path)
        if isinstance(request, LookupShared):
            if request.anew:
                await self._namespace.checks.check_for_peer(request.path, request.name)
            else:
                await self._namespace.resolver.lookup(directory, request.name, for_peer=True)
            return iter([self._namespace.owner_names.page_of(directory, request.name)])
        if request.anew:
            await self._namespace.listings.refresh(directory, for_peer=True)
        else:
            await self._namespace.listings.list(directory, for_peer=True)
            self._namespace.refresh_ahead.note(directory)
        return self._namespace.owner_names.pages(directory)

    async def take_over(self, request: OfferHandover, *, peer: str) -> HandoverAnswer:
        """Fetch files that another node offers and this node owns now. Other reads precede them. peer: that node."""
        taking = (self._take(offered, peer) for offered in request.files)
        outcome = await asyncio.gather(*taking, return_exceptions=True)
        refused: list[int] = []
        for number, failure in enumerate(outcome):
            if isinstance(failure, HeadraceError):
                log.info("an offered file was not taken over error=%s", failure)
                refused.append(number)
            elif failure is not None:
                raise failure
        return HandoverAnswer(refused=refused)

    async def _take(self, offered: FileRange, giver: str) -> None:
        end_s = monotonic_s() + VIEW_WAIT_S
        while not self._owns(offered.path, offered.start):  # the peer may have received the new view first
            if monotonic_s() >= end_s:
                raise NotOwnerError(os.fsdecode(offered.path), why="this node does not own it")
            await asyncio.sleep(VIEW_LOOK_S)
        entry = await self._entry_of(offered)
        read_class = ReadClass(priority=self._store.space.division.group_of(entry.id).priority)
        async with self._handovers.enter(offered.end - offered.start, background=True, read_class=read_class):
            began_s = monotonic_s()
            span = (offered.start, offered.end)
            part = None if span == (0, offered.size_bytes) else span
            await self._reads.load(entry, part, job=PEERS, giver=giver)
            fetch_s = monotonic_s() - began_s
            self._handovers.window.record(bytes_read=offered.end - offered.start, seconds=fetch_s)
        if self._owns(offered.path, offered.start):
            self._store.set_borrowed(entry.id, borrowed=False)
        elif offered.size_bytes <= SEGMENT_BYTES:  # the owners changed meanwhile
            self._store.set_borrowed(entry.id, borrowed=True)
        self._hot.note_taken(entry.id, offered)

    async def replicate(self, request: ReplicaRequest) -> None:
        replica_host = self._replication().replica_host
        if isinstance(request, Replicate):
            await replica_host.replicate(request)
        else:
            await replica_host.replicate_ahead(request)

    async def report_failover(self, request: QueryFailover) -> FailoverReport:
        return await self._replication().failover.report(request.writer, done=request.done)

    def _replication(self) -> ReplicationService:
        if self._parts.copies is None:
            raise UsageError("copies of written files", why="this node has nothing to do with any")
        return self._parts.copies

    async def try_policy(self, request: TryPolicy) -> TrialAnswer:
        if self._parts.trial is None:
            raise UsageError("a policy", why="this node has none")
        return await self._parts.trial.answer(request)

    async def pending_names(self, request: PendingNamesRequest) -> PendingNamesAnswer:
        shared = self._shared_writes()
        match request:
            case ListPending():
                return await shared.answer(request)
            case DirtyNamesChanged(paths=paths, below=below):
                for path in paths:
                    self._namespace.refreshes.schedule(path, below)
            case ResolveVersion(path=path, token=token):
                return VersionResolved(await shared.resolve_version(path, token))
            case RecallLease(path=path):
                await shared.release_lease(path)
        return Done()

    def _shared_writes(self) -> CoherenceService:
        if self._parts.shared is None:
            raise UsageError("written files", why="this node publishes no pending names")
        return self._parts.shared

    async def check_corruption(self, request: ReportCorruption) -> None:
        entry = await self._entry_of(request.file)
        await self._reads.check(entry.id)

    async def invalidate_listing(self, request: InvalidateListing | OriginChanged) -> None:
        if isinstance(request, OriginChanged):
            scope = Scope.BELOW if request.below else Scope.NAME if request.names else Scope.DIRECTORY
            for path in request.paths:
                self._namespace.changed_directories.add(path, scope)
        elif request.relist:
            self._on_invalidate(request.path, request.below)
        elif request.below:
            self._namespace.changes.expire(request.path)
        else:
            self._namespace.changes.invalidate(request.path)
