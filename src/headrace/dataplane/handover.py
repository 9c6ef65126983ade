"""Offer cached files to other nodes that own them, in batches and at a limited rate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
from headrace.ring.view import SEGMENT_BYTES, ClusterView, NodeInfo
from headrace.store.reader import CacheReader
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.wire.peer_messages import FileRange

if TYPE_CHECKING:
    from headrace.peer.client import PeerClient

log = logging.getLogger(__name__)

BATCH_FILES = 64
BATCH_BYTES = 16 << 20
TAKE_LIMIT_S = 300.0


class HandoverOffers:
    """Collects offers by node and sends them. bytes_s: most bytes that are offered in a second. on_taken: called for
    each file that its receiver has now. on_refused: called with the file and the reason why it has not."""

    def __init__(
        self,
        peers: PeerClient,
        *,
        bytes_s: int,
        on_taken: Callable[[ClusterView, FileId, FileRange], None],
        on_refused: Callable[[FileId, FileRange, str], None],
    ) -> None:
        self._peers = peers
        self._bytes_s = bytes_s
        self._on_taken = on_taken
        self._on_refused = on_refused
        self._waiting: dict[str, list[tuple[FileId, FileRange]]] = {}

    async def add(self, view: ClusterView, node: NodeInfo, id: FileId, offered: FileRange) -> None:
        """Offer a part of a file, as soon as there are enough for one request."""
        batch = self._waiting.setdefault(node.id, [])
        batch.append((id, offered))
        if len(batch) >= BATCH_FILES or sum(part.end - part.start for _, part in batch) >= BATCH_BYTES:
            await self._send(view, node, self._waiting.pop(node.id))

    async def flush(self, view: ClusterView) -> None:
        """Send all offers that wait. Those to nodes that left are forgotten."""
        waiting, self._waiting = self._waiting, {}
        for id, batch in waiting.items():
            if id in view.nodes:
                await self._send(view, view.nodes[id], batch)

    def clear(self) -> None:
        self._waiting.clear()

    async def _send(self, view: ClusterView, node: NodeInfo, batch: list[tuple[FileId, FileRange]]) -> None:
        files = [part for _, part in batch]
        size_bytes = sum(part.end - part.start for part in files)
        pause_end_s = monotonic_s() + size_bytes / self._bytes_s
        try:
            refused = set(
                await self._peers.offer_handover(
                    node, files, epoch=view.epoch, deadline=Deadline.after(TAKE_LIMIT_S)
                )
            )
        except HeadraceError as error:
            log.warning(
                "the handover failed, the node fetches these files when they are read node=%s files=%d error=%s",
                *(node.id, len(files), error),
            )
            for id, part in batch:
                self._on_refused(id, part, str(error))
            return
        for number, (id, part) in enumerate(batch):
            if number in refused:
                self._on_refused(id, part, f"node {node.id} did not take it")
            else:
                self._on_taken(view, id, part)
        await asyncio.sleep(pause_end_s - monotonic_s())


def parts_to_offer(store: Store, cached: CachedFile, path: bytes) -> Iterator[FileRange]:
    """Yield the present ranges of a cached file: the segments of a complete one, otherwise the runs of blocks in each
    segment."""
    for start in range(0, cached.size_bytes, SEGMENT_BYTES):
        end = min(cached.size_bytes, start + SEGMENT_BYTES)
        runs = [(start, end)] if cached.complete else _present(store, cached, start, end)
        for first, last in runs:
            yield FileRange(path, cached.size_bytes, cached.mtime_ns, cached.token, first, last)


def _present(store: Store, cached: CachedFile, start: int, end: int) -> list[tuple[int, int]]:
    try:
        reader = CacheReader.open(store.volumes[cached.volume].folder, cached)
    except HeadraceError as error:  # evicted, or complete by now
        log.info("a file that is being filled is not handed over error=%s", error)
        return []
    try:
        return reader.present_runs(start, end)
    finally:
        reader.close()
