"""Look up names that origins report as changed, and list directories again with many such names.

A report is a hint that anyone who can write at the origin causes, and it may be late, repeated or false. So what it
costs is bounded. Reports of a name or a directory are joined. At most CHECKS_MAX names are looked up at a time and
CHECKS_S a second, and at most REFRESHES_MAX directories are listed at a time and REFRESHES_S a second. Each rests
afterwards for some times as long as that took. Mounts take turns (report_lanes.py). A mount with as many waiting
reports as WAITING_MAX leaves for all others gets no more: it is listed again as a whole, at most once in SYNC_REST_S.
"""

from __future__ import annotations

import asyncio
import logging
import os

from headrace.base.clock import monotonic_s
from headrace.base.errors import DeadlineExceededError, HeadraceError, OriginUnavailableError
from headrace.base.namespace_path import split
from headrace.base.tasks import OwnedTasks
from headrace.namespace.changes import NameChanges
from headrace.namespace.listings import Listings
from headrace.namespace.name_checks import NameChecks
from headrace.namespace.report_lanes import ReportLane
from headrace.namespace.reported_paths import ReportedPaths, Scope, Target
from headrace.namespace.tree import NameTree

log = logging.getLogger(__name__)

WAITING_MAX = 20_000
"""Half of them for one mount, half of the rest for the next that is flooded, and so on: each has some."""
REFRESHES_MAX = 8
REFRESHES_S = 100.0
CHECKS_MAX = 32
CHECKS_S = 400.0
"""A name costs a HEAD, and stores answer thousands of them a second."""
REST_FACTOR = 4.0
"""Times of its last lookup for which a name or a directory rests: reports cause lookups a fifth of the time at most."""
RESTS_MAX = 10_000
SYNC_REST_S = 60.0


class ChangedDirectories:
    """The names and directories that wait, and those that are looked up or listed now. Belongs to the node's loop."""

    def __init__(self, tree: NameTree, changes: NameChanges, listings: Listings, checks: NameChecks) -> None:
        self._tree = tree
        self._changes = changes
        self._listings = listings
        self._checks = checks
        self.reported = ReportedPaths(tree)
        self._waiting: dict[Target, asyncio.Future[None]] = {}
        self._mounts_waiting: dict[bytes, int] = {}  # reports that wait, by the paths of their mounts
        self._names_waiting: dict[bytes, int] = {}  # by their directories
        self._rests_until_s: dict[Target, float] = {}
        self._listing_lane = ReportLane(REFRESHES_MAX, REFRESHES_S, self._has_several_mounts)
        self._checking_lane = ReportLane(CHECKS_MAX, CHECKS_S, self._has_several_mounts)
        self._tasks = OwnedTasks()
        self._refreshed = self._checked = self._failed = self._overflows = 0

    def add(self, path: bytes, scope: Scope = Scope.DIRECTORY) -> asyncio.Future[None]:
        """Look a name up again soon, or list a directory again: the nearest one above that the index has. The future
        ends after a lookup or a listing that began later than this call, with a HeadraceError if that failed. A
        directory that nobody has listed needs none."""
        if scope is Scope.NAME:
            return self._add_name(path)
        target = self._nearest(path), scope
        if scope is Scope.DIRECTORY and not self._is_known(target[0]):
            return _done()
        mount = self.reported.top_of(path)
        if target not in self._waiting and self._is_full(mount):
            self._overflows += 1
            target = mount, Scope.BELOW
        return self._waiting.get(target) or self._begin(target, mount)

    def _add_name(self, path: bytes) -> asyncio.Future[None]:
        directory, name = split(path)
        target = path, Scope.NAME
        if target in self._waiting:
            return self._waiting[target]
        if not name or self._nearest(directory) != directory:
            return self.add(directory)
        if not self._is_known(directory):
            return _done()
        count = self._names_waiting.get(directory, 0) + 1
        mount = self.reported.top_of(path)
        if (
            (directory, Scope.DIRECTORY) in self._waiting
            or self._is_full(mount)
            or count > self.reported.names_max(directory, count)
        ):
            return self.add(directory)
        self._names_waiting[directory] = count
        return self._begin(target, mount)

    def _is_full(self, mount: bytes) -> bool:
        """Return whether a mount may have no more waiting reports."""
        return self._mounts_waiting.get(mount, 0) >= WAITING_MAX - len(self._waiting)

    def _has_several_mounts(self) -> bool:
        return self._tree.mounts.count > 1

    def _begin(self, target: Target, mount: bytes) -> asyncio.Future[None]:
        future = self._waiting[target] = asyncio.get_running_loop().create_future()
        self._mounts_waiting[mount] = self._mounts_waiting.get(mount, 0) + 1
        future.add_done_callback(_retrieve)
        self._tasks.start(self._refresh_in_turn(target, mount, future))
        return future

    async def stop(self) -> None:
        await self._tasks.close()
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()
        self._mounts_waiting.clear()
        self._names_waiting.clear()

    def statistics(self) -> dict[str, int]:
        names = sum(self._names_waiting.values())
        return {
            "names_waiting": names,
            "names_checked": self._checked,
            "directories_waiting": len(self._waiting) - names,
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

    async def _refresh_in_turn(self, target: Target, mount: bytes, future: asyncio.Future[None]) -> None:
        try:
            await asyncio.sleep(max(0.0, self._rests_until_s.get(target, 0.0) - monotonic_s()))
            directory = await self._refresh_in_lane(target, mount)
            if directory is not None:
                await self.add(directory)
        except HeadraceError as error:
            self._failed += 1
            log.info("a reported change is not looked up path=%s error=%s", os.fsdecode(target[0]), error)
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(None)
        finally:
            future.cancel()

    async def _refresh_in_lane(self, target: Target, mount: bytes) -> bytes | None:
        """Return the directory that must be listed, too; None: there is none."""
        lane = self._checking_lane if target[1] is Scope.NAME else self._listing_lane
        async with lane.turn(mount):
            self._take(target, mount)  # what is reported from now on may be missing in this answer
            begun_s = monotonic_s()
            try:
                return await self._refresh(*target)
            finally:
                self._rest(target, begun_s)

    def _take(self, target: Target, mount: bytes) -> None:
        """Remove a target from those that wait."""
        del self._waiting[target]
        self._mounts_waiting[mount] -= 1
        if not self._mounts_waiting[mount]:
            del self._mounts_waiting[mount]
        if target[1] is Scope.NAME:
            directory = split(target[0])[0]
            self._names_waiting[directory] -= 1
            if not self._names_waiting[directory]:
                del self._names_waiting[directory]

    def _rest(self, target: Target, begun_s: float) -> None:
        now_s = monotonic_s()
        if len(self._rests_until_s) >= RESTS_MAX:
            self._rests_until_s = {key: end for key, end in self._rests_until_s.items() if end > now_s}
        rest_s = REST_FACTOR * (now_s - begun_s)
        is_below = target[1] is Scope.BELOW
        self._rests_until_s[target] = now_s + (max(rest_s, SYNC_REST_S) if is_below else rest_s)

    async def _refresh(self, path: bytes, scope: Scope) -> bytes | None:
        if scope is Scope.NAME:
            directory = await self._check(path)
            self._checked += 1
            return directory
        await (self._refresh_below(path) if scope is Scope.BELOW else self._refresh_one(path))
        self._refreshed += 1
        return None

    async def _check(self, path: bytes) -> bytes | None:
        """Look a name up. Return its directory if that can't tell, or if it was the last name there."""
        directory_path, name = split(path)
        try:
            is_right = await self._checks.check(directory_path, name)
        except HeadraceError:
            self._changes.invalidate(directory_path)  # the next access repeats it
            raise
        directory = self._tree.directory_at(directory_path)
        is_empty = directory is not None and next(iter(self._tree.index.children(directory)), None) is None
        is_top = directory_path in (self.reported.top_of(path), b"/")
        return directory_path if not is_right or (is_empty and not is_top) else None

    async def _refresh_below(self, path: bytes) -> None:
        """List the directories of a mount at and below a path. Mounts below it have origins of their own."""
        mount = self.reported.top_of(path)
        failure: HeadraceError | None = None
        is_away = False
        async for directory_path in self._tree.directories_below(path):
            if self.reported.top_of(directory_path) != mount:
                continue
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
