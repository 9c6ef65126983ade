"""After a change of the ring: what lies here and belongs elsewhere is handed over, without asking the origin again.

Each node goes through what it has cached, and offers a file to those that own it now and perhaps don't have it: what
it owned and owns no more to all of its owners; what it still owns, where it is the first that did before, to those
that came to own it. Of a file that is being filled it offers the parts that are there, last of all. An owner that has
the file already says so at once, so an offer too many costs little. When the owners have it, this node's copy is a
borrowed one: the first to be dropped. A borrowed one that this node owns again, since the one that took it over went,
is an owned one from then on.
Only one walk goes on; another change of the ring begins a new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
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
"""Files looked at before others on the loop have their turn."""

Offer = tuple[FileId, FileRange]


class Rebalance:
    """bytes_s: what is handed over at most. view: the current one."""

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
        self._work: asyncio.Task[None] | None = None
        self.files_examined = self.files_handed_over = self.bytes_handed_over = self.files_refused = 0
        self._refused: list[tuple[str, str]] = []

    @property
    def running(self) -> bool:
        return self._work is not None and not self._work.done()

    def on_view(self, view: ClusterView) -> None:
        """Begins anew where the ring is another one."""
        if view.ring is self._ring:
            return
        self._ring = view.ring
        if self._work is not None:
            self._work.cancel()
        self._work = asyncio.ensure_future(self._hand_over(view))

    async def wait(self) -> None:
        """Until what is under way is over."""
        if self._work is not None:
            await asyncio.wait([self._work])

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    def statistics(self) -> dict[str, int]:
        return {
            "running": int(self.running),
            "files_examined": self.files_examined,
            "files_handed_over": self.files_handed_over,
            "bytes_handed_over": self.bytes_handed_over,
            "files_refused": self.files_refused,
        }

    def state(self, *, done: bool) -> JobState:
        """Of the walk that is under way, as a job's."""
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
        """One walk. What a node refuses, or is away for, is left: its readers ask here, or the origin."""
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
        log.info("hand-over ended epoch=%d files=%d", view.epoch, self.files_handed_over)

    def _whole_first(self) -> Iterator[CachedFile]:
        """Files that are being filled come last: what arrives meanwhile is handed over, too."""
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
        """What is here of the file: segments of a whole one, else what is there of each, run by run."""
        for start in range(0, cached.size_bytes, SEGMENT_BYTES):
            end = min(cached.size_bytes, start + SEGMENT_BYTES)
            if cached.complete:
                yield start, end
            else:
                yield from self._present(cached, start, end)

    def _present(self, cached: CachedFile, start: int, end: int) -> list[tuple[int, int]]:
        try:
            reader = CacheReader.open(self._store.volumes[cached.volume].folder, cached)
        except HeadraceError as error:  # evicted, or whole by now
            log.info("file that is being filled is not handed over error=%s", error)
            return []
        try:
            return reader.present_runs(start, end)
        finally:
            reader.close()

    def _lacking(self, view: ClusterView, path: bytes, segment: int) -> list[NodeInfo]:
        """The owners to which this node should offer a segment that it has."""
        owners = view.owners(path, segment, replicas=self._replicas)
        ids = [owner.id for owner in owners]
        if self._me not in ids:
            return list(owners)
        before = view.former[0].owners(key_of(path, segment), self._replicas) if view.former else ()
        had = {member.id for member in before}
        if next((id for id in ids if id in had), self._me) != self._me:
            return []
        return [owner for owner in owners if owner.id not in had and owner.id != self._me]

    async def _offer(self, view: ClusterView, node: NodeInfo, batch: list[Offer]) -> None:
        files = [wanted for _, wanted in batch]
        size_bytes = sum(wanted.end - wanted.start for wanted in files)
        pause = asyncio.ensure_future(asyncio.sleep(size_bytes / self._bytes_s))
        try:
            refused = set(
                await self._peers.take(node, files, epoch=view.epoch, deadline=Deadline.after(TAKE_LIMIT_S))
            )
            for number, (id, wanted) in enumerate(batch):
                if number in refused:
                    self._refuse(wanted, f"node {node.id} did not take it")
                    continue
                self.files_handed_over += 1
                self.bytes_handed_over += wanted.end - wanted.start
                if not self._owns_some(view, wanted.path, wanted.size_bytes):
                    self._store.set_borrowed(id, borrowed=True)
            await pause
        except HeadraceError as error:
            log.warning("hand-over failed node=%s files=%d error=%s", node.id, len(files), error)
            for wanted in files:
                self._refuse(wanted, str(error))
        finally:
            pause.cancel()

    def _refuse(self, wanted: FileRange, reason: str) -> None:
        self.files_refused += 1
        if len(self._refused) < REFUSED_SHOWN_MAX:
            self._refused.append((os.fsdecode(wanted.path), reason))

    def _owns_some(self, view: ClusterView, path: bytes, size_bytes: int) -> bool:
        """A file of several segments stays an owned one as long as one of them is."""
        return any(
            owner.id == self._me
            for start in range(0, size_bytes, SEGMENT_BYTES)
            for owner in view.owners(path, start // SEGMENT_BYTES, replicas=self._replicas)
        )
