"""List directories again before their listings are too old, while programs open files in them.

An open that finds an old listing waits for the origin. A job that reads files of a thousand directories would wait for
each of them, in every sync interval.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections.abc import Iterable, Sequence

from headrace.base import boot_clock
from headrace.base.errors import HeadraceError
from headrace.base.model import ROOT_ID, FileId
from headrace.base.tasks import OwnedTasks
from headrace.namespace.freshness import Freshness
from headrace.namespace.listings import Listings
from headrace.namespace.tree import NameTree
from headrace.store.schema import FOREVER_NS

log = logging.getLogger(__name__)

AHEAD_SHARES = (1 / 6, 1 / 3)
"""The share of the age of a listing that is left when it is made again. It is random in between, so that directories
that were listed together are not always due together."""
AGE_S_MIN = 5.0
"""Shorter ages are for those who want to see changes, and each listing would be made almost twice."""
TURN_S = 1.0
AGAIN_S = 3.0
"""Seconds until the owner of a directory is asked once more, if its listing is as old as that of this node."""
AFTER_FAILURE_S = 30.0
IN_FLIGHT_MAX = 8
OPENS_NOTED_MAX = 512
"""Opens of one report whose directories are noted: some 4 ms. A directory in use has others in the next report."""
DIRECTORIES_MAX = 65_536


class RefreshAhead:
    """Keeps the listings of directories fresh in which programs open files, and of those above. Used on the node's
    loop."""

    def __init__(self, tree: NameTree, listings: Listings, freshness: Freshness) -> None:
        self._tree = tree
        self._listings = listings
        self._freshness = freshness
        self._is_used: dict[FileId, bool] = {}
        """Directories that are watched; whether an open was noted since the last listing."""
        self._due: list[tuple[float, FileId]] = []
        """The same directories by the time at which they are to be listed again, as a heap."""
        self._places = asyncio.Semaphore(IN_FLIGHT_MAX)
        """Each listing of a directory holds one: one that takes long holds up no others."""
        self._tasks = OwnedTasks()
        self._running: asyncio.Task[None] | None = None
        self._is_stopped = False

    def note_opens(self, ids: Sequence[FileId]) -> None:
        """Note that programs opened files."""
        some = ids if len(ids) <= OPENS_NOTED_MAX else random.sample(ids, OPENS_NOTED_MAX)
        directories = self._parents_of(some)
        while directories:
            for directory in directories:
                self.note(directory)
            directories = self._parents_of(directories - {ROOT_ID})

    def _parents_of(self, ids: Iterable[FileId]) -> set[FileId]:
        entries = map(self._tree.index.entry, ids)
        return {entry.parent for entry in entries if entry is not None}

    def note(self, directory: FileId) -> None:
        """Note that a directory is in use."""
        if directory in self._is_used:
            self._is_used[directory] = True
        elif len(self._is_used) < DIRECTORIES_MAX and (due_s := self._due_s(directory)) is not None:
            self._is_used[directory] = True
            heapq.heappush(self._due, (due_s, directory))
            if not self._is_stopped and (self._running is None or self._running.done()):
                self._running = self._tasks.start(self._run())

    async def stop(self) -> None:
        """End what lists ahead. Opens that are noted later start nothing."""
        self._is_stopped = True
        await self._tasks.close()

    async def _run(self) -> None:
        """Refresh what is due, until no directory is in use."""
        while self._is_used:
            await asyncio.sleep(TURN_S)
            while self._due and self._due[0][0] <= boot_clock.now_s():
                await self._places.acquire()
                refresh = self._tasks.start(self._refresh(heapq.heappop(self._due)[1]))
                refresh.add_done_callback(lambda _: self._places.release())

    async def _refresh(self, directory: FileId) -> None:
        """List a directory again, if an open was noted since it was listed last."""
        due_s = None
        try:
            if self._is_used[directory] and self._age_s(directory) is not None:
                self._is_used[directory] = False
                await self._listings.relist(directory)
                due_s = self._due_s(directory)
        except HeadraceError as error:  # opens go on with the old listing, or wait
            log.info("a directory in use can't be listed ahead directory=%x error=%s", directory, error)
            due_s = boot_clock.now_s() + AFTER_FAILURE_S
        if due_s is None:
            del self._is_used[directory]
        else:
            heapq.heappush(self._due, (max(due_s, boot_clock.now_s() + AGAIN_S), directory))

    def _due_s(self, directory: FileId) -> float | None:
        """Return when a directory is to be listed again; None if it has no fresh listing, or one that is not listed
        ahead."""
        until_ns, age_s = self._tree.index.fresh_until_ns(directory), self._age_s(directory)
        if age_s is None or until_ns >= FOREVER_NS or until_ns <= boot_clock.now_ns():
            return None
        return until_ns / 1e9 - age_s * random.uniform(*AHEAD_SHARES)

    def _age_s(self, directory: FileId) -> float | None:
        """Return the seconds for which a listing may be used; None if it is not listed ahead."""
        path = self._tree.index.path_of(directory)
        place = None if path is None else self._tree.mounts.find(path)
        if path is None or place is None:
            return None
        age_s = self._freshness.age_s(path, place[0])
        return age_s if AGE_S_MIN <= age_s < float("inf") else None
