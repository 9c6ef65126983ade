"""Read bytes from single peers: which peers are worth a request, how long to wait for one, and how each answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError, NotOwnerError, VersionChangedError
from headrace.base.model import Arrived
from headrace.base.promotion import Promotion
from headrace.dataplane.concurrency import START, Gate, Window
from headrace.dataplane.intent import ReadIntent
from headrace.dataplane.route import Hop, Route, route
from headrace.peer.client import PeerClient
from headrace.ring.ownership import Ownership
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import FileRange

log = logging.getLogger(__name__)

HEDGE_FACTOR = 2.0
"""A slow peer is late after this multiple of the usual duration."""
HEDGE_S = 0.05
"""The same where no usual duration is known; a guess."""
HEDGED_SHARE, HEDGED_BYTES_MIN = 0.02, 32 << 20
"""The share of the bytes from peers that may be requested twice as soon as a slow peer is late, and the least amount.
Beyond that, large ranges wait longer."""
HEDGE_LATE_S = 1.5
MISSES_MAX = 64
"""A former owner that misses this many times in a row is not asked again until the members change."""
EARLY_MISSES_MAX = 3
"""The same for a node that is asked before the owner: each miss costs a request."""
EARLY_RETRY_S = 2.0
"""The pause before such a node is asked once more: it may have got copies meanwhile."""
VIEW_WAIT_S = 1.0
VIEW_LOOK_S = 0.02
MOVING_S = 600.0
"""Former owners are asked for bytes during this time after a change of the members."""
FAILING_S = 10.0
"""Seconds without a failed read after which an owner that answers counts as one that fails no more."""
SPARE_MAX = 64
HANDING_OVER_S = 60.0
"""Former owners are asked before the new owner during this time."""


class PeerReader:
    """Reads from peers by the current view. gate: of reads from peers. view: returns the current view. timeout_s: of
    one request. ownership: knows the owners. small_bytes_max: ranges up to this size share requests."""

    def __init__(
        self,
        me: str,
        peers: PeerClient,
        gate: Gate,
        *,
        view: Callable[[], ClusterView],
        ownership: Ownership,
        timeout_s: float,
        small_bytes_max: int,
    ) -> None:
        self._me = me
        self._peers = peers
        self._gate = gate
        self.view = view
        self._ownership = ownership
        self.timeout_s = timeout_s
        self._small_bytes_max = small_bytes_max
        self.bytes_read = self.reads = self.reads_failed = self.reads_hedged = 0
        self._bytes_hedged = 0
        self._ring = view().ring
        self._changed_s = float("-inf")
        self._misses: dict[str, int] = {}
        self._missed_s: dict[str, float] = {}
        self._failed_s: dict[str, float] = {}
        """The time of the last failed read by owner, without owners that have answered for FAILING_S since."""
        # what the links bear without queueing; it limits only the reads that nobody waits for
        self._unqueued = Window(maximum=SPARE_MAX, start=START, least=1)

    @property
    def has_spare(self) -> bool:
        """Return whether fewer than half of the reads are in flight that peers answer without queueing."""
        return 2 * self._gate.in_flight < int(self._unqueued.limit)

    @property
    def in_flight_max(self) -> float:
        return self._gate.window.limit

    def statistics(self) -> dict[str, int]:
        return {
            "reads": self.reads,
            "bytes_read": self.bytes_read,
            "reads_failed": self.reads_failed,
            "reads_hedged": self.reads_hedged,
        }

    # ------------------------------------------------------------ whom to ask

    def route(self, path: bytes, start: int, *, for_peer: bool) -> Route:
        """Return the peers for a range, by the current view."""
        view = self.view()
        if view.ring is not self._ring:
            self._ring, self._changed_s = view.ring, monotonic_s()
            self._misses.clear()
        since_s = monotonic_s() - self._changed_s
        return route(
            *(view, self._me, path, start),
            ownership=self._ownership,
            for_peer=for_peer,
            moving=since_s < MOVING_S,
            handing_over=since_s < HANDING_OVER_S,
        )

    def hops(self, path: bytes, start: int, intent: ReadIntent) -> list[Hop]:
        """Return the peers to ask for a range, in order: first the one that offers it."""
        hops = self.route(path, start, for_peer=intent.for_peer).hops
        giver = self.view().nodes.get(intent.giver)
        if giver is not None and all(hop.node.id != giver.id for hop in hops):
            hops = (Hop(giver, cached_only=True), *hops)
        return [hop for hop in hops if self.is_worth_asking(hop)]

    def is_worth_asking(self, hop: Hop) -> bool:
        """Return False for a peer that is down, and for a former owner or a copy that repeatedly had none of the
        requested bytes. A copy that is slow is not worth asking, either: the owner has the bytes, too."""
        id, misses = hop.node.id, self._misses.get(hop.node.id, 0)
        if hop.early and (misses < EARLY_MISSES_MAX or self._may_retry(id)):
            return self._peers.usable(hop.node) and not self._peers.is_slow(hop.node)
        if hop.cached_only and (hop.early or misses >= MISSES_MAX):
            return False
        return self._peers.usable(hop.node)

    def _may_retry(self, id: str) -> bool:
        """Return whether a node that had no bytes is asked again now: once in a while."""
        now_s = monotonic_s()
        if now_s - self._missed_s.get(id, float("-inf")) < EARLY_RETRY_S:
            return False
        self._missed_s[id] = now_s
        return True

    async def newer_view(self, before: ClusterView) -> bool:
        """Wait shortly for a newer view, because a peer has another one than this node. Return whether it came."""
        end_s = monotonic_s() + VIEW_WAIT_S
        while self.view() is before and monotonic_s() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(VIEW_LOOK_S)
        return self.view() is not before

    # ------------------------------------------------------------ asking

    @asynccontextmanager
    async def enter(self, size_bytes: int, intent: ReadIntent) -> AsyncIterator[None]:
        """Hold a place among the reads in flight from peers."""
        async with self._gate.enter(size_bytes, background=intent.background, promotion=intent.promotion):
            yield

    async def fetch(
        self, hop: Hop, wanted: FileRange, promotion: Promotion | None = None
    ) -> Arrived | HeadraceError:
        """Return the bytes of a range, or the error for which the peer did not send them. promotion: of a read that
        other reads of the peer precede until it is promoted."""
        deadline, epoch = Deadline.after(self.timeout_s), self.view().epoch
        size_bytes, began_s = wanted.end - wanted.start, monotonic_s()
        try:
            is_small = size_bytes <= self._small_bytes_max and (hop.early or not hop.cached_only)
            fetch = self._peers.fetch_small if is_small else self._peers.fetch
            arrived = await fetch(
                hop.node,
                wanted,
                cached_only=hop.cached_only,
                epoch=epoch,
                deadline=deadline,
                promotion=promotion,
            )
        except HeadraceError as error:
            if not hop.cached_only:
                self.reads_failed += 1
                self._log_failure(hop.node.id, error)
            else:
                self._misses[hop.node.id] = self._misses.get(hop.node.id, 0) + 1
                self._missed_s[hop.node.id] = monotonic_s()
            return error
        if hop.cached_only:
            self._misses[hop.node.id] = 0
        elif hop.node.id in self._failed_s:
            self._note_answer(hop.node.id)
        self._count(size_bytes)
        self._unqueued.record(bytes_read=size_bytes, seconds=monotonic_s() - began_s)
        return arrived

    def _log_failure(self, id: str, error: HeadraceError) -> None:
        """Log why an owner did not return bytes: as a warning when it begins to fail, as hundreds of reads may fail in
        a second. For a moment after each change of the members one of two nodes has the older view, which is no
        failure."""
        is_failure = not isinstance(error, VersionChangedError | NotOwnerError)
        level = logging.WARNING if is_failure and id not in self._failed_s else logging.INFO
        if is_failure:
            self._failed_s[id] = monotonic_s()
        log.log(level, "a peer did not return bytes that it owns node=%s error=%s", id, error)

    def _note_answer(self, id: str) -> None:
        """Note bytes from an owner that failed. It fails no more if no read has failed for a while."""
        if monotonic_s() - self._failed_s[id] >= FAILING_S:
            del self._failed_s[id]
            log.info("a peer returns the bytes that it owns again node=%s", id)

    async def fetch_pending(self, node: NodeInfo, wanted: FileRange) -> Arrived:
        """Fetch a range of a file that the node wrote, or has a replica of. Raise HeadraceError."""
        deadline, epoch = Deadline.after(self.timeout_s), self.view().epoch
        arrived = await self._peers.fetch(node, wanted, cached_only=True, epoch=epoch, deadline=deadline)
        self._count(wanted.end - wanted.start)
        return arrived

    def _count(self, size_bytes: int) -> None:
        self.reads += 1
        self.bytes_read += size_bytes

    # ------------------------------------------------------------ slow peers

    def is_slow(self, hop: Hop) -> bool:
        return self._peers.is_slow(hop.node)

    def patience_s(self, size_bytes: int) -> float:
        """Return the seconds to wait for a slow peer before another one is asked too."""
        usual_s = self._peers.usual_s(size_bytes)
        return HEDGE_FACTOR * usual_s if usual_s else HEDGE_S

    def may_hedge_now(self, size_bytes: int) -> bool:
        """Return whether bytes of a late peer may be requested elsewhere now, and count them if so."""
        allowed = HEDGED_BYTES_MIN + HEDGED_SHARE * self.bytes_read
        if size_bytes > self._small_bytes_max and self._bytes_hedged + size_bytes > allowed:
            return False
        self._bytes_hedged += size_bytes
        return True

    def count_hedge(self) -> None:
        self.reads_hedged += 1
