"""Hand cached files over to their new owners after a change of the ring or of the policy, without reading the origin
again.

Each node walks its cached files and offers a file to the owners that may lack it. A file that it no longer owns is
offered to all owners. A file that it still owns is offered to new owners only, and only by the first owner that had it
before. Incomplete files come last, with the parts that are present. An owner that has the file answers at once, so a
needless offer costs little.

When the owners have a file, this node's copy is borrowed, and evicted first. It is owned again if the ring assigns it
to this node. A copy that the policy no longer wants is deleted then. One walk runs at a time; another change begins a
new one.

Nodes may learn of changes that follow each other in another order, or of several at once. The first owner from before
is another node for each of them then, and perhaps none of them offers a file. So such a walk is followed by one that
offers every file to all its other owners. Files that an owner refused are offered again some times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headrace.base.clock import monotonic_s
from headrace.base.model import FileId
from headrace.base.printable import path_text
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.handover import HandoverOffers, parts_to_offer
from headrace.ring.ownership import Ownership
from headrace.ring.ring import Ring, key_of
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.wire.messages import JobState
from headrace.wire.peer_messages import FileRange

if TYPE_CHECKING:
    from headrace.peer.client import PeerClient

log = logging.getLogger(__name__)

REFUSED_MAX = 1 << 16
"""Refused files that are remembered, to be offered again."""
REFUSED_SHOWN_MAX = 1000
LOOKS_AT_ONCE = 256
"""Files that a walk examines before other tasks of the loop run."""
MIXED_S = 30.0
"""Seconds between two changes that all nodes surely learn of one after the other."""
RETRY_S = 2.0
"""Pause before files are offered again. It doubles each time."""
ATTEMPTS_MAX = 4


class Rebalance:
    """Run the walks of this node. bytes_s: most bytes that are handed over in a second. view: returns the current
    view. ownership: knows the owners by the policy in force. is_wanted: returns whether any path has copies."""

    def __init__(
        self,
        me: str,
        store: Store,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        ownership: Ownership,
        bytes_s: int,
        is_wanted: Callable[[], bool],
    ) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._ownership = ownership
        self._is_wanted = is_wanted
        self._offers = HandoverOffers(
            peers, bytes_s=bytes_s, on_taken=self._note_taken, on_refused=self._note_refused
        )
        self._ring: Ring | None = None
        self._settled: Ring | None = None
        self._copies_before: Callable[[bytes], int] | None = None
        self._changed_s = float("-inf")
        self._is_mixed = False
        self._offers_all = False
        self._tasks = OwnedTasks()
        self.files_examined = self.files_handed_over = self.bytes_handed_over = self.files_refused = 0
        self.copies_dropped = self.copy_bytes_dropped = 0
        self._refused: dict[FileId, tuple[str, str]] = {}

    @property
    def running(self) -> bool:
        return bool(self._tasks)

    @property
    def broke_off(self) -> bool:
        """Return whether the last walk failed, for a reason that is in the log."""
        return not self.running and self._settled is not self._ring

    def on_view(self, view: ClusterView) -> None:
        """Begin a new walk when the ring has changed."""
        if view.ring is self._ring:
            return
        self._ring = view.ring
        self._begin(view)

    def on_policy(self, copies_before: Callable[[bytes], int]) -> None:
        """Begin a new walk because the policy wants other numbers of copies. copies_before: those that it wanted."""
        if self._ring is None:
            return  # the first view begins a walk that offers every file
        if self._copies_before is None:
            self._copies_before = copies_before
        self._begin(self._view())

    def check_all(self) -> None:
        """Begin a walk that offers every file to all its other owners, because some may lack theirs."""
        if self._ring is not None:
            self._begin(self._view(), offers_all=True)

    def _begin(self, view: ClusterView, *, offers_all: bool = False) -> None:
        now_s = monotonic_s()
        self._is_mixed |= self.running or now_s < self._changed_s + MIXED_S
        self._changed_s = now_s
        self._tasks.cancel()
        self._offers.clear()
        self._tasks.start(self._hand_over(view, offers_all=offers_all))

    async def wait(self) -> None:
        """Wait until the current walk has ended."""
        await self._tasks.wait()

    async def stop(self) -> None:
        await self._tasks.close()

    def statistics(self) -> dict[str, int]:
        return {
            "running": int(self.running),
            "files_examined": self.files_examined,
            "files_handed_over": self.files_handed_over,
            "bytes_handed_over": self.bytes_handed_over,
            "files_refused": self.files_refused,
        }

    def state(self, *, done: bool) -> JobState:
        """Return the state of the current walk, as that of a job."""
        files = self._store.index.statistics()["files"]
        return JobState(
            done=done,
            files_done=self.files_handed_over,
            files_total=max(files, self.files_handed_over),
            bytes_done=self.bytes_handed_over,
            bytes_total=max(self._store.used_bytes, self.bytes_handed_over),
            failed_files=self.files_refused,
            failed=list(self._refused.values())[:REFUSED_SHOWN_MAX] if done else [],
            listing=False,
        )

    async def _hand_over(self, view: ClusterView, *, offers_all: bool) -> None:
        """Walk until the owners have what this node offers. If an owner refuses a file each time, or is unavailable,
        the file stays here: readers get it here or at the origin."""
        self.files_examined = self.files_handed_over = self.bytes_handed_over = 0
        self._offers_all = offers_all
        await self._walk(view, self._whole_first())
        for attempt in range(1, ATTEMPTS_MAX):
            is_checking = self._is_mixed and self._is_wanted()
            if not is_checking and not self._refused:
                break
            await asyncio.sleep(RETRY_S * 2 ** (attempt - 1))
            self._offers_all = True
            refused = list(self._refused)
            await self._walk(view, self._whole_first() if is_checking else self._cached(refused))
            self._is_mixed = False
        self._settled, self._copies_before, self._is_mixed = view.ring, None, False
        log.info("the handover ended epoch=%d files=%d", view.epoch, self.files_handed_over)

    async def _walk(self, view: ClusterView, files: Iterable[CachedFile]) -> None:
        """Offer these files to the owners that may lack them."""
        self.files_refused = 0
        self._refused.clear()
        for cached in files:
            self.files_examined += 1
            if self.files_examined % LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)
            for node, part in self._offers_of(view, cached):
                await self._offers.add(view, node, cached.id, part)
        await self._offers.flush(view)

    def _whole_first(self) -> Iterator[CachedFile]:
        """Yield complete files first. Incomplete ones come last, with the blocks that have arrived by then."""
        being_filled: list[FileId] = []
        for cached in self._store.index.cached_files():
            if cached.complete:
                yield cached
            else:
                being_filled.append(cached.id)
        yield from self._cached(being_filled)

    def _cached(self, ids: list[FileId]) -> Iterator[CachedFile]:
        """Yield those of these files that are still cached."""
        yield from filter(None, map(self._store.index.cached, ids))

    def _offers_of(self, view: ClusterView, cached: CachedFile) -> Iterator[tuple[NodeInfo, FileRange]]:
        if cached.unverified or cached.superseded:
            return
        path = self._store.index.path_of(cached.id)
        if path is None or not cached.size_bytes:
            return
        if cached.borrowed:
            if not self._owns_some(view, path, cached.size_bytes):
                return
            self._store.set_borrowed(cached.id, borrowed=False)
        for part in parts_to_offer(self._store, cached, path):
            for node in self._lacking(view, path, part.start // SEGMENT_BYTES):
                yield node, part

    def _lacking(self, view: ClusterView, path: bytes, segment: int) -> list[NodeInfo]:
        """Return the owners to which this node should offer a segment that it has."""
        owners = self._ownership.owners(view, path, segment)
        ids = [owner.id for owner in owners]
        if self._me not in ids:
            return list(owners)
        if self._offers_all:
            return [owner for owner in owners if owner.id != self._me]
        former_ids = self._former_ids(view, path, segment)
        if next((id for id in ids if id in former_ids), self._me) != self._me:
            return []
        return [owner for owner in owners if owner.id not in former_ids and owner.id != self._me]

    def _former_ids(self, view: ClusterView, path: bytes, segment: int) -> set[str]:
        """Return the owners before the changes that this walk follows."""
        ring = self._settled or (view.former[0] if view.former else None)
        if ring is None:
            return set()
        copies = (self._copies_before or self._ownership.copies)(path)
        return {member.id for member in ring.owners(key_of(path, segment), copies)}

    def _note_taken(self, view: ClusterView, id: FileId, part: FileRange) -> None:
        self.files_handed_over += 1
        self.bytes_handed_over += part.end - part.start
        if self._owns_some(view, part.path, part.size_bytes):
            return
        if self._is_surplus(view, id, part):
            freed_bytes = self._store.free(id)  # 0 if another owner took it before
            self.copies_dropped += freed_bytes > 0
            self.copy_bytes_dropped += freed_bytes
        else:
            self._store.set_borrowed(id, borrowed=True)

    def _is_surplus(self, view: ClusterView, id: FileId, part: FileRange) -> bool:
        """Return whether this node has a file only because the policy wanted more copies. A file of several segments
        is kept: its owners have a part of it each."""
        if self._copies_before is None or part.size_bytes > SEGMENT_BYTES:
            return False
        if id in self._store.space.pinned or id in self._store.sealed:
            return False
        members = view.ring.owners(key_of(part.path, 0), self._copies_before(part.path))
        return part.end - part.start == part.size_bytes and any(member.id == self._me for member in members)

    def _note_refused(self, id: FileId, part: FileRange, reason: str) -> None:
        self.files_refused += 1
        if len(self._refused) < REFUSED_MAX:
            self._refused[id] = path_text(part.path), reason

    def _owns_some(self, view: ClusterView, path: bytes, size_bytes: int) -> bool:
        """Return whether this node owns one of the file's segments."""
        return any(
            owner.id == self._me
            for start in range(0, size_bytes, SEGMENT_BYTES)
            for owner in self._ownership.owners(view, path, start // SEGMENT_BYTES)
        )
