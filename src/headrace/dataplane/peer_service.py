"""What peers get from this node: pieces of its cache files, and what it knows of names. The other side of source.py.

An owner fetches what it lacks; another node gives only what it has, as after a change of the members. Files are named
by path and version: the version asked for is served, or an error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.errors import HeadraceError, NotOwnerError, PathNotFoundError, StoreError, UsageError
from headrace.base.model import Entry, FileId, ObjectMetadata, Version
from headrace.dataplane.concurrency import Gate, Window
from headrace.dataplane.read import ReadPath
from headrace.namespace.tree import Namespace
from headrace.overlay.content_type_codes import extras_by
from headrace.overlay.object_metadata import extras_of
from headrace.overlay.pending_version import PREFIX
from headrace.store.reader import CacheReader
from headrace.store.store import Store
from headrace.wire.messages import Done
from headrace.wire.peer_messages import (
    DirtyNamesChanged,
    FailoverReport,
    FileRange,
    HandoverAnswer,
    InvalidateListing,
    ListPending,
    ListShared,
    LookupShared,
    Names,
    OfferHandover,
    PendingNamesPage,
    QueryFailover,
    RecallLease,
    Replicate,
    ReplicateAhead,
    ReportCorruption,
    ResolveVersion,
    VersionResolved,
)
from headrace.writeback.coherence.service import CoherenceService
from headrace.writeback.replication.dirty_files import OwnDirtyFileReader
from headrace.writeback.replication.failover import Failover
from headrace.writeback.replication.replica_host import ReplicaHost
from headrace.writeback.replication.replicator import TOKEN, OfferedFile, ReplicaOffers

log = logging.getLogger(__name__)

VIEW_WAIT_S = 5.0
VIEW_LOOK_S = 0.05
TAKES_MAX, TAKES_BYTES_MAX = 64, 64 << 20
TAKES_TOLERANCE = 1.5
"""Files that are taken over at once: as many as don't wait for each other in the link. Its queue is that of the
readers, too, who would otherwise wait behind the hand-over (decision 0008)."""
ATTEMPTS = 5
"""How often a file may be evicted between its fetch and its opening."""


class ServedFile:
    """One file for one request. ready, fileno and checksum may be called from any thread, wait on the loop only.
    arrives: it is waited for only while this says so; None: it may be fetched."""

    def __init__(
        self, id: FileId, store: Store, reads: ReadPath, *, arrives: Callable[[], bool] | None = None
    ) -> None:
        self._id = id
        self._store = store
        self._reads = reads
        self._arrives = arrives
        self._reader: CacheReader | None = None
        self._told: ObjectMetadata | None = None
        self.steady = True

    def ready(self, start: int, end: int) -> bool:
        """Whether start..end can be sent now."""
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
        self._reader, self._told = reader, extras_by(cached.content_type_code)
        return reader.present(start, end)

    async def wait(self, start: int, end: int) -> None:
        """start..end can be sent on return. Errors of the read path."""
        for _ in range(ATTEMPTS):
            if self._arrives is not None and not self._arrives():
                raise NotOwnerError(
                    f"cache file {self._id:x}", why="it did not come from the origin after all"
                )
            await self._reads.serve(self._id, start, end)
            if self.ready(start, end):
                return
        raise StoreError(f"cache file {self._id:x}", why="it is evicted as soon as it was fetched")

    def fileno(self) -> int:
        assert self._reader is not None
        return self._reader.fd

    def checksum(self, block: int) -> int:
        """xxh3 of a block that is ready."""
        assert self._reader is not None
        return self._reader.checksum(block)

    def extras(self) -> ObjectMetadata | None:
        return self._told or extras_of(self.fileno(), os.fstat(self.fileno()))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@dataclass(frozen=True, slots=True)
class ReplicationService:
    """What a node has to do with copies of written files. offers: of its own, for their holders."""

    keeper: ReplicaHost
    take_over: Failover
    offers: ReplicaOffers


class NodePeerService:
    """owns: whether this node owns a range of a path, by its own view. on_forget: told that listings expired and are
    to be taken again. copies: None for a node that
    neither keeps any nor has others keep them. shared: what is told of writes."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        reads: ReadPath,
        *,
        owns: Callable[[bytes, int], bool],
        on_forget: Callable[[bytes, bool], None],
        copies: ReplicationService | None = None,
        shared: CoherenceService | None = None,
    ) -> None:
        self._copies = copies
        self._shared = shared
        window = Window(maximum=TAKES_MAX, start=1, least=1, tolerance=TAKES_TOLERANCE)
        self._takes = Gate(window, bytes_max=TAKES_BYTES_MAX)
        self._namespace = namespace
        self._store = store
        self._reads = reads
        self._owns = owns
        self._on_forget = on_forget

    async def open_many(
        self, wanted: list[FileRange], *, cached_only: bool, epoch: int
    ) -> list[ServedFile | OfferedFile | OwnDirtyFileReader | HeadraceError]:
        """One for each, in order. Nothing is fetched here. epoch: of the asker's view."""
        return [await self._open(one, cached_only=cached_only) for one in wanted]

    async def _open(
        self, one: FileRange, *, cached_only: bool
    ) -> ServedFile | OfferedFile | OwnDirtyFileReader | HeadraceError:
        try:
            if one.token.startswith(PREFIX):
                return await self._shared_writes().files.open(one)
            if one.token.startswith(TOKEN):
                return self._copy_desk().offers.open(one)
            entry = await self._claimed(one)
            fetches = not cached_only and self._owns(one.path, one.start)

            def arrives() -> bool:
                return self._reads.arrives(entry, one.path, one.start, one.end)

            file = ServedFile(entry.id, self._store, self._reads, arrives=None if fetches else arrives)
            if file.ready(one.start, one.end):
                self._store.touch([entry.id])
                return file
            if fetches or arrives():
                return file
            file.close()
            return NotOwnerError(os.fsdecode(one.path), why="this node does not own it, or has none of it")
        except HeadraceError as error:
            return error

    async def _claimed(self, one: FileRange) -> Entry:
        if not 0 <= one.start < one.end <= one.size_bytes:
            raise NotOwnerError(os.fsdecode(one.path), why="a range outside of the file was asked for")
        return await self._namespace.ensure_entry(one.path, Version(one.size_bytes, one.mtime_ns, one.token))

    async def names(self, request: ListShared | LookupShared) -> list[Names]:
        """In pages; the last one says so."""
        directory = self._namespace.ensure_directory(request.path)
        if isinstance(request, LookupShared):
            await self._namespace.lookup(directory, request.name, for_peer=True)
            return [self._namespace.name(directory, request.name)]
        if request.anew:
            await self._namespace.refresh(directory, for_peer=True)
        else:
            await self._namespace.list(directory, for_peer=True)
        return list(self._namespace.names(directory))

    async def take(self, request: OfferHandover) -> HandoverAnswer:
        """Fetches, after everybody else's reads, what this node owns now and another one offers."""
        outcome = await asyncio.gather(*map(self._take, request.files), return_exceptions=True)
        refused: list[int] = []
        for number, failure in enumerate(outcome):
            if isinstance(failure, HeadraceError):
                log.info("offered file not taken error=%s", failure)
                refused.append(number)
            elif failure is not None:
                raise failure
        return HandoverAnswer(refused=refused)

    async def _take(self, one: FileRange) -> None:
        end_s = time.monotonic() + VIEW_WAIT_S
        while not self._owns(one.path, one.start):  # whoever offers it may have heard of the change first
            if time.monotonic() >= end_s:
                raise NotOwnerError(os.fsdecode(one.path), why="this node does not own it")
            await asyncio.sleep(VIEW_LOOK_S)
        entry = await self._claimed(one)
        async with self._takes.enter(one.end - one.start, background=True):
            began_s = time.monotonic()
            if (one.start, one.end) == (0, one.size_bytes):
                await self._reads.load(entry)
            else:
                await self._reads.load_part(entry, one.start, one.end)
            took_s = time.monotonic() - began_s
            self._takes.window.succeeded(bytes_read=one.end - one.start, seconds=took_s)
        self._store.set_borrowed(entry.id, borrowed=False)

    async def keep(self, request: Replicate | ReplicateAhead) -> None:
        keeper = self._copy_desk().keeper
        if isinstance(request, Replicate):
            await keeper.keep(request)
        else:
            await keeper.keep_ahead(request)

    async def give_back(self, request: QueryFailover) -> FailoverReport:
        return await self._copy_desk().take_over.give_back(request.writer, done=request.done)

    def _copy_desk(self) -> ReplicationService:
        if self._copies is None:
            raise UsageError("copies of written files", why="this node has nothing to do with any")
        return self._copies

    async def written(
        self, request: ListPending | DirtyNamesChanged | ResolveVersion | RecallLease
    ) -> PendingNamesPage | VersionResolved | Done:
        shared = self._shared_writes()
        match request:
            case ListPending():
                return await shared.answer(request)
            case DirtyNamesChanged(paths=paths, below=below):
                for path in paths:
                    self._namespace.schedule_refresh(path, below)
            case ResolveVersion(path=path, token=token):
                return VersionResolved(await shared.settle(path, token))
            case RecallLease(path=path):
                await shared.give_up(path)
        return Done()

    def _shared_writes(self) -> CoherenceService:
        if self._shared is None:
            raise UsageError("written files", why="this node tells nobody of any")
        return self._shared

    async def doubt(self, request: ReportCorruption) -> None:
        entry = await self._claimed(request.file)
        await self._reads.check(entry.id)

    async def forget(self, request: InvalidateListing) -> None:
        if request.relist:
            self._on_forget(request.path, request.below)
        elif request.below:
            self._namespace.expire(request.path)
        else:
            self._namespace.invalidate(request.path)
