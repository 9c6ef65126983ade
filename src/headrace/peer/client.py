"""OPEN FIRST: request file ranges, small files and listings from other nodes.

    fetch        → ConnectionPool.execute → a connection of the pool → FetchCall in a thread → verified bytes
    fetch_small  → Batcher: calls that wait for the same node share a request → the same
    list, lookup, ping and the others → the same, with other calls

A peer that sent bytes that don't match its own checksum gets a ReportCorruption in the background: its disk may be
failing.

Everything runs on one event loop; the threads of `connection_pool.py` receive and check bytes. An error that the
peer reports is raised as it was there (VersionChangedError, NotOwnerError, the origin's errors). A failure of the
network, and a peer that is dead, slow or sends invalid answers, is raised as PeerError, which names node and
address. A cancelled call closes its connection.
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from msgspec import structs

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, PeerError
from headrace.base.model import Arrived
from headrace.base.promotion import Promotion
from headrace.base.tasks import OwnedTasks
from headrace.identity.mutual import MutualTls
from headrace.peer.batch import Waiting
from headrace.peer.batchers import Batchers
from headrace.peer.calls import Call, FetchCall, Fetched, SingleFetchCall, StreamingCall, UnaryCall
from headrace.peer.connection_pool import PING_S, ConnectionPool, Peer
from headrace.peer.latency import size_class
from headrace.peer.page_queue import PageQueue
from headrace.peer.peer_table import PeerTable
from headrace.peer.promoted import request_by_urgency
from headrace.ring.view import ClusterView, NodeInfo
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
    OriginChanged,
    PeerHello,
    PeerWelcome,
    PendingNamesPage,
    QueryFailover,
    RecallLease,
    ReplicaRequest,
    ReportCorruption,
    ResolveVersion,
    TrialAnswer,
    TryPolicy,
    VersionResolved,
)

THREADS = 64
"""Threads at most, each for the bytes of one answer; they start as they are needed."""
CORRUPTION_LIMIT_S = 300.0
"""Seconds for the answer to a report of corruption, since the peer reads the whole file back to check it."""

log = logging.getLogger(__name__)

Argument = TypeVar("Argument")


class PeerClient:
    """Sends the requests of this node to the other nodes. Used on one event loop. me: this node's id. cluster: its
    name. tls: None connects by plain TCP."""

    def __init__(
        self,
        me: str,
        cluster: str,
        *,
        tls: MutualTls | None = None,
        threads: int = THREADS,
        protocols: tuple[int, int] = SPOKEN,
    ) -> None:
        self._pool = ConnectionPool(PeerHello(protocols, cluster, me), tls=tls, threads=threads)
        self.table = PeerTable()
        self._batchers = Batchers(self._send_batch)
        self._tasks = OwnedTasks(HeadraceError)

    async def fetch(
        self,
        node: NodeInfo,
        file: FileRange,
        *,
        cached_only: bool,
        epoch: int,
        deadline: Deadline,
        promotion: Promotion | None = None,
    ) -> Arrived:
        """Return exactly the requested bytes, with each block's checksum verified. The extras are the peer's.
        promotion: of a read for which no reader waits. Other reads of the peer precede it until it is promoted."""
        peer = self.table.peer(node)
        calls: list[SingleFetchCall] = []

        async def execute(*, background: bool) -> Arrived:
            call = SingleFetchCall(Fetch([file], cached_only=cached_only, epoch=epoch, background=background))
            calls.append(call)
            await self._execute_if_usable(peer, call, deadline)
            return call.result()

        return await request_by_urgency(
            execute, promotion, deadline, is_arriving=lambda: any(call.bytes_received for call in calls)
        )

    async def fetch_small(
        self,
        node: NodeInfo,
        file: FileRange,
        *,
        epoch: int,
        deadline: Deadline,
        cached_only: bool = False,
        promotion: Promotion | None = None,
    ) -> Arrived:
        """Fetch a file as fetch does. Calls of one kind that wait for the same node share a request."""
        peer = self.table.peer(node)

        def ask(*, background: bool) -> Awaitable[Arrived]:
            batcher = self._batchers.of(peer, cached_only=cached_only, background=background)
            return batcher.ask(Waiting(file, epoch, deadline=deadline))

        return await request_by_urgency(ask, promotion, deadline)

    async def lookup(
        self, node: NodeInfo, path: bytes, name: bytes, *, epoch: int, deadline: Deadline, anew: bool = False
    ) -> Names:
        call = UnaryCall(LookupShared(path, name, epoch, anew), Names)
        await self._execute_if_usable(self.table.peer(node), call, deadline)
        names = call.result()
        if [row.name for row in names.rows] not in ([], [name]):
            raise PeerError(f"node {node.id} at {node.address}", why="it answers a lookup with other names")
        return names

    async def invalidate_listing(
        self, node: NodeInfo, path: bytes, *, relist: bool, below: bool, deadline: Deadline
    ) -> None:
        call = UnaryCall(InvalidateListing(path, relist, below), Done)
        await self._execute(self.table.peer(node), call, deadline)
        call.result()

    async def report_origin_changes(self, node: NodeInfo, request: OriginChanged, deadline: Deadline) -> None:
        call = UnaryCall(request, Done)
        await self._execute(self.table.peer(node), call, deadline)
        call.result()

    async def offer_handover(
        self, node: NodeInfo, files: builtins.list[FileRange], *, epoch: int, deadline: Deadline
    ) -> builtins.list[int]:
        """Offer files to their new owner; return the indices of those that it does not have after all."""
        call = UnaryCall(OfferHandover(files, epoch), HandoverAnswer)
        await self._execute(self.table.peer(node), call, deadline)
        return call.result().refused

    async def replicate(self, node: NodeInfo, request: ReplicaRequest, deadline: Deadline) -> None:
        call = UnaryCall(request, Done)
        await self._execute(self.table.peer(node), call, deadline)
        call.result()

    async def query_failover(
        self, node: NodeInfo, writer: str, *, done: bool, deadline: Deadline
    ) -> builtins.list[FailedOverFile]:
        """Return the files that the node persisted from its replicas of a writer's files."""
        call = UnaryCall(QueryFailover(writer, done), FailoverReport)
        await self._execute(self.table.peer(node), call, deadline)
        return call.result().files

    async def list_pending(
        self, node: NodeInfo, request: ListPending, deadline: Deadline
    ) -> PendingNamesPage:
        call = UnaryCall(request, PendingNamesPage)
        await self._execute_if_usable(self.table.peer(node), call, deadline)
        return call.result()

    async def resolve_version(
        self, node: NodeInfo, request: ResolveVersion, deadline: Deadline
    ) -> VersionResolved:
        call = UnaryCall(request, VersionResolved)
        await self._execute(self.table.peer(node), call, deadline)
        return call.result()

    async def notify(
        self, node: NodeInfo, request: DirtyNamesChanged | RecallLease, deadline: Deadline
    ) -> None:
        """Send a notice to a node. On return the node has handled it."""
        call = UnaryCall(request, Done)
        await self._execute(self.table.peer(node), call, deadline)
        call.result()

    async def try_policy(self, node: NodeInfo, request: TryPolicy, deadline: Deadline) -> TrialAnswer:
        call = UnaryCall(request, TrialAnswer)
        await self._execute(self.table.peer(node), call, deadline)
        return call.result()

    async def ping(self, node: NodeInfo, deadline: Deadline) -> PeerWelcome:
        """Return the welcome of the node that answers."""
        return await self._pool.ping(self.table.peer(node), deadline)

    async def ping_any(self, address: str, deadline: Deadline, *, node: str = "") -> PeerWelcome:
        """Return the welcome of any instance that answers at the address. node: the id that its certificate must
        name."""
        stranger = Peer(node, address, None)
        try:
            return await self._pool.ping(stranger, deadline)
        finally:
            stranger.close_idle()

    async def list(
        self, node: NodeInfo, path: bytes, *, epoch: int, deadline: Deadline, anew: bool = False
    ) -> AsyncIterator[Names]:
        """Yield pages as they arrive. An iteration that is closed early (aclose) cancels the request."""
        pages = PageQueue()
        call = StreamingCall(ListShared(path, epoch, anew), pages.deliver)
        task = self._tasks.start(self._execute_if_usable(self.table.peer(node), call, deadline))
        task.add_done_callback(lambda done: pages.end(_failure(done)))
        try:
            while (page := await pages.take()) is not None:
                if isinstance(page, HeadraceError):
                    raise page
                yield page
                if page.last:
                    break
            with contextlib.suppress(HeadraceError):  # the listing is complete; a later failure is irrelevant
                await task
        finally:
            pages.close()
            task.cancel()

    def on_view(self, view: ClusterView) -> None:
        """Forget nodes that left the cluster long ago."""
        self._batchers.forget(self.table.forget_absent(view.nodes, now_s=time.monotonic()))

    def usable(self, node: NodeInfo) -> bool:
        """Return whether the node is worth a request. A node that failed is probed in the background, to detect its
        return."""
        peer = self.table.peer(node)
        if peer.breaker.closed:
            return True
        if not self.table.is_closed and peer.breaker.take_probe(time.monotonic()):
            self._tasks.start(_probe(self._pool, peer))
        return False

    def is_slow(self, node: NodeInfo) -> bool:
        """Return whether the node's p99 of the last minute is far above that of the others."""
        return self.table.latencies.is_slow(node.id, now_s=time.monotonic())

    def usual_s(self, size_bytes: int) -> float | None:
        """Return the median of the peers' p99 for an answer of that size, or None when it is not known. Hedging uses
        it."""
        return self.table.latencies.usual_s(size_class(size_bytes), now_s=time.monotonic())

    def close(self) -> None:
        """Close the client, on the event loop. Requests in flight fail with PeerError or are cancelled; their
        threads end soon after."""
        self._tasks.cancel()
        self._pool.close()
        self.table.close()

    # ------------------------------------------------------------ internal

    async def _execute_if_usable(self, peer: Peer, call: Call, deadline: Deadline) -> None:
        """Execute a call whose caller could use another node. Raise PeerError when the breaker is open, as it may
        have become while the call was queued."""
        if not peer.breaker.closed:
            raise PeerError(
                f"node {peer.who}", why=f"no requests for now after failures; the last one: {peer.last_error}"
            )
        await self._execute(peer, call, deadline)

    async def _execute(self, peer: Peer, call: Call, deadline: Deadline) -> None:
        started_s = time.monotonic()
        self.table.sweep_later()
        try:
            await self._pool.execute(peer, call, deadline)
        finally:
            if isinstance(call, FetchCall) and call.corrupt_file is not None and not self.table.is_closed:
                self._tasks.start(self._report_corruption(peer, call.corrupt_file))
        if isinstance(call, FetchCall):
            now_s = time.monotonic()
            peer.bytes_received += call.bytes_received
            peer.files_received += call.files_received
            if call.bytes_received and not call.is_background:  # that waits for the peer's other reads
                self.table.latencies.add(peer.id, call.bytes_received, seconds=now_s - started_s, now_s=now_s)

    async def _send_batch(self, peer: Peer, request: Fetch, batch: builtins.list[Waiting]) -> None:
        """Send a batch. request: what all its files have in common."""
        loop = asyncio.get_running_loop()

        def resolve(files: builtins.list[tuple[int, Fetched]]) -> None:
            for index, outcome in files:
                batch[index].resolve(outcome)

        request = structs.replace(
            request,
            files=[waiting.file for waiting in batch],
            epoch=max(waiting.epoch for waiting in batch),
        )
        call = FetchCall(request, lambda files: _call_on(loop, resolve, files))
        deadline = Deadline(max(waiting.deadline.at_s for waiting in batch))
        try:
            await self._execute_if_usable(peer, call, deadline)
        except HeadraceError as error:
            for waiting in batch:
                waiting.resolve(error.copied())

    async def _report_corruption(self, peer: Peer, file: FileRange) -> None:
        path = os.fsdecode(file.path)
        log.warning("a peer sent bytes that don't match their checksum node=%s path=%s", peer.who, path)
        call = UnaryCall(ReportCorruption(file), Done)
        try:
            await self._pool.execute(peer, call, Deadline.after(CORRUPTION_LIMIT_S))
            call.result()
        except HeadraceError as error:
            log.info("a peer did not check its corrupt file node=%s path=%s error=%s", peer.who, path, error)


async def _probe(pool: ConnectionPool, peer: Peer) -> None:
    with contextlib.suppress(HeadraceError):
        await pool.ping(peer, Deadline.after(PING_S))


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[Argument], None], argument: Argument) -> None:
    loop.call_soon_threadsafe(call, argument)


def _failure(task: asyncio.Task[Any]) -> HeadraceError | None:
    if task.cancelled():
        return PeerError("listing of a peer", why="this node stops")
    error = task.exception()
    return error if error is None or isinstance(error, HeadraceError) else HeadraceError(repr(error))
