"""Remove cached files whose time to live is over, within a second or two, without a scan.

The policy says how long a file lives since its last use, its mtime, or its fetch. A use costs a number in a table: the
timer wheel asks for it when the time of the file comes. Over a restart of the node, the file system remembers the last
use as the atime of the cache file, to within a day. Only cached copies go: files that were written here and are not
persisted are no part of the cache.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from functools import partial

from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.policy.current import CurrentPolicy
from headrace.policy.effects import LifeStart, TimeToLive
from headrace.policy.expiry import TimerWheel
from headrace.policy.last_uses import LastUses
from headrace.store.schema import CachedFile
from headrace.store.store import Store

log = logging.getLogger(__name__)

TICK_S = 0.5
FAILED_PAUSE_S = 30.0
EXAMINED_AT_ONCE = 2000
"""Files that are looked at before others have their turn on the disk's threads: some 50 ms."""
KEPT_AGAIN_S = 3600.0
"""Seconds after which a pinned or sealed file that has expired is looked at again."""
SET_BACK_S = 5.0
"""Seconds by which the wall clock may go back before all times to live are set anew."""


class CachedLives:
    """Hears of cached files for `Expiry`, as store/file_lives.py says. Ignores them while no rule has a ttl."""

    def __init__(self, policy: CurrentPolicy) -> None:
        self.uses = LastUses()
        self.is_used = False
        self._policy = policy
        self._cached: deque[FileId] = deque()
        policy.changed.add(lambda _: self._apply())

    def _apply(self) -> None:
        rules = self._policy.resolver.document.rules
        self.is_used = any(rule.effects.get("ttl") is not None for rule in rules)

    def note_cached(self, id: FileId) -> None:
        if self.is_used:
            self._cached.append(id)

    def note_used(self, ids: Iterable[FileId]) -> None:
        if self.is_used:
            self.uses.use(ids, time.time())

    def take_cached(self) -> Iterator[FileId]:
        """Yield the files that were cached since the last call, also while others are added."""
        while self._cached:
            yield self._cached.popleft()


class Expiry:
    """Follows the times to live with one task. forget: takes ids of files, and ends what readers hold of them."""

    def __init__(
        self,
        store: Store,
        policy: CurrentPolicy,
        lives: CachedLives,
        disk: Executor,
        *,
        forget: Callable[[list[FileId]], None],
    ) -> None:
        self.expired_files = self.expired_bytes = 0
        self._store = store
        self._policy = policy
        self._lives = lives
        self._disk = disk
        self._forget = forget
        self._wheel = TimerWheel(time.time())
        self._tasks = OwnedTasks()
        self._scan_from: FileId | None = FileId(0)
        self._is_needed = asyncio.Event()
        policy.changed.add(lambda _: self._scan_again())

    def start(self) -> None:
        self._is_needed.set()
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    def statistics(self) -> dict[str, int]:
        return {
            "files_watched": len(self._wheel),
            "files_expired": self.expired_files,
            "bytes_expired": self.expired_bytes,
        }

    def _scan_again(self) -> None:
        """Look at all cached files, as their times to live may have changed."""
        self._scan_from = FileId(0)
        self._is_needed.set()

    async def _run(self) -> None:
        while True:
            await self._is_needed.wait()
            is_behind, pause_s = False, TICK_S
            try:
                if self._lives.is_used or len(self._wheel):
                    is_behind = await self._turn()
                else:
                    self._is_needed.clear()
            except Exception as error:
                trace = None if isinstance(error, HeadraceError) else error
                log.warning("expired files can't be removed error=%s", error, exc_info=trace)
                self._scan_again()  # those of this turn are watched no more
                pause_s = FAILED_PAUSE_S
            await asyncio.sleep(0 if is_behind else pause_s)

    async def _turn(self) -> bool:
        """Watch new files, and remove expired ones. Return whether there is more to do at once."""
        loop = asyncio.get_running_loop()
        ids, is_behind = await loop.run_in_executor(self._disk, self._examine, time.time())
        if ids:
            self._forget(ids)
            for id in ids:
                self._expire(id)
        return is_behind

    def _examine(self, now_s: float) -> tuple[list[FileId], bool]:
        """Return files to remove now. Runs on one thread of the disk at a time."""
        if now_s < self._wheel.examined_to_s - SET_BACK_S:
            # the clock was set back: the wheel would examine nothing until that time comes again
            self._wheel = TimerWheel(now_s)
            self._scan_again()
        if self._scan_from is not None:
            start = self._scan_from
            batch = self._store.index.cached_batch(start)
            for cached in batch:
                self._watch(cached, now_s)
            if self._scan_from == start:  # else the policy changed meanwhile
                self._scan_from = batch[-1].id if batch else None
        for id in self._lives.take_cached():
            new = self._store.index.cached(id)
            if new is not None:
                self._watch(new, now_s)
        due = self._wheel.due(now_s, EXAMINED_AT_ONCE, partial(self._expires_at, now_s))
        is_behind = self._scan_from is not None or self._wheel.examined_to_s < now_s - 1
        return due, is_behind

    def _watch(self, cached: CachedFile, now_s: float) -> None:
        life = self._life_of(cached.id)
        if life is None:
            self._wheel.remove(cached.id)
            self._lives.uses.remove(cached.id)
            return
        if life.start is LifeStart.USED:
            self._lives.uses.add(cached.id, min(now_s, self._times(cached)[1]))
            if self._lives.uses.of(cached.id) > now_s + SET_BACK_S:
                self._lives.uses.use([cached.id], now_s)
        self._wheel.set(cached.id, self._end_of(cached, life))

    def _expires_at(self, now_s: float, id: FileId) -> float | None:
        cached = self._store.index.cached(id)
        life = None if cached is None else self._life_of(id)
        if cached is None or life is None:
            self._lives.uses.remove(id)
            return None
        end_s = self._end_of(cached, life)
        if end_s <= now_s and (cached.pinned or id in self._store.sealed):
            return now_s + KEPT_AGAIN_S
        return end_s

    def _life_of(self, id: FileId) -> TimeToLive | None:
        path = self._store.index.path_of(id)
        return None if path is None else self._policy.of(path).ttl

    def _end_of(self, cached: CachedFile, life: TimeToLive) -> float:
        """Return when a file expires, in seconds since 1970."""
        if life.start is LifeStart.MADE:
            return cached.mtime_ns / 1e9 + life.seconds
        if life.start is LifeStart.FETCHED:
            return self._times(cached)[0] + life.seconds
        return self._lives.uses.of(cached.id) + life.seconds

    def _times(self, cached: CachedFile) -> tuple[float, float]:
        """Return when a file was fetched, and when it was used last as its file system knows."""
        volume = self._store.volumes[cached.volume]
        path = volume.data_path(cached.id) if cached.complete else volume.part_path(cached.id)
        try:
            status = os.stat(path)
        except OSError:
            return time.time(), time.time()
        return status.st_mtime, max(status.st_mtime, status.st_atime)

    def _expire(self, id: FileId) -> None:
        cached = self._store.index.cached(id)
        self._lives.uses.remove(id)
        if cached is None or cached.pinned or id in self._store.sealed:
            return
        freed_bytes = self._store.free(id)
        if freed_bytes:
            self.expired_files += 1
            self.expired_bytes += freed_bytes
