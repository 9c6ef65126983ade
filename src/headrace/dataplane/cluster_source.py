"""Read bytes of a file in a cluster: from peers first, and finally from the origin."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

from msgspec import structs

from headrace.base.errors import (
    DeadlineExceededError,
    HeadraceError,
    NotOwnerError,
    OriginError,
    VersionChangedError,
)
from headrace.base.model import Arrived, Entry, Version
from headrace.base.promotion import Promotion
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.concurrency import Gate
from headrace.dataplane.intent import FOREGROUND, ReadIntent
from headrace.dataplane.peer_reader import HEDGE_LATE_S, PeerReader
from headrace.dataplane.route import Hop
from headrace.dataplane.source import ByteSource, OriginSource, ReadAccounts, SourceFactory
from headrace.namespace.mounts import Mount
from headrace.overlay.pending_version import PendingVersion, is_pending
from headrace.ring.view import SEGMENT_BYTES, NodeInfo
from headrace.wire.peer_messages import FileRange

log = logging.getLogger(__name__)

VIEWS_MAX = 2
"""A read tries this many views before it asks the origin."""
PEER_RANGES = 32
"""Most ranges of one file in flight from peers while all of it is filled. 32 ranges of 8 MiB are 256 MiB, the memory
that a node uses for that (`fill_bytes_max`)."""
PERSISTED_MAX = 1000
"""Most pending versions that the node remembers, each with the origin's version that it became."""


async def _no_copy(wanted: FileRange) -> Arrived | None:
    return None


async def _never_persisted(path: bytes, version: Version) -> Version | None:
    return None


@dataclass(frozen=True, slots=True)
class PendingFiles:
    """Find files that other nodes wrote and have not persisted. writers: returns the nodes that may have the bytes of a
    writer's file. own_copy: reads bytes of a replica on this node. resolve_version: returns the origin's version of a
    pending version."""

    writers: Callable[[str], list[NodeInfo]] = lambda writer: []
    own_copy: Callable[[FileRange], Awaitable[Arrived | None]] = _no_copy
    resolve_version: Callable[[bytes, Version], Awaitable[Version | None]] = _never_persisted


class ClusterSourceFactory(SourceFactory):
    """Build sources that ask peers first. gate: limits reads from origins."""

    segment_bytes = SEGMENT_BYTES

    def __init__(
        self,
        gate: Gate,
        *,
        timeout_s: float,
        reader: PeerReader,
        pending: PendingFiles | None = None,
        accounts: ReadAccounts | None = None,
    ) -> None:
        super().__init__(gate, timeout_s=timeout_s, accounts=accounts)
        self.reader = reader
        self.pending = pending or PendingFiles()
        self._persisted: dict[tuple[bytes, Version], Version] = {}
        self._at_origin: dict[tuple[bytes, Version], list[tuple[int, int]]] = {}

    def of(self, mount: Mount, key: str, entry: Entry, path: bytes) -> ByteSource:
        if is_pending(entry.version):
            return PendingFileSource(self, path, entry, mount, key)
        return PeerThenOrigin(self, path, entry.version, self.origin_of(mount, key, entry, path))

    def statistics(self) -> dict[str, int]:
        return self.reader.statistics()

    def in_flight_max(self) -> float:
        return max(self.gate.window.limit, min(PEER_RANGES, self.reader.in_flight_max))

    @property
    def has_spare(self) -> bool:
        return self.gate.has_spare and self.reader.has_spare

    def owns(self, path: bytes) -> bool:
        return self.reader.route(path, 0, for_peer=False).owned

    def comes_from_origin(self, path: bytes, version: Version, start: int, end: int) -> bool:
        return any(first <= start and end <= last for first, last in self._at_origin.get((path, version), ()))

    @contextmanager
    def at_origin(self, path: bytes, version: Version, start: int, end: int) -> Iterator[None]:
        """Record for `comes_from_origin` that a read of these bytes is in flight at the origin."""
        ranges = self._at_origin.setdefault((path, version), [])
        ranges.append((start, end))
        try:
            yield
        finally:
            ranges.remove((start, end))
            if not ranges:
                del self._at_origin[path, version]

    def persisted(self, path: bytes, version: Version) -> Version | None:
        """Return the origin's version of a pending version, if `ask_persisted` returned it before."""
        return self._persisted.get((path, version))

    async def ask_persisted(self, path: bytes, version: Version) -> Version:
        """Ask the cluster for the origin's version of a pending version. Raises VersionChangedError if it was never
        persisted, or no node knows: the name then means another file, or soon will."""
        persisted, why = None, "the node that wrote it has it no more"
        try:
            async with asyncio.timeout(self.reader.timeout_s):
                persisted = await self.pending.resolve_version(path, version)
        except (HeadraceError, TimeoutError) as error:
            why = str(error)
        if persisted is None or persisted.size_bytes != version.size_bytes:
            raise VersionChangedError(os.fsdecode(path), why=why)
        self._persisted[path, version] = persisted
        if len(self._persisted) > PERSISTED_MAX:
            del self._persisted[next(iter(self._persisted))]
        return persisted


@dataclass(frozen=True, slots=True)
class PeerThenOrigin:
    """Read one version of a file from peers, and finally from the origin. A peer's error only costs time. The origin
    decides which version exists. Where an owner could not read it, the other owners send only what they have: each
    would wait for it as long."""

    sources: ClusterSourceFactory
    path: bytes
    version: Version
    origin: OriginSource

    @asynccontextmanager
    async def read(self, start: int, end: int, intent: ReadIntent) -> AsyncIterator[Arrived]:
        reader = self.sources.reader
        for _ in range(VIEWS_MAX):
            view = reader.view()
            hops = reader.hops(self.path, start, intent)
            has_other_view = has_origin_failed = False
            for number, next_hop in enumerate(hops):
                hop = replace(next_hop, cached_only=True) if has_origin_failed else next_hop
                async with reader.enter(end - start, intent):
                    if reader.is_slow(hop) and not intent.background:
                        answer = await self._ask_hedged(hop, hops[number + 1 :], start, end)
                    else:
                        promotion = None if intent.is_for_reader else intent.promotion
                        answer = await self._ask(hop, start, end, promotion)
                    if not isinstance(answer, HeadraceError):
                        yield answer
                        return
                    has_other_view |= isinstance(answer, NotOwnerError) and not hop.cached_only
                    has_origin_failed |= isinstance(answer, (OriginError, DeadlineExceededError))
            if not has_other_view or not await reader.newer_view(view):
                break
        with self.sources.at_origin(self.path, self.version, start, end):
            async with self.origin.read(start, end, intent) as arrived:
                yield arrived

    async def _ask_hedged(
        self, hop: Hop, rest: Sequence[Hop], start: int, end: int
    ) -> Arrived | HeadraceError:
        """Ask a slow peer. If it is late, ask the next peer or the origin as well. Return the first bytes."""
        reader = self.sources.reader
        patience_s = reader.patience_s(end - start)
        async with OwnedTasks() as tasks:
            requests = {tasks.start(self._ask(hop, start, end))}
            done, _ = await asyncio.wait(requests, timeout=patience_s)
            if not done and patience_s < HEDGE_LATE_S and not reader.may_hedge_now(end - start):
                done, _ = await asyncio.wait(requests, timeout=HEDGE_LATE_S - patience_s)
            if not done:
                reader.count_hedge()
                second = self._ask(rest[0], start, end) if rest else self._ask_origin(start, end)
                requests.add(tasks.start(second))
            waiting = set(requests)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for request in done:
                    answer = request.result()
                    if not isinstance(answer, HeadraceError):
                        return answer
            return answer

    async def _ask_origin(self, start: int, end: int) -> Arrived | HeadraceError:
        try:
            async with self.origin.read(start, end, FOREGROUND) as arrived:
                return arrived
        except HeadraceError as error:
            return error

    async def _ask(
        self, hop: Hop, start: int, end: int, promotion: Promotion | None = None
    ) -> Arrived | HeadraceError:
        return await self.sources.reader.fetch(hop, _range_of(self.path, self.version, start, end), promotion)


@dataclass(frozen=True, slots=True)
class PendingFileSource:
    """Read a file that another node wrote and no origin has yet: from that node, or from a replica. If neither still
    has it, it was persisted, and is read like any other file of the origin."""

    sources: ClusterSourceFactory
    path: bytes
    entry: Entry
    mount: Mount
    key: str

    @asynccontextmanager
    async def read(self, start: int, end: int, intent: ReadIntent) -> AsyncIterator[Arrived]:
        sources, pending = self.sources, self.entry.version
        version = sources.persisted(self.path, pending)
        if version is None:
            async with sources.reader.enter(end - start, intent):
                arrived = await self._fetch(start, end)
                if arrived is not None:
                    yield arrived
                    return
            version = await sources.ask_persisted(self.path, pending)
        persisted = sources.of(self.mount, self.key, structs.replace(self.entry, version=version), self.path)
        async with persisted.read(start, end, intent) as arrived:
            yield arrived

    async def _fetch(self, start: int, end: int) -> Arrived | None:
        sources, version = self.sources, self.entry.version
        pending, wanted = PendingVersion.parse(version.token), _range_of(self.path, version, start, end)
        for node in [] if pending is None else sources.pending.writers(pending.writer):
            try:
                return await sources.reader.fetch_pending(node, wanted)
            except HeadraceError as error:
                log.info("bytes of a pending file were not received node=%s error=%s", node.id, error)
        return await sources.pending.own_copy(wanted)


def _range_of(path: bytes, version: Version, start: int, end: int) -> FileRange:
    return FileRange(path, version.size_bytes, version.mtime_ns, version.token, start, end)
