"""OPEN FIRST: asking other nodes for ranges of files, small files and listings.

    fetch        → ConnectionPool.converse → a link from the pool → FetchCall in a thread → checked bytes
    fetch_small  → Batcher: what waits for the same node goes in one request → the same
    list, lookup, forget, take, keep, ping → the same, with other talks

A peer that sent bytes with another checksum than its own is told (ReportCorruption), in the background: perhaps its
disk rots.

All of it on one loop; bytes are received and checked in the threads of `exchange.py`. Errors: what the peer says comes
out as it was there (VersionChangedError, NotOwnerError, the origin's); what the network or a peer that is dead, slow
or lying does comes out as PeerError, which names node and address. A cancelled call closes its connection.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError
from headrace.base.model import Arrived
from headrace.identity.mutual import MutualTls
from headrace.peer.batch import Batcher, Waiting
from headrace.peer.calls import Call, FetchCall, Fetched, StreamingCall, UnaryCall
from headrace.peer.connection_pool import IDLE_S_MAX, PING_S, ConnectionPool, Peer
from headrace.peer.latency import Latencies, size_class
from headrace.ring.view import NodeInfo
from headrace.wire.messages import Done
from headrace.wire.peer_frame import SPOKEN
from headrace.wire.peer_messages import (
    DirtyNamesChanged,
    FailedOverFile,
    FailoverReport,
    Fetch,
    FileRange,
    HandoverAnswer,
    InvalidateListing,
    ListPending,
    ListShared,
    LookupShared,
    Names,
    OfferHandover,
    PeerHello,
    PeerWelcome,
    PendingNamesPage,
    QueryFailover,
    RecallLease,
    Replicate,
    ReplicateAhead,
    ReportCorruption,
    ResolveVersion,
    VersionResolved,
)

THREADS = 64
"""At most; made as they are needed. Each moves the bytes of one answer while they come."""
SWEEP_S = 15.0
DOUBT_LIMIT_S = 300.0
"""The peer reads the whole file back."""

log = logging.getLogger(__name__)

Given = TypeVar("Given")


class PeerClient:
    """me: this node's id. cluster: its name. tls: None: plain TCP. Used on one
    loop."""

    def __init__(
        self,
        me: str,
        cluster: str,
        *,
        tls: MutualTls | None = None,
        threads: int = THREADS,
        protocols: tuple[int, int] = SPOKEN,
    ) -> None:
        self._exchange = ConnectionPool(PeerHello(protocols, cluster, me), tls=tls, threads=threads)
        self._peers: dict[str, Peer] = {}
        self._batchers: dict[Peer, Batcher] = {}
        self._latencies = Latencies()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def fetch(
        self, node: NodeInfo, wanted: FileRange, *, cached_only: bool, epoch: int, deadline: Deadline
    ) -> Arrived:
        """Exactly the bytes wanted, each block's checksum verified; extras as the peer tells them."""
        found: builtins.list[tuple[int, Fetched]] = []
        talk = FetchCall(Fetch([wanted], cached_only=cached_only, epoch=epoch), found.extend)
        await self._ask_usable(self._peer(node), talk, deadline)
        arrived = found[0][1]
        if isinstance(arrived, HeadraceError):
            raise arrived
        return arrived

    async def fetch_small(
        self, node: NodeInfo, wanted: FileRange, *, epoch: int, deadline: Deadline
    ) -> Arrived:
        """As fetch, with cached_only=False; calls that wait for the same node share a request."""
        peer = self._peer(node)
        if peer not in self._batchers:
            self._batchers[peer] = Batcher(lambda batch: self._send_batch(peer, batch))
        return await self._batchers[peer].ask(Waiting(wanted, epoch, deadline=deadline))

    async def lookup(
        self, node: NodeInfo, path: bytes, name: bytes, *, epoch: int, deadline: Deadline
    ) -> Names:
        talk = UnaryCall(LookupShared(path, name, epoch), Names)
        await self._ask_usable(self._peer(node), talk, deadline)
        return talk.result()

    async def forget(
        self, node: NodeInfo, path: bytes, *, relist: bool, below: bool, deadline: Deadline
    ) -> None:
        talk = UnaryCall(InvalidateListing(path, relist, below), Done)
        await self._ask(self._peer(node), talk, deadline)
        talk.result()

    async def take(
        self, node: NodeInfo, files: builtins.list[FileRange], *, epoch: int, deadline: Deadline
    ) -> builtins.list[int]:
        """The numbers of those that the node has not after all."""
        talk = UnaryCall(OfferHandover(files, epoch), HandoverAnswer)
        await self._ask(self._peer(node), talk, deadline)
        return talk.result().refused

    async def keep(self, node: NodeInfo, request: Replicate | ReplicateAhead, deadline: Deadline) -> None:
        talk = UnaryCall(request, Done)
        await self._ask(self._peer(node), talk, deadline)
        talk.result()

    async def returned(
        self, node: NodeInfo, writer: str, *, done: bool, deadline: Deadline
    ) -> builtins.list[FailedOverFile]:
        """What the node persisted of the copies that it had of a writer's files."""
        talk = UnaryCall(QueryFailover(writer, done), FailoverReport)
        await self._ask(self._peer(node), talk, deadline)
        return talk.result().files

    async def ask_written(self, node: NodeInfo, request: ListPending, deadline: Deadline) -> PendingNamesPage:
        talk = UnaryCall(request, PendingNamesPage)
        await self._ask_usable(self._peer(node), talk, deadline)
        return talk.result()

    async def settle(self, node: NodeInfo, request: ResolveVersion, deadline: Deadline) -> VersionResolved:
        talk = UnaryCall(request, VersionResolved)
        await self._ask(self._peer(node), talk, deadline)
        return talk.result()

    async def tell(
        self, node: NodeInfo, request: DirtyNamesChanged | RecallLease, deadline: Deadline
    ) -> None:
        """It heard, and did what the message says, on return."""
        talk = UnaryCall(request, Done)
        await self._ask(self._peer(node), talk, deadline)
        talk.result()

    async def ping(self, node: NodeInfo, deadline: Deadline) -> PeerWelcome:
        """Who is there."""
        return await self._exchange.ping(self._peer(node), deadline)

    async def ping_any(self, address: str, deadline: Deadline, *, node: str = "") -> PeerWelcome:
        """Whichever run it is. node: the id that a certificate must name."""
        stranger = Peer(node, address, None)
        try:
            return await self._exchange.ping(stranger, deadline)
        finally:
            stranger.close_idle()

    async def list(
        self, node: NodeInfo, path: bytes, *, epoch: int, deadline: Deadline, anew: bool = False
    ) -> AsyncIterator[Names]:
        """Pages as they come. An iteration that is left (aclose) ends the request."""
        loop = asyncio.get_running_loop()
        pages: asyncio.Queue[Names | HeadraceError | None] = asyncio.Queue()
        talk = StreamingCall(ListShared(path, epoch, anew), lambda page: _on(loop, pages.put_nowait, page))
        task = self._spawn(self._ask_usable(self._peer(node), talk, deadline))
        task.add_done_callback(lambda done: pages.put_nowait(_failure(done)))
        try:
            while (page := await pages.get()) is not None:
                if isinstance(page, HeadraceError):
                    raise page
                yield page
                if page.last:
                    break
            with contextlib.suppress(HeadraceError):  # the listing is whole; what comes after doesn't matter
                await task
        finally:
            task.cancel()

    def usable(self, node: NodeInfo) -> bool:
        """Whether it is worth asking. One that failed is probed in the background, for its return."""
        peer = self._peer(node)
        if peer.breaker.closed:
            return True
        if not self._closed and peer.breaker.take_probe(time.monotonic()):
            self._spawn(self._probe(peer))
        return False

    def is_slow(self, node: NodeInfo) -> bool:
        """Its p99 of the last minute is far above the others'."""
        return self._latencies.is_slow(node.id, now_s=time.monotonic())

    def usual_s(self, size_bytes: int) -> float | None:
        """p99 of an answer of that size by peers, the median of them; None: not known. For hedging."""
        return self._latencies.usual_s(size_class(size_bytes), now_s=time.monotonic())

    def statistics(self) -> dict[str, Any]:
        """By node. Latencies in seconds, of the last minute, None where there were none."""
        now = time.monotonic()
        return {
            peer.id: {
                "address": peer.address,
                "requests": peer.requests,
                "files": peer.files_received,
                "bytes": peer.bytes_received,
                "errors": peer.errors,
                "trouble": peer.trouble,
                "latency_s_p50": self._latencies.over_all(peer.id, share=0.5, now_s=now),
                "latency_s_p99": self._latencies.over_all(peer.id, share=0.99, now_s=now),
                "breaker": peer.breaker.state(now),
                "slow": self._latencies.is_slow(peer.id, now_s=now),
                "links_idle": len(peer.idle),
            }
            for peer in self._peers.values()
        }

    def close(self) -> None:
        """On the loop. What is under way ends with PeerError or is cancelled; its threads end soon after."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for task in self._tasks:
            task.cancel()
        self._exchange.close()
        for peer in self._peers.values():
            peer.close_idle()

    # ------------------------------------------------------------ beneath

    async def _ask_usable(self, peer: Peer, talk: Call, deadline: Deadline) -> None:
        """For what somebody waits for who can ask others: not one that was given up, perhaps while this waited for its
        turn."""
        if not peer.breaker.closed:
            raise PeerError(f"node {peer.who}", why=f"given up for now: {peer.trouble}")
        await self._ask(peer, talk, deadline)

    async def _ask(self, peer: Peer, talk: Call, deadline: Deadline) -> None:
        began = time.monotonic()
        self._sweep_later()
        try:
            await self._exchange.converse(peer, talk, deadline)
        finally:
            if isinstance(talk, FetchCall) and talk.rotten is not None and not self._closed:
                self._spawn(self._doubt(peer, talk.rotten))
        if isinstance(talk, FetchCall):
            now = time.monotonic()
            peer.bytes_received += talk.bytes_received
            peer.files_received += talk.files_received
            if talk.bytes_received:
                self._latencies.add(peer.id, talk.bytes_received, seconds=now - began, now_s=now)

    async def _send_batch(self, peer: Peer, batch: builtins.list[Waiting]) -> None:
        loop = asyncio.get_running_loop()

        def resolve(files: builtins.list[tuple[int, Fetched]]) -> None:
            for index, found in files:
                batch[index].resolve(found)

        request = Fetch(
            [one.wanted for one in batch], cached_only=False, epoch=max(one.epoch for one in batch)
        )
        talk = FetchCall(request, lambda files: _on(loop, resolve, files))
        deadline = Deadline(max(one.deadline.at_s for one in batch))
        try:
            await self._ask_usable(peer, talk, deadline)
        except HeadraceError as error:
            for one in batch:
                one.resolve(error.copied())

    async def _doubt(self, peer: Peer, file: FileRange) -> None:
        path = os.fsdecode(file.path)
        log.warning("peer sent bytes that don't match their checksum node=%s path=%s", peer.who, path)
        talk = UnaryCall(ReportCorruption(file), Done)
        try:
            await self._exchange.converse(peer, talk, Deadline.after(DOUBT_LIMIT_S))
            talk.result()
        except HeadraceError as error:
            log.info("peer did not look at its copy node=%s path=%s error=%s", peer.who, path, error)

    async def _probe(self, peer: Peer) -> None:
        with contextlib.suppress(HeadraceError):
            await self._exchange.ping(peer, Deadline.after(PING_S))

    def _peer(self, node: NodeInfo) -> Peer:
        """A node that started anew is another one, with a clean record."""
        if self._closed:
            raise PeerError(f"node {node.id} at {node.address}", why="this node stops")
        known = self._peers.get(node.id)
        if known is not None and (known.instance, known.address) == (node.instance, node.address):
            return known
        peer = Peer(node.id, node.address, node.instance)
        if known is not None:
            known.close_idle()
            self._batchers.pop(known, None)
            self._latencies.forget(node.id)
            peer.requests, peer.errors = known.requests, known.errors
            peer.bytes_received, peer.files_received = known.bytes_received, known.files_received
        self._peers[node.id] = peer
        return peer

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _sweep_later(self) -> None:
        if self._sweep is None and not self._closed:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_idle)

    def _sweep_idle(self) -> None:
        self._sweep = None
        for peer in self._peers.values():
            peer.close_idle(time.monotonic() - IDLE_S_MAX)
        if any(peer.idle for peer in self._peers.values()):
            self._sweep_later()


def _on(loop: asyncio.AbstractEventLoop, call: Callable[[Given], None], given: Given) -> None:
    loop.call_soon_threadsafe(call, given)


def _failure(task: asyncio.Task[Any]) -> HeadraceError | None:
    if task.cancelled():
        return PeerError("listing of a peer", why="this node stops")
    error = task.exception()
    return error if error is None or isinstance(error, HeadraceError) else HeadraceError(repr(error))
