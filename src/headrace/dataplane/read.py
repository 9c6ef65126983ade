"""Read cached and uncached bytes: the read path, from top to bottom. Read this module first.

A client that finds no complete cache file calls `open`. While the file is incomplete, it calls `fill` for the bytes
that it needs. Both calls end with bytes in the cache file, where the client reads them; they never return bytes.

    open ── complete and trusted? ─────────────────────────────► the cache file
      │  ── cached before a power loss? verify its blocks ─────► the cache file
      │  ── written on this node? demote it to the cache ──────► the cache file
      │  ── small, of one block: fetch it, commit it ──────────► the cache file
      └──── large: begin its fill ─────────────────────────────► fill
    fill ── the blocks are present? ───────────────────────────► done
      └──── absent: read ranges of the source, each block once. Read ahead of a sequential reader, and fill a file
            completely that is read in large part. The last block commits the file.

`small_files.py` fetches small files, and `open_fills.py` has the fills of large ones. `source.py` reads from peers or
the origin. `compare.py` compares the origin's bytes with the digest that the origin names.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Executor
from functools import partial

from headrace.base.errors import (
    EvictedError,
    HeadraceError,
    NoSpaceError,
    PathNotFoundError,
    StoreError,
    VersionChangedError,
)
from headrace.base.listeners import Listeners
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId, Kind
from headrace.base.single_flight import SingleFlight
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.compare import Digests, SmallComparison
from headrace.dataplane.fill import Fill
from headrace.dataplane.intent import BACKGROUND, BATCH, FOREGROUND, LOADS, SEQUENTIAL, ReadIntent
from headrace.dataplane.load_budget import LoadBudget
from headrace.dataplane.open_fills import OpenFills
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.shared_opens import SharedOpens
from headrace.dataplane.small_files import SmallFileFetcher
from headrace.dataplane.source import SourceFactory
from headrace.namespace.namespace import Namespace
from headrace.store.schema import CachedFile
from headrace.store.store import Store

log = logging.getLogger(__name__)

EVICTED_MAX = 100
"""Times in a row that a file may be evicted while it is filled. Then its reader gets an error, because the cache has
too little space for all readers."""
NO_SPACE_MAX = 3
"""Retries after NoSpaceError of a reader that may use the spill. The error may come from work that it shares with a
load or a peer, which may not use the spill."""


class ReadPath:
    """Fill cache files with the bytes that clients read. Runs on the node's loop.

    on_complete: called with the ids of files that became complete. on_damaged: makes clients drop the bytes of damaged
    files. demote: moves a clean file of the upper layer into the cache; it returns False if there is no such file.
    """

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        sources: SourceFactory,
        disk: Executor,
        settings: ReadSettings,
        *,
        on_complete: Callable[[list[FileId]], None],
        on_damaged: Callable[[list[FileId]], Awaitable[None]],
        demote: Callable[[bytes, Entry], Awaitable[bool]] | None = None,
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._sources = sources
        self.load_budget = LoadBudget(namespace.tree, sources)
        self.owns: Callable[[bytes], bool] = sources.owns
        """Returns whether this node owns a path; a file that it does not own is cached as a borrowed one."""
        self._disk = disk
        self._small_bytes_max = min(BLOCK_SIZE_BYTES, settings.small_file_bytes_max)
        self._on_complete = on_complete
        self.fetched: Listeners[[list[FileId]]] = Listeners()
        """Called with the ids of complete files that were fetched, small ones, too."""
        self._on_damaged = on_damaged
        self._demote = demote
        self.digests = Digests(wanted=settings.verify_origin)
        self.objections: list[Callable[[FileId], bool]] = []
        """Each is asked about a file that a program reads, and keeps it out of the cache by returning True."""
        self._small_files = SmallFileFetcher(store, disk)
        self._fills = OpenFills(
            *(store, sources, disk, settings, self.digests),
            on_complete=self._note_complete,
            on_damaged=on_damaged,
            on_changed=self._follow_change,
        )
        self._opens = SharedOpens(self._open)
        self._checks: SingleFlight[FileId, None] = SingleFlight()
        self._notifications = OwnedTasks()

    # ------------------------------------------------------------ calls of clients, peers and jobs

    async def open(self, id: FileId) -> bool:
        """Wait until a file is in the cache, or its fill has begun. Return True if it is complete. Raises
        VersionChangedError if the origin has another version, PathNotFoundError for a directory, and NoSpaceError."""
        for _ in range(NO_SPACE_MAX):
            with contextlib.suppress(NoSpaceError):
                return await self._fill_of(id, FOREGROUND) is None
        return await self._fill_of(id, FOREGROUND) is None

    async def open_many(self, ids: Iterable[FileId]) -> AsyncIterator[list[FileId]]:
        """Open small files, and yield their ids as they become complete. Large files and failed ones are omitted;
        `open` raises the error."""
        complete: list[FileId] = []
        running: set[asyncio.Task[bool]] = set()
        has_ended = asyncio.Event()

        def note_end(id: FileId, task: asyncio.Task[bool]) -> None:
            running.discard(task)
            if not task.cancelled() and task.exception() is None and task.result():
                complete.append(id)
            has_ended.set()

        for id in dict.fromkeys(ids):
            if self._is_cached(id):
                complete.append(id)
                continue
            task = self._opens.begin(id, BATCH)
            running.add(task)
            task.add_done_callback(partial(note_end, id))
        while complete or running:
            if complete:
                batch, complete = complete, []
                yield batch
            else:
                has_ended.clear()
                await has_ended.wait()

    async def fill(self, id: FileId, start: int, end: int, intent: ReadIntent = SEQUENTIAL) -> bool:
        """Wait until the bytes start..end are in the cache file. Return True if the file is complete. Raises as `open`
        does, and EvictedError if the file is evicted again and again."""

        async def ensure(fill: Fill) -> None:
            self._fills.check_spill_room(fill, end - start)
            if intent.is_sequential:
                fill.read_ahead(start, end)
            await fill.ensure(start, end, intent)

        return await self._with_fill(id, ensure, intent)

    async def serve(self, id: FileId, start: int, end: int, intent: ReadIntent) -> None:
        """Wait until the bytes start..end are in the cache file, for a peer that requested them. Nothing is read ahead,
        and no other peer is involved, so wait cycles cannot form. intent: with `for_peer`."""
        await self._with_fill(id, lambda fill: fill.ensure(start, end, intent), intent)

    async def admit(self, entry: Entry, start: int, end: int, *, job: str) -> None:
        """Wait until the origin's budget permits background work to read bytes that are not cached. Raise
        OriginBudgetSpentError."""
        if not self.has(entry.id, start, end):
            await self.load_budget.admit(entry, end - start, job)

    async def load(
        self,
        entry: Entry,
        part: tuple[int, int] | None = None,
        *,
        job: str = LOADS,
        giver: str = "",
        is_admitted: bool = False,
    ) -> int:
        """Load a file, and return the bytes that are cached then. Reads of clients have priority. part: only the bytes
        from a start to an end. job, giver: as in ReadIntent. is_admitted: the caller has awaited `admit`. Raise
        OriginBudgetSpentError if the origin's budget permits no background work."""
        intent = dataclasses.replace(BACKGROUND, job=job, giver=giver)
        start, end = part or (0, entry.version.size_bytes)
        if not is_admitted:
            await self.admit(entry, start, end, job=job)

        async def ensure(fill: Fill) -> None:
            await (fill.ensure_all(intent) if part is None else fill.ensure(start, end, intent))

        await self._with_fill(entry.id, ensure, intent)
        return end - start

    def has(self, id: FileId, start: int, end: int) -> bool:
        """Return whether the cache file has these bytes, of a file that is complete or being filled. Parts of other
        files take a read of the disk, so the answer is False."""
        fill = self._fills.get(id)
        if fill is None or fill.is_closed:
            return self._is_cached(id)
        return not fill.missing_ranges(start, end)

    def is_arriving(self, entry: Entry, path: bytes, start: int, end: int) -> bool:
        """Return whether every missing block of the range is already being fetched from the origin. Callers may then
        wait without risking a cycle between nodes."""
        fill = self._fills.get(entry.id)
        if fill is not None:
            missing = fill.missing_ranges(start, end)
        elif entry.id in self._small_files.arriving:
            missing = []
        else:
            missing = [(0, entry.version.size_bytes)]
        return all(self._sources.comes_from_origin(path, entry.version, *part) for part in missing)

    async def check(self, id: FileId) -> None:
        """Compare the cached blocks of a file with their checksums, once for all callers. Bad blocks are dropped, and
        fetched again when they are read."""
        await self._checks.run(id, lambda: self._check(id))

    def forget(self, ids: list[FileId]) -> None:
        """Close the fills of files that were evicted or freed."""
        self._fills.close(ids)

    def close_idle(self) -> list[FileId]:
        """Close the fills that fetched nothing since the previous call, and return the ids of these incomplete files.
        The node calls this periodically."""
        return self._fills.close_idle()

    async def close(self) -> None:
        """Stop all fetches, and close all fills."""
        await self._opens.stop()
        await self._checks.stop()
        await self._small_files.stop()
        await self._notifications.wait()
        await self._fills.stop()

    # ------------------------------------------------------------ the steps of a read

    async def _with_fill(
        self, id: FileId, work: Callable[[Fill], Awaitable[None]], intent: ReadIntent
    ) -> bool:
        """Run the work with the file's fill, and repeat it if the file is evicted meanwhile. If the disks have no
        space, use the spill, as far as the intent allows it. Return True if the file is complete."""
        refusals = 0 if intent.may_spill and self._store.spill is not None else NO_SPACE_MAX
        fill: Fill | None = None
        for attempt in range(EVICTED_MAX):
            try:
                fill = await self._fill_of(id, intent)
                if fill is None:
                    return True
                await work(fill)
                if intent.needs_commit:
                    await fill.compared()
            except NoSpaceError:
                if self._is_kept_out(fill, intent):
                    self._fills.close([id])
                    self._store.free(id)
                    intent = dataclasses.replace(intent, is_admitted=True)
                    continue
                refusals += 1
                if refusals > NO_SPACE_MAX:
                    raise
                intent = dataclasses.replace(intent, into_spill=True)
                continue
            except EvictedError:
                if attempt + 1 == EVICTED_MAX:
                    raise
                continue
            except StoreError:
                if not self._fills.leave_failing_disk(id, fill):
                    raise
                continue
            except VersionChangedError:
                if fill is not None:
                    await self._follow_change(fill.entry)
                raise
            return fill.is_committed
        raise AssertionError

    def _may_keep_out(self, intent: ReadIntent) -> bool:
        """Return whether the policy may keep a file out of the cache."""
        return intent.may_spill and not intent.is_admitted and self._store.spill is not None

    def _is_admitted(self, id: FileId) -> bool:
        """Return whether the policy, the wear of the disks, and all others let a file enter the cache."""
        space = self._store.space
        is_allowed = space.division.admits(id) and space.tiered.may_write(id)
        return is_allowed and not any(objects_to(id) for objects_to in self.objections)

    def _is_kept_out(self, fill: Fill | None, intent: ReadIntent) -> bool:
        """Return whether the policy may have put a fill into the spill, where a disk was not tried."""
        is_spilled = fill is not None and fill.volume is self._store.spill
        return is_spilled and not intent.into_spill and not intent.is_admitted

    async def _fill_of(self, id: FileId, intent: ReadIntent) -> Fill | None:
        """Return the fill of a file; None if the file is complete."""
        disks_left = len(self._store.disks)
        while not self._is_cached(id):
            try:
                if await self._opens.run(id, intent):
                    break
            except EvictedError:
                raise
            except StoreError:
                disks_left -= 1
                if disks_left <= 0 or not self._fills.leave_failing_disk(id, None):
                    raise
                continue
            fill = self._fills.get(id)
            if fill is not None:  # otherwise it was completed or evicted before this task ran again
                return fill
        return None

    def _is_cached(self, id: FileId) -> bool:
        """Return whether the cache has the complete file and may serve it without a check."""
        cached = self._store.index.cached(id)
        return cached is not None and cached.trusted and self._store.holds(cached)

    async def _open(self, id: FileId, intent: ReadIntent) -> bool:
        """Make the file complete, or begin its fill and return False."""
        cached = self._store.index.cached(id)
        if cached is not None and cached.unverified:
            cached = await self._verify(id)
        if cached is not None and cached.complete:
            return True
        if self._fills.can_continue(id, intent):
            return False
        self._fills.close([id])
        mount, key, entry = self._namespace.tree.locate(id)
        if entry.kind is not Kind.FILE:
            raise PathNotFoundError(f"file {id:x}", why="it is a directory")
        path = self._store.index.path_of(id) or b""
        if self._demote is not None and await self._demote(path, entry):
            self._on_complete([id])
            return True
        if self._may_keep_out(intent) and not self._is_admitted(id):
            intent = dataclasses.replace(intent, into_spill=True)
        source = self._sources.of(mount, key, entry, path)
        origin = self._sources.origin_of(mount, key, entry, path)
        if entry.version.size_bytes > self._small_bytes_max:
            return await self._fills.begin(entry, path, source, origin, intent)
        comparison = SmallComparison(self.digests, origin)
        is_borrowed = not self._sources.owns(path)
        try:
            await self._small_files.fetch(source, entry, comparison, intent, is_borrowed=is_borrowed)
        except VersionChangedError:
            await self._follow_change(entry)
            raise
        self.fetched([entry.id])
        return True

    def _note_complete(self, ids: list[FileId]) -> None:
        self._on_complete(ids)
        self.fetched(ids)

    async def _follow_change(self, entry: Entry) -> None:
        """List the directory of a changed file again, so that the next lookup returns the new version. The old id then
        has no name, and its fill is closed."""
        try:
            await self._namespace.listings.refresh(entry.parent)
        except HeadraceError as error:
            log.info("a changed file's directory can't be listed error=%s", error)
        if self._store.index.entry(entry.id) is None:
            self._fills.close([entry.id])

    # ------------------------------------------------------------ checksums

    async def _verify(self, id: FileId) -> CachedFile | None:
        """Verify blocks that were cached before a power loss, or before this start (`verify=open`), and drop bad ones.
        Clients are notified in the background, because one of them may wait for this call."""
        if not await self._has_sound_blocks(id):
            self._notifications.start(self._on_damaged([id]))
        return self._store.index.cached(id)

    async def _check(self, id: FileId) -> None:
        """Drop damaged blocks of a cached file, and wait until clients have dropped them, too."""
        if self._store.index.cached(id) is not None and not await self._has_sound_blocks(id):
            self._fills.close([id])
            await self._on_damaged([id])

    async def _has_sound_blocks(self, id: FileId) -> bool:
        """Return whether all cached blocks match their checksums. Drop the others."""
        is_sound = await asyncio.get_running_loop().run_in_executor(
            self._disk, self._store.verifier.verify, id
        )
        if not is_sound:
            path = os.fsdecode(self._store.index.path_of(id) or b"")
            log.warning("cached file failed its checksum, bad blocks are dropped id=%x path=%s", id, path)
        return is_sound
