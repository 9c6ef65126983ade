"""Give the other owners of a file their copies when this node has fetched it, in the background.

Only the primary owner does so: it reads the origin for the others, so it has each file first. A copy that fails is
tried again some times. When too many files wait, the oldest are forgotten, and a walk of all files finds them later.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.handover import HandoverOffers, parts_to_offer
from headrace.ring.ownership import Ownership
from headrace.ring.view import SEGMENT_BYTES, ClusterView
from headrace.store.store import Store
from headrace.wire.peer_messages import FileRange

if TYPE_CHECKING:
    from headrace.peer.client import PeerClient

log = logging.getLogger(__name__)

WAITING_MAX = 1 << 18
"""Files that wait, of some 100 bytes each."""
GATHER_S = 0.2
"""Seconds in which files gather for one request."""
RETRY_S = 2.0
ATTEMPTS_MAX = 4
"""Attempts to give one file to its owners. A node that has left gets its files by the walk of the others."""
LOOKS_AT_ONCE = 256
"""Files that are looked at before other tasks of the loop run."""
OFFERED_MAX = 4096
"""Files after which the last incomplete requests are sent, too."""


class FreshCopies:
    """Makes the copies of one node. view: returns the current view. bytes_s: most bytes that are offered in a second.
    is_wanted: returns whether any path has copies. on_lost: called after files were forgotten."""

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
        on_lost: Callable[[], None],
    ) -> None:
        self._me = me
        self._store = store
        self._view = view
        self._ownership = ownership
        self._is_wanted = is_wanted
        self._on_lost = on_lost
        self._offers = HandoverOffers(
            peers, bytes_s=bytes_s, on_taken=self._note_taken, on_refused=self._note_refused
        )
        # by file, with the attempts so far: those that wait, those that are being offered, those that failed
        self._waiting: dict[FileId, int] = {}
        self._offered: dict[FileId, int] = {}
        self._failed: dict[FileId, int] = {}
        self._has_lost = False
        self._tasks = OwnedTasks()
        self.copies_made = self.copy_bytes_made = self.copies_failed = 0

    def note(self, ids: Iterable[FileId]) -> None:
        """Give these files to their other owners, soon: they were fetched, or have other owners now."""
        if not self._is_wanted():
            return
        for id in ids:
            self._waiting[id] = 0
        while len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
            self._has_lost = True
        if not self._tasks:
            self._tasks.start(self._run())

    async def wait(self) -> None:
        """Wait until no file waits for its copies."""
        await self._tasks.wait()

    async def stop(self) -> None:
        await self._tasks.close()

    def is_waiting(self, id: FileId) -> bool:
        """Return whether a file waits for its copies."""
        return id in self._waiting or id in self._offered or id in self._failed

    def statistics(self) -> dict[str, int]:
        return {
            "files_waiting": len(self._waiting) + len(self._offered) + len(self._failed),
            "copies_made": self.copies_made,
            "bytes_made": self.copy_bytes_made,
            "copies_failed": self.copies_failed,
        }

    async def _run(self) -> None:
        await asyncio.sleep(GATHER_S)
        while self._waiting or self._failed:
            if not self._waiting:
                await asyncio.sleep(RETRY_S)
                self._waiting, self._failed = self._failed | self._waiting, {}
            await self._offer_waiting(self._view())
        if self._has_lost:
            self._has_lost = False
            self._on_lost()

    async def _offer_waiting(self, view: ClusterView) -> None:
        """Offer the files that wait."""
        for count in range(1, OFFERED_MAX):
            if not self._waiting:
                break
            id = next(iter(self._waiting))
            self._offered[id] = self._waiting.pop(id) + 1
            await self._offer(view, id)
            if count % LOOKS_AT_ONCE == 0:
                await asyncio.sleep(0)
        await self._offers.flush(view)
        self._offered.clear()

    async def _offer(self, view: ClusterView, id: FileId) -> None:
        cached, path = self._store.index.cached(id), self._store.index.path_of(id)
        if cached is None or path is None or cached.unverified or cached.superseded:
            return
        if self._store.volumes[cached.volume] is self._store.spill:
            return
        for part in parts_to_offer(self._store, cached, path):
            owners = self._ownership.owners(view, path, part.start // SEGMENT_BYTES)
            if owners and owners[0].id == self._me:
                for owner in owners[1:]:
                    await self._offers.add(view, owner, id, part)

    def _note_taken(self, view: ClusterView, id: FileId, part: FileRange) -> None:
        self.copies_made += 1
        self.copy_bytes_made += part.end - part.start

    def _note_refused(self, id: FileId, part: FileRange, reason: str) -> None:
        attempts = self._offered.get(id, ATTEMPTS_MAX)
        if attempts < ATTEMPTS_MAX:
            self._failed[id] = attempts
            return
        self.copies_failed += 1
        log.info("a copy was not made path=%s reason=%s", os.fsdecode(part.path), reason)
