"""Where the bytes of a file come from when they are not here: the origin, or peers first.

A read is a context: the body is good, and its place among the reads in flight is taken, until the context ends. So
bodies don't pile up in memory before a disk that is slower than the network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, NotOwnerError, OriginUnavailableError, VersionChangedError
from headrace.base.model import Arrived, Entry, Version
from headrace.dataplane.concurrency import Gate
from headrace.dataplane.route import Hop, Route, route
from headrace.namespace.mounts import Mount
from headrace.origin.circuit import Circuit
from headrace.origin.origin import Origin
from headrace.overlay.pending_version import PendingVersion, is_pending
from headrace.peer.client import PeerClient
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo
from headrace.wire.peer_messages import FileRange

log = logging.getLogger(__name__)

HEDGE_FACTOR = 2.0
HEDGE_S = 0.05
"""Where nothing is known of how long others take; a guess."""
HEDGED_SHARE, HEDGED_BYTES_MIN = 0.02, 32 << 20
"""Of what came from peers, what may be asked for elsewhere as soon as a slow peer is late with it; so much in any case.
Beyond that, large ranges wait longer."""
HEDGE_LATE_S = 1.5
IN_VAIN_MAX = 64
"""A node that had nothing of what it owned before, so often in a row, is not asked again until members change."""
EARLY_IN_VAIN_MAX = 3
"""The same of one that is asked before the owner: each time costs a request."""
VIEWS_MAX = 2
VIEW_WAIT_S = 1.0
VIEW_LOOK_S = 0.02
PEER_RANGES = 32
"""Ranges of one file that are on their way from peers at most, where all of it is wanted: 256 MiB of 8 MiB each, which
is what a node takes of memory for that (`fill_bytes_max`)."""
SETTLED_MAX = 1000
"""Versions that were written by nodes, of which it is remembered what the origin has of them."""
MOVING_S = 600.0
"""How long after a change of the members bytes are looked for where they were owned before."""
HANDING_OVER_S = 60.0
"""How long they are looked for there first."""


class ByteSource(Protocol):
    """One version of one file, elsewhere."""

    def read(
        self, start: int, end: int, *, background: bool, for_peer: bool
    ) -> AbstractAsyncContextManager[Arrived]:
        """Bytes start..end, exactly, with what came along of the file's extras. background: others' reads go first.
        for_peer: see route.py. Errors as of Origin.read_range."""
        ...


@dataclass(frozen=True, slots=True)
class OriginSource:
    """timeout_s: of a read, trying again and waiting for the origin included, the queue of the gate not."""

    origin: Origin
    circuit: Circuit
    key: str
    version: Version
    gate: Gate
    timeout_s: float

    @asynccontextmanager
    async def read(self, start: int, end: int, *, background: bool, for_peer: bool) -> AsyncIterator[Arrived]:
        """While the origin is away no place in the gate is held: others need it, for other origins."""
        left_s = self.timeout_s
        while True:
            deadline = Deadline.after(left_s)
            tries = await self.circuit.admitted(self.key, deadline)
            left_s = deadline.left_s()
            async with self.gate.enter(end - start, background=background):
                if not tries and not self.circuit.closed:
                    continue
                deadline, began = Deadline.after(left_s), time.monotonic()
                try:
                    arrived = await self.origin.read_range(
                        self.key, start, end, version=self.version, deadline=deadline
                    )
                except OriginUnavailableError:
                    left_s = deadline.left_s()
                    if self.circuit.closed or not left_s:
                        raise
                    continue
                self.gate.window.succeeded(bytes_read=end - start, seconds=time.monotonic() - began)
                yield structs.replace(arrived, from_origin=True)
                return


class SourceFactory:
    """Builds the source of a file. gate: of reads from origins. lane_bytes: parts of a file of this size come from
    places of their own; 0: all of it from one."""

    lane_bytes = 0

    def __init__(self, gate: Gate, *, timeout_s: float) -> None:
        self._gate = gate
        self._timeout_s = timeout_s

    def of(self, mount: Mount, key: str, entry: Entry, path: bytes) -> ByteSource:
        """key: at the mount's origin; path: in the namespace."""
        return self.origin_of(mount, key, entry)

    def statistics(self) -> dict[str, int]:
        """What came from peers."""
        return {}

    def in_flight_max(self) -> float:
        """How many reads are worth having in flight just now."""
        return self._gate.window.limit

    def origin_of(self, mount: Mount, key: str, entry: Entry) -> OriginSource:
        return OriginSource(mount.origin, mount.circuit, key, entry.version, self._gate, self._timeout_s)

    def owns(self, path: bytes) -> bool:
        """Whether this node is an owner of the file's first segment."""
        return True

    def comes_from_origin(self, path: bytes, version: Version, start: int, end: int) -> bool:
        """Whether one read of all of it is under way, and is at the origin."""
        return False


async def _no_copy(wanted: FileRange) -> Arrived | None:
    return None


async def _never_persisted(path: bytes, version: Version) -> Version | None:
    return None


@dataclass(frozen=True, slots=True)
class PendingFiles:
    """Find files that other nodes wrote and have not persisted. writers: whom to ask for the bytes of what a node
    wrote. own_copy: bytes out of a replica that this node has. settle: what the origin has of such a file."""

    writers: Callable[[str], list[NodeInfo]] = lambda writer: []
    own_copy: Callable[[FileRange], Awaitable[Arrived | None]] = _no_copy
    settle: Callable[[bytes, Version], Awaitable[Version | None]] = _never_persisted


class ClusterSourceFactory(SourceFactory):
    """peer_gate: of reads from peers. view: the current one."""

    lane_bytes = SEGMENT_BYTES

    def __init__(
        self,
        gate: Gate,
        *,
        timeout_s: float,
        me: str,
        peers: PeerClient,
        peer_gate: Gate,
        view: Callable[[], ClusterView],
        replicas: int,
        small_bytes_max: int,
        pending: PendingFiles | None = None,
    ) -> None:
        super().__init__(gate, timeout_s=timeout_s)
        self.pending = pending or PendingFiles()
        self._settled: dict[tuple[bytes, Version], Version] = {}
        self.me = me
        self.peers = peers
        self.peer_gate = peer_gate
        self.view = view
        self.replicas = replicas
        self.small_bytes_max = small_bytes_max
        self.peer_timeout_s = timeout_s
        self.bytes_from_peers = self.reads_from_peers = self.reads_failed = self.reads_hedged = 0
        self._bytes_hedged = 0
        self._ring = view().ring
        self._changed_s = float("-inf")
        self._in_vain: dict[str, int] = {}
        self._at_origin: dict[tuple[bytes, Version], list[tuple[int, int]]] = {}

    def of(self, mount: Mount, key: str, entry: Entry, path: bytes) -> ByteSource:
        if is_pending(entry.version):
            return PendingFileSource(self, path, entry, mount, key)
        return PeerThenOrigin(self, path, entry.version, self.origin_of(mount, key, entry))

    def in_flight_max(self) -> float:
        return max(self._gate.window.limit, min(PEER_RANGES, self.peer_gate.window.limit))

    def owns(self, path: bytes) -> bool:
        return self.route(path, 0, for_peer=False).owned

    def comes_from_origin(self, path: bytes, version: Version, start: int, end: int) -> bool:
        return any(first <= start and end <= last for first, last in self._at_origin.get((path, version), ()))

    @contextmanager
    def at_origin(self, path: bytes, version: Version, start: int, end: int) -> Iterator[None]:
        ranges = self._at_origin.setdefault((path, version), [])
        ranges.append((start, end))
        try:
            yield
        finally:
            ranges.remove((start, end))
            if not ranges:
                del self._at_origin[path, version]

    def route(self, path: bytes, start: int, *, for_peer: bool) -> Route:
        view = self.view()
        if view.ring is not self._ring:
            self._ring, self._changed_s = view.ring, time.monotonic()
            self._in_vain.clear()
        since_s = time.monotonic() - self._changed_s
        return route(
            *(view, self.me, path, start),
            replicas=self.replicas,
            for_peer=for_peer,
            moving=since_s < MOVING_S,
            handing_over=since_s < HANDING_OVER_S,
        )

    def may_hedge_now(self, size_bytes: int) -> bool:
        """Whether a read that a slow peer is late with may be asked for elsewhere already; it counts then."""
        allowed = HEDGED_BYTES_MIN + HEDGED_SHARE * self.bytes_from_peers
        if size_bytes > self.small_bytes_max and self._bytes_hedged + size_bytes > allowed:
            return False
        self._bytes_hedged += size_bytes
        return True

    def worth_asking(self, hop: Hop) -> bool:
        """Not one that is down, nor one that was asked in vain again and again for what it may have had before."""
        in_vain_max = EARLY_IN_VAIN_MAX if hop.early else IN_VAIN_MAX
        if hop.cached_only and self._in_vain.get(hop.node.id, 0) >= in_vain_max:
            return False
        return self.peers.usable(hop.node)

    def answered(self, hop: Hop, *, in_vain: bool) -> None:
        if hop.cached_only:
            self._in_vain[hop.node.id] = self._in_vain.get(hop.node.id, 0) + 1 if in_vain else 0

    async def other_view(self, before: ClusterView) -> bool:
        """Waits a little for a newer view, where a peer has another one than this node; whether it came."""
        end_s = time.monotonic() + VIEW_WAIT_S
        while self.view() is before and time.monotonic() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(VIEW_LOOK_S)
        return self.view() is not before

    def settled(self, path: bytes, version: Version) -> Version | None:
        """What the origin has of such a file, where that was asked for before."""
        return self._settled.get((path, version))

    async def ask_settled(self, path: bytes, version: Version) -> Version:
        """The same, asked for. VersionChangedError where it never came to the origin, or nobody can tell: then its name
        means something else, or soon will."""
        found, why = None, "the node that wrote it has it no more"
        try:
            async with asyncio.timeout(self.peer_timeout_s):
                found = await self.pending.settle(path, version)
        except (HeadraceError, TimeoutError) as error:
            why = str(error)
        if found is None or found.size_bytes != version.size_bytes:
            raise VersionChangedError(os.fsdecode(path), why=why)
        self._settled[path, version] = found
        if len(self._settled) > SETTLED_MAX:
            del self._settled[next(iter(self._settled))]
        return found

    def statistics(self) -> dict[str, int]:
        return {
            "reads": self.reads_from_peers,
            "bytes_read": self.bytes_from_peers,
            "reads_failed": self.reads_failed,
            "reads_hedged": self.reads_hedged,
        }


@dataclass(frozen=True, slots=True)
class PeerThenOrigin:
    """Whatever a peer does wrong costs time only: the next one is asked, and the origin in the end, which also has
    the last word on what version there is."""

    sources: ClusterSourceFactory
    path: bytes
    version: Version
    origin: OriginSource

    @asynccontextmanager
    async def read(self, start: int, end: int, *, background: bool, for_peer: bool) -> AsyncIterator[Arrived]:
        sources = self.sources
        for _ in range(VIEWS_MAX):
            view = sources.view()
            hops = sources.route(self.path, start, for_peer=for_peer).hops
            hops = tuple(hop for hop in hops if sources.worth_asking(hop))
            refused = False
            for number, hop in enumerate(hops):
                async with sources.peer_gate.enter(end - start, background=background):
                    if sources.peers.is_slow(hop.node) and not background:
                        found = await self._ask_hedged(hop, hops[number + 1 :], start, end)
                    else:
                        found = await self._ask(hop, start, end)
                    if not isinstance(found, HeadraceError):
                        yield found
                        return
                    refused = refused or (isinstance(found, NotOwnerError) and not hop.cached_only)
            if not refused or not await sources.other_view(view):
                break
        with sources.at_origin(self.path, self.version, start, end):
            async with self.origin.read(start, end, background=background, for_peer=for_peer) as arrived:
                yield arrived

    async def _ask_hedged(
        self, hop: Hop, rest: tuple[Hop, ...], start: int, end: int
    ) -> Arrived | HeadraceError:
        """A slow peer has as long as others usually take; then the next one, or the origin, is asked as well, and the
        first answer counts."""
        usual_s = self.sources.peers.usual_s(end - start)
        patience_s = HEDGE_FACTOR * usual_s if usual_s else HEDGE_S
        asked = {asyncio.ensure_future(self._ask(hop, start, end))}
        try:
            done, _ = await asyncio.wait(asked, timeout=patience_s)
            if not done and patience_s < HEDGE_LATE_S and not self.sources.may_hedge_now(end - start):
                done, _ = await asyncio.wait(asked, timeout=HEDGE_LATE_S - patience_s)
            if not done:
                self.sources.reads_hedged += 1
                second = self._ask(rest[0], start, end) if rest else self._ask_origin(start, end)
                asked.add(asyncio.ensure_future(second))
            waiting = set(asked)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    found = one.result()
                    if not isinstance(found, HeadraceError):
                        return found
            return found
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask_origin(self, start: int, end: int) -> Arrived | HeadraceError:
        try:
            async with self.origin.read(start, end, background=False, for_peer=False) as arrived:
                return arrived
        except HeadraceError as error:
            return error

    async def _ask(self, hop: Hop, start: int, end: int) -> Arrived | HeadraceError:
        """The bytes, or why they did not come."""
        sources, version = self.sources, self.version
        wanted = FileRange(self.path, version.size_bytes, version.mtime_ns, version.token, start, end)
        epoch, deadline = sources.view().epoch, Deadline.after(sources.peer_timeout_s)
        try:
            if end - start <= sources.small_bytes_max and not hop.cached_only:
                arrived = await sources.peers.fetch_small(hop.node, wanted, epoch=epoch, deadline=deadline)
            else:
                arrived = await sources.peers.fetch(
                    hop.node, wanted, cached_only=hop.cached_only, epoch=epoch, deadline=deadline
                )
        except HeadraceError as error:
            if not hop.cached_only:
                sources.reads_failed += 1
                level = logging.INFO if isinstance(error, VersionChangedError) else logging.WARNING
                log.log(level, "peer did not give what it owns node=%s error=%s", hop.node.id, error)
            sources.answered(hop, in_vain=True)
            return error
        sources.answered(hop, in_vain=False)
        sources.reads_from_peers += 1
        sources.bytes_from_peers += end - start
        return arrived


@dataclass(frozen=True, slots=True)
class PendingFileSource:
    """A file that another node wrote and no origin has yet: from that node, or one that has a copy of it. Where neither
    has it any more, as it is persisted by now: as any other file of the origin."""

    sources: ClusterSourceFactory
    path: bytes
    entry: Entry
    mount: Mount
    key: str

    @asynccontextmanager
    async def read(self, start: int, end: int, *, background: bool, for_peer: bool) -> AsyncIterator[Arrived]:
        sources, written = self.sources, self.entry.version
        version = sources.settled(self.path, written)
        if version is None:
            async with sources.peer_gate.enter(end - start, background=background):
                arrived = await self._fetch(start, end)
                if arrived is not None:
                    yield arrived
                    return
            version = await sources.ask_settled(self.path, written)
        at_origin = sources.of(self.mount, self.key, structs.replace(self.entry, version=version), self.path)
        async with at_origin.read(start, end, background=background, for_peer=for_peer) as arrived:
            yield arrived

    async def _fetch(self, start: int, end: int) -> Arrived | None:
        sources, version = self.sources, self.entry.version
        written = PendingVersion.parse(version.token)
        wanted = FileRange(self.path, version.size_bytes, version.mtime_ns, version.token, start, end)
        for node in [] if written is None else sources.pending.writers(written.writer):
            deadline = Deadline.after(sources.peer_timeout_s)
            try:
                arrived: Arrived | None = await sources.peers.fetch(
                    node, wanted, cached_only=True, epoch=sources.view().epoch, deadline=deadline
                )
            except HeadraceError as error:
                log.info("what was written there did not come node=%s error=%s", node.id, error)
                continue
            sources.reads_from_peers += 1
            sources.bytes_from_peers += end - start
            assert arrived is not None
            return arrived
        return await sources.pending.own_copy(wanted)
