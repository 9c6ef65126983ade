"""Hand cached files over to their new owners after a change of the ring, without reading the origin again.

Each node walks its cached files and offers a file to the owners that may lack it. A file that it no longer owns is
offered to all owners. A file that it still owns is offered to new owners only, and only by the first owner that had it
before. Incomplete files come last, with the parts that are present. An owner that has the file answers at once, so a
needless offer costs little.

When the owners have a file, this node's copy is borrowed, and evicted first. It is owned again if the ring assigns it
to this node. One walk runs at a time; another change of the ring begins a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.ring.ring import Ring, key_of
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo
from headrace.store.reader import CacheReader
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.wire.messages import JobState
from headrace.wire.peer_messages import FileRange

if TYPE_CHECKING:
    from headrace.peer.client import PeerClient

log = logging.getLogger(__name__)

BATCH_FILES = 64
BATCH_BYTES = 16 << 20
TAKE_LIMIT_S = 300.0
REFUSED_SHOWN_MAX = 1000
LOOKS_AT_ONCE = 256
"""Files that a walk examines before other tasks of the loop run."""

Offer = tuple[FileId, FileRange]


class Rebalance:
    """Run the walks of this node. bytes_s: most bytes that are handed over in a second. view: returns the current
    view."""

    def __init__(
        self,
        me: str,
        store: Store,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        replicas: int,
        bytes_s: int,
    ) -> None:
        self._me = me
        self._store = store
        self._peers = peers
        self._view = view
        self._replicas = replicas
        self._bytes_s = bytes_s
        self._ring: Ring | None = None
        self._tasks = OwnedTasks()
        self.files_examined = self.files_handed_over = self.bytes_handed_over = self.files_refused = 0
        self._refused: list[tuple[str, str]] = []

    @property
    def running(self) -> bool:
        return bool(self._tasks)

    def on_view(self, view: ClusterView) -> None:
        """Begin a new walk when the ring has changed."""
        if view.ring is self._ring:
            return
        self._ring = view.ring
        self._tasks.cancel()
        self._tasks.start(self._hand_over(view))

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
            failed=self._refused if done else [],
            listing=False,
        )

    async def _hand_over(self, view: ClusterView) -> None:
        """Walk once. If an owner refuses a file, or is unavailable, the file stays here: readers get it here or at the
        origin."""
        waiting: dict[str, list[Offer]] = {}
        self.files_examined = self.files_handed_over = self.bytes_handed_over = self.files_refused = 0
        self._refused.clear()
        for cached in self._whole_first():
            self.files_examined += 1
            if self.files_examined % LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)
            for node, wanted in self._offers(view, cached):
                batch = waiting.setdefault(node.id, [])
                batch.append((cached.id, wanted))
                if len(batch) >= BATCH_FILES or sum(w.end - w.start for _, w in batch) >= BATCH_BYTES:
                    await self._offer(view, node, waiting.pop(node.id))
        for id, batch in waiting.items():
            await self._offer(view, view.nodes[id], batch)
        log.info("the handover ended epoch=%d files=%d", view.epoch, self.files_handed_over)

    def _whole_first(self) -> Iterator[CachedFile]:
        """Yield complete files first. Incomplete ones come last, with the blocks that have arrived by then."""
        being_filled: list[FileId] = []
        for cached in self._store.index.cached_files():
            if cached.complete:
                yield cached
            else:
                being_filled.append(cached.id)
        yield from filter(None, map(self._store.index.cached, being_filled))

    def _offers(self, view: ClusterView, cached: CachedFile) -> Iterator[tuple[NodeInfo, FileRange]]:
        if cached.unverified or cached.superseded:
            return
        path = self._store.index.path_of(cached.id)
        if path is None or not cached.size_bytes:
            return
        if cached.borrowed:
            if not self._owns_some(view, path, cached.size_bytes):
                return
            self._store.set_borrowed(cached.id, borrowed=False)
        for start, end in self._parts(cached):
            wanted = FileRange(path, cached.size_bytes, cached.mtime_ns, cached.token, start, end)
            for node in self._lacking(view, path, start // SEGMENT_BYTES):
                yield node, wanted

    def _parts(self, cached: CachedFile) -> Iterator[tuple[int, int]]:
        """Yield the present ranges: the segments of a complete file, otherwise the runs of blocks in each segment."""
        for start in range(0, cached.size_bytes, SEGMENT_BYTES):
            end = min(cached.size_bytes, start + SEGMENT_BYTES)
            if cached.complete:
                yield start, end
            else:
                yield from self._present(cached, start, end)

    def _present(self, cached: CachedFile, start: int, end: int) -> list[tuple[int, int]]:
        try:
            reader = CacheReader.open(self._store.volumes[cached.volume].folder, cached)
        except HeadraceError as error:  # evicted, or complete by now
            log.info("a file that is being filled is not handed over error=%s", error)
            return []
        try:
            return reader.present_runs(start, end)
        finally:
            reader.close()

    def _lacking(self, view: ClusterView, path: bytes, segment: int) -> list[NodeInfo]:
        """Return the owners to which this node should offer a segment that it has."""
        owners = view.owners(path, segment, replicas=self._replicas)
        ids = [owner.id for owner in owners]
        if self._me not in ids:
            return list(owners)
        former = view.former[0].owners(key_of(path, segment), self._replicas) if view.former else ()
        former_ids = {member.id for member in former}
        if next((id for id in ids if id in former_ids), self._me) != self._me:
            return []
        return [owner for owner in owners if owner.id not in former_ids and owner.id != self._me]

    async def _offer(self, view: ClusterView, node: NodeInfo, batch: list[Offer]) -> None:
        files = [wanted for _, wanted in batch]
        size_bytes = sum(wanted.end - wanted.start for wanted in files)
        pause_end_s = monotonic_s() + size_bytes / self._bytes_s
        try:
            refused = set(
                await self._peers.offer_handover(
                    node, files, epoch=view.epoch, deadline=Deadline.after(TAKE_LIMIT_S)
                )
            )
            for number, (id, wanted) in enumerate(batch):
                if number in refused:
                    self._refuse(wanted, f"node {node.id} did not take it")
                    continue
                self.files_handed_over += 1
                self.bytes_handed_over += wanted.end - wanted.start
                if not self._owns_some(view, wanted.path, wanted.size_bytes):
                    self._store.set_borrowed(id, borrowed=True)
            await asyncio.sleep(pause_end_s - monotonic_s())
        except HeadraceError as error:
            log.warning("the handover failed node=%s files=%d error=%s", node.id, len(files), error)
            for wanted in files:
                self._refuse(wanted, str(error))

    def _refuse(self, wanted: FileRange, reason: str) -> None:
        self.files_refused += 1
        if len(self._refused) < REFUSED_SHOWN_MAX:
            self._refused.append((os.fsdecode(wanted.path), reason))

    def _owns_some(self, view: ClusterView, path: bytes, size_bytes: int) -> bool:
        """Return whether this node owns one of the file's segments."""
        return any(
            owner.id == self._me
            for start in range(0, size_bytes, SEGMENT_BYTES)
            for owner in view.owners(path, start // SEGMENT_BYTES, replicas=self._replicas)
        )
