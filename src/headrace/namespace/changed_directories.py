"""List directories again that origins report as changed.

A report is a hint that anyone who can write at the origin causes, and it may be late, repeated or false. So what it
costs is bounded: reports of a directory are joined, at most REFRESHES_MAX directories are listed at a time and
REFRESHES_S a second, and a directory rests after each listing for some times as long as that took. More than
WAITING_MAX directories are not kept apart: then their whole mount is listed again, at most once in SYNC_REST_S.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable

from headrace.base.clock import monotonic_s
from headrace.base.errors import DeadlineExceededError, HeadraceError, OriginUnavailableError
from headrace.base.namespace_path import split
from headrace.base.tasks import OwnedTasks
from headrace.base.token_bucket import TokenBucket, wait_for_turn
from headrace.events.changes import OriginChange
from headrace.namespace.changes import NameChanges
from headrace.namespace.listings import Listings
from headrace.namespace.mounts import Mount
from headrace.namespace.tree import NameTree

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
REFRESHES_MAX = 8
REFRESHES_S = 100.0
REST_FACTOR = 4.0
"""Times of its last listing for which a directory rests. Reports cause listings a fifth of the time at most."""
RESTS_MAX = 10_000
SYNC_REST_S = 60.0

Target = tuple[bytes, bool]
"""A directory, and whether all below it is meant, too."""


class ReportedPaths:
    """Maps reported objects to the directories of the namespace that have them. mounts: of a moment."""

    def __init__(self, tree: NameTree) -> None:
        self._mounts = tree.mounts

    def directories(self, changes: Iterable[OriginChange]) -> set[bytes]:
        """Return the directories whose names changed. An object that no mount shows changes nothing."""
        tops: dict[tuple[str, str], list[tuple[Mount, bytes]]] = {}
        for mount in self._mounts.all():
            scheme, _, rest = mount.url.partition("://")
            bucket, _, above = rest.partition("/")
            tops.setdefault((scheme, bucket), []).append((mount, os.fsencode(above)))
        paths = set()
        for change in changes:
            key = change.key.rstrip(b"/")  # an object `a/` stands for the directory
            for mount, prefix in tops.get((change.scheme, change.bucket), ()):
                if prefix and not key.startswith(prefix + b"/"):
                    continue
                path = os.fsencode(mount.path).rstrip(b"/") + b"/" + key[len(prefix) :].lstrip(b"/")
                place = self._mounts.find(path)
                if place is not None and place[0] is mount:
                    paths.add(split(path)[0])
        return paths

    def top_of(self, path: bytes) -> bytes:
        """Return the path of the mount that answers for a path."""
        place = self._mounts.find(path)
        return b"/" if place is None else os.fsencode(place[0].path)


class ChangedDirectories:
    """The directories that wait, and those that are listed now. Belongs to the node's loop."""

    def __init__(self, tree: NameTree, changes: NameChanges, listings: Listings) -> None:
        self._tree = tree
        self._changes = changes
        self._listings = listings
        self.reported = ReportedPaths(tree)
        self._waiting: dict[Target, asyncio.Future[None]] = {}
        self._rests_until_s: dict[Target, float] = {}
        self._gate = asyncio.Semaphore(REFRESHES_MAX)
        self._rate = TokenBucket(REFRESHES_S, monotonic_s(), burst_s=1.0)
        self._tasks = OwnedTasks()
        self._refreshed = self._failed = self._overflows = 0

    def add(self, path: bytes, *, below: bool = False) -> asyncio.Future[None]:
        """List a directory again soon, or the nearest one above that the index has; below: also all that lies below it.
        The future ends after a listing that began later than this call, with a HeadraceError if that failed. A
        directory that nobody has listed needs no listing."""
        target = self._nearest(path), below
        if not below and not self._is_known(target[0]):
            return _done()
        if target not in self._waiting and len(self._waiting) >= WAITING_MAX:
            self._overflows += 1
            target = self.reported.top_of(path), True
        known = self._waiting.get(target)
        if known is not None:
            return known
        future = self._waiting[target] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        self._tasks.start(self._refresh_in_turn(target, future))
        return future

    async def stop(self) -> None:
        await self._tasks.close()
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    def statistics(self) -> dict[str, int]:
        return {
            "directories_waiting": len(self._waiting),
            "directories_listed": self._refreshed,
            "directories_failed": self._failed,
            "overflows": self._overflows,
        }

    def _nearest(self, path: bytes) -> bytes:
        """Return the path, or the nearest one above that is a directory of the index. Reports of thousands of unknown
        directories so become one listing."""
        return max(self.reported.top_of(path), self._tree.nearest_directory(path), key=len)

    def _is_known(self, path: bytes) -> bool:
        directory = self._tree.directory_at(path)
        return directory is not None and self._listings.is_known(directory)

    async def _refresh_in_turn(self, target: Target, future: asyncio.Future[None]) -> None:
        await asyncio.sleep(max(0.0, self._rests_until_s.get(target, 0.0) - monotonic_s()))
        async with self._gate:
            await wait_for_turn([self._rate.reserve(1, monotonic_s())])
            del self._waiting[target]  # what is reported from now on may be missing in this listing
            begun_s = monotonic_s()
            try:
                await self._refresh(*target)
            except HeadraceError as error:
                self._failed += 1
                log.info("a reported directory is not listed path=%s error=%s", os.fsdecode(target[0]), error)
                if not future.done():
                    future.set_exception(error)
            else:
                self._refreshed += 1
                if not future.done():
                    future.set_result(None)
            finally:
                future.cancel()
                self._rest(target, begun_s)

    def _rest(self, target: Target, begun_s: float) -> None:
        now_s = monotonic_s()
        if len(self._rests_until_s) >= RESTS_MAX:
            self._rests_until_s = {key: end for key, end in self._rests_until_s.items() if end > now_s}
        rest_s = REST_FACTOR * (now_s - begun_s)
        self._rests_until_s[target] = now_s + (max(rest_s, SYNC_REST_S) if target[1] else rest_s)

    async def _refresh(self, path: bytes, below: bool) -> None:  # noqa: FBT001 - a target
        if not below:
            await self._refresh_one(path)
            return
        failure: HeadraceError | None = None
        is_away = False
        async for directory_path in self._tree.directories_below(path):
            self._changes.invalidate(directory_path)  # so that the next access lists it, if this one does not
            if is_away:
                continue
            try:
                await self._listings.refresh_listed(directory_path)
            except HeadraceError as error:  # one directory that fails must not keep the others old
                failure = failure or error
                is_away = isinstance(error, (OriginUnavailableError, DeadlineExceededError))
        if failure is not None:
            raise failure

    async def _refresh_one(self, path: bytes) -> None:
        """List the directory again. One that the origin has no more is empty then, and vanishes by a listing of the
        directory above."""
        tops, path = (self.reported.top_of(path), b"/"), self._nearest(path)
        while (directory := self._tree.directory_at(path)) is not None and self._listings.is_known(directory):
            self._changes.invalidate(path)  # also if the listing fails: the next access repeats it
            await self._listings.refresh_for_names(path)
            has_names = next(iter(self._tree.index.children(directory)), None) is not None
            if path in tops or has_names:
                return
            path = split(path)[0]


def _done() -> asyncio.Future[None]:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.set_result(None)
    return future


def _retrieve(future: asyncio.Future[None]) -> None:
    """Mark a failure as seen: most reports have nobody who waits."""
    if not future.cancelled():
        future.exception()
