"""The read, from top to bottom. Open this first.

A client that found no complete cache file asks `open`, and, while the file is not whole, `fill` for what it wants to
read. Both end with bytes in the cache file; the client reads them there. Bytes never travel up.

    open ── complete and trusted? ──────────────────────────► the cache file
      │  ── was there before a power loss? verify blocks ───► the cache file
      │  ── small (one block): fetch whole, commit ─────────► the cache file
      └──── large: an empty sparse cache file ──────────────► fill
    fill ── present? ───────────────────────────────────────► done
      └──── absent: range reads, single-flight per block; a sequential reader is fetched ahead of, and a file that
            is read in earnest is filled whole; the last block commits the file, once it was compared with what
            its origin says of it (compare.py)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

from headrace.base.errors import (
    CorruptOriginError,
    EvictedError,
    HeadraceError,
    NoSpaceError,
    PathNotFoundError,
    StoreError,
    VersionChangedError,
)
from headrace.base.group_commit import GroupCommit
from headrace.base.model import BLOCK_SIZE_BYTES, Arrived, Entry, FileId, Kind
from headrace.base.single_flight import SingleFlight
from headrace.dataplane.compare import (
    Digests,
    SmallComparison,
    WholeComparison,
    WrongBytesError,
    comparing_pool,
)
from headrace.dataplane.fill import Fill
from headrace.dataplane.readahead import ReadAhead
from headrace.dataplane.room import with_room
from headrace.dataplane.source import ByteSource, OriginSource, SourceFactory
from headrace.namespace.tree import Namespace
from headrace.origin.digest import Digest
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)
Result = TypeVar("Result")

EVICTED_MAX = 100
"""How often in a row a file may be evicted while it is filled, before its reader is told: there is too little room
for all who read at one time."""
FILLS_IDLE_MAX = 1024
"""Open writers kept for files nobody fetches just now; each is a descriptor and a map."""


SHARED_MAX = 3
"""How often a reader may hear what was said to somebody else whose work it shared: to a load, or a peer."""
SPILL_READERS = 8
"""So many readers of large files beside the disks have a part of what room there is."""
SMALL_BATCH = 16
SMALL_DELAY_S = 0.005
"""Small files that nobody waits for at an open are committed together: a commit is some 80 µs."""


CORRUPT_S, CORRUPT_MAX = 30.0, 1000
"""For how long a large file that could not be had right is not tried again: all of it would be fetched each time."""


@dataclass(frozen=True, slots=True)
class _Small:
    """A small file that arrived. borrowed: another node owns it."""

    entry: Entry
    arrived: Arrived
    borrowed: bool
    comparison: SmallComparison


@dataclass(frozen=True, slots=True)
class ReadSettings:
    range_bytes: int
    small_file_bytes_max: int
    readahead_bytes: int
    whole_file_after_bytes: int
    verify_origin: bool = True


class ReadPath:
    """on_complete: told the ids of files that became whole. on_damaged: has clients forget the bytes of files that were
    found to be wrong. bring: moves what was written on this node, and is at its origin, into the cache; False: there is
    no such file."""

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
        bring: Callable[[bytes, Entry], Awaitable[bool]] | None = None,
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._sources = sources
        self._disk = disk
        self._settings = settings
        self._on_complete = on_complete
        self._on_damaged = on_damaged
        self._bring = bring
        self._fills: dict[FileId, Fill] = {}
        self._opens: SingleFlight[FileId, bool] = SingleFlight()
        self._checks: SingleFlight[FileId, None] = SingleFlight()
        self._small = GroupCommit(self._commit_small, most=SMALL_BATCH, delay_s=SMALL_DELAY_S)
        self.digests = Digests(wanted=settings.verify_origin)
        self._comparing = comparing_pool()
        self._corrupt: dict[FileId, tuple[float, CorruptOriginError]] = {}
        self._landing: set[FileId] = set()
        self._telling: set[asyncio.Future[None]] = set()
        self._idle_before: dict[FileId, int] = {}

    async def open(self, id: FileId) -> bool:
        """The cache file exists on return; True when it is complete."""
        for _ in range(SHARED_MAX):
            with contextlib.suppress(NoSpaceError):
                return (await self._filling(id, background=False)) is None
        return (await self._filling(id, background=False)) is None

    async def open_many(self, ids: Iterable[FileId]) -> AsyncIterator[list[FileId]]:
        """As open, of small files: those that are whole, as they become so. One that can't be had, and one that is
        large, is left out: `open` says why."""
        whole: list[FileId] = []
        under_way: set[asyncio.Task[bool]] = set()
        news = asyncio.Event()

        def ended(id: FileId, task: asyncio.Task[bool]) -> None:
            under_way.discard(task)
            if not task.cancelled() and task.exception() is None and task.result():
                whole.append(id)
            news.set()

        for id in dict.fromkeys(ids):
            cached = self._store.index.cached(id)
            if cached is not None and cached.trusted and self._store.holds(cached):
                whole.append(id)
                continue
            work = partial(self._open, id, background=False, for_peer=False, together=True)
            task = self._opens.begin(id, work)
            under_way.add(task)
            task.add_done_callback(partial(ended, id))
        while whole or under_way:
            if whole:
                found, whole = whole, []
                yield found
            else:
                news.clear()
                await news.wait()

    async def fill(self, id: FileId, start: int, end: int, *, sequential: bool = True) -> bool:
        """start..end is in the cache file on return; True when the file is complete."""

        async def ensure(fill: Fill) -> None:
            self._check_room_beside(fill, end - start)
            if sequential:
                self._fetch_ahead(fill, start, end)
            await fill.ensure(start, end)

        return await self._through(id, ensure, background=False)

    async def serve(self, id: FileId, start: int, end: int) -> None:
        """start..end is in the cache file on return, for a peer that asked: nothing is fetched ahead, and no other
        peer is asked to fetch it."""
        await self._through(
            id, lambda fill: fill.ensure(start, end, for_peer=True), background=False, for_peer=True
        )

    async def load(self, entry: Entry) -> int:
        """The whole file is in the cache on return; its size in bytes. Others' reads go first."""
        await self._through(entry.id, Fill.ensure_all, background=True)
        return entry.version.size_bytes

    async def load_part(self, entry: Entry, start: int, end: int) -> None:
        """As load, of start..end only."""
        await self._through(entry.id, lambda fill: fill.ensure(start, end, background=True), background=True)

    def arrives(self, entry: Entry, path: bytes, start: int, end: int) -> bool:
        """Whether `serve` of start..end would only wait for what is on its way from the origin already. So no other
        node is waited for, which might wait for this one."""
        fill = self._fills.get(entry.id)
        if fill is None:
            lacks = [] if entry.id in self._landing else [(0, entry.version.size_bytes)]
        else:
            lacks = fill.lacks(start, end)
        return all(self._sources.comes_from_origin(path, entry.version, *one) for one in lacks)

    async def check(self, id: FileId) -> None:
        """What is cached of a file was compared with its checksums on return, once for all who wait; bad blocks are
        gone, and fetched again when they are wanted."""
        await self._checks.run(id, lambda: self._checked(id))

    def forget(self, ids: list[FileId]) -> None:
        """Lets go of files that were evicted or freed."""
        for id in ids:
            fill = self._fills.pop(id, None)
            if fill is not None:
                fill.writer.close()

    def drop_idle(self) -> None:
        """To be called now and then. Closes the writers of files that nobody fetched since the last call but one:
        they are then the first to make room, as they must be, and not the last."""
        now = [(id, fill) for id, fill in self._fills.items() if fill.idle]
        self.forget([id for id, fill in now if self._idle_before.get(id) == fill.asked])
        self._idle_before = {id: fill.asked for id, fill in now}

    async def close(self) -> None:
        await self._opens.stop()
        await self._checks.stop()
        await self._small.stop()
        await asyncio.gather(*self._telling, return_exceptions=True)
        for fill in list(self._fills.values()):
            await fill.stop()
            fill.writer.close()
        self._fills.clear()
        self._comparing.shutdown()

    # ------------------------------------------------------------ inside

    async def _through(
        self, id: FileId, work: Callable[[Fill], Awaitable[None]], *, background: bool, for_peer: bool = False
    ) -> bool:
        """Does the work with the file's fill, and again when the file is evicted meanwhile; where the disks have no
        room, beside them, if somebody on this host waits for it. True when the file is complete."""
        refused = SHARED_MAX if background or for_peer or self._store.spill is None else 0
        beside = False
        fill: Fill | None = None
        for attempt in range(EVICTED_MAX):
            try:
                fill = await self._filling(id, background=background, for_peer=for_peer, spilled=beside)
                if fill is None:
                    return True
                await work(fill)
                if background:
                    await fill.settle()
            except NoSpaceError:
                refused += 1
                if refused > SHARED_MAX:
                    raise
                beside = True
                continue
            except EvictedError:
                if attempt + 1 == EVICTED_MAX:
                    raise
                continue
            except VersionChangedError:
                if fill is not None:
                    await self._see_change(fill.entry)
                raise
            return fill.committed
        raise AssertionError

    async def _filling(
        self, id: FileId, *, background: bool, for_peer: bool = False, spilled: bool = False
    ) -> Fill | None:
        """The fill of a file; None when it is complete. spilled: beside the disks."""
        while True:
            cached = self._store.index.cached(id)
            if cached is not None and cached.trusted and self._store.holds(cached):
                return None
            work = partial(self._open, id, background=background, for_peer=for_peer, spilled=spilled)
            if await self._opens.run(id, work):
                return None
            fill = self._fills.get(id)
            if fill is not None:  # else it became complete, or went, before we had our turn
                return fill

    async def _open(
        self,
        id: FileId,
        *,
        background: bool,
        for_peer: bool,
        together: bool = False,
        spilled: bool = False,
    ) -> bool:
        """together: a small file may wait for others, to be committed with them."""
        cached = self._store.index.cached(id)
        if cached is not None and cached.unverified:
            cached = await self._verified(id)
        if cached is not None and cached.complete:
            return True
        known = self._fills.get(id)
        if known is not None and not known.writer.closed and not self._moves(known, background, spilled):
            return False
        self.forget([id])
        mount, key, entry = self._namespace.locate(id)
        if entry.kind is not Kind.FILE:
            raise PathNotFoundError(f"file {id:x}", why="it is a directory")
        path = self._store.index.path_of(id) or b""
        if self._bring is not None and await self._bring(path, entry):
            self._on_complete([id])
            return True
        source = self._sources.of(mount, key, entry, path)
        if entry.version.size_bytes <= min(BLOCK_SIZE_BYTES, self._settings.small_file_bytes_max):
            together = together or background
            comparison = SmallComparison(self.digests, mount.origin.url, key, entry.version)
            await self._fetch_small(
                *(source, entry, path, comparison),
                background=background,
                for_peer=for_peer,
                together=together,
            )
            return True
        self._refuse_corrupt(id)
        origin = self._sources.origin_of(mount, key, entry)
        writer = self._store.writer(id) if cached is not None and not spilled else None
        whole = writer is not None and writer.complete  # killed, or the disk failed, before it was committed
        if writer is not None and whole and self._digest_of(origin) is None:
            self._store.complete(writer)
            self._on_complete([id])
            return True
        if writer is None:
            writer = await self._created(entry, path, spilled=spilled, may_spill=not (background or for_peer))
        window_bytes, whole_after_bytes = self._ahead(writer)
        self._fills[id] = fill = Fill(
            entry,
            source,
            writer,
            store=self._store,
            in_flight_max=self._sources.in_flight_max,
            disk=self._disk,
            range_bytes=self._settings.range_bytes,
            lane_bytes=self._sources.lane_bytes,
            readahead=ReadAhead(
                entry.version.size_bytes,
                window_bytes_max=window_bytes,
                whole_file_after_bytes=whole_after_bytes,
            ),
            on_complete=partial(self._commit, origin=origin),
        )
        if whole:
            self._commit(fill, origin=origin)
        self._drop_idle()
        return False

    def _moves(self, fill: Fill, background: bool, spilled: bool) -> bool:  # noqa: FBT001 - as its caller has them
        """Whether it goes on elsewhere: beside the disks, or on one, which is where what is loaded belongs."""
        is_beside = fill.writer.volume is self._store.spill
        return (spilled and not is_beside) or (background and is_beside)

    def _ahead(self, writer: CacheWriter) -> tuple[int, int]:
        """How far to fetch ahead, and after how much all of a file: beside the disks that would push out what others
        are reading."""
        if writer.volume is not self._store.spill:
            return self._settings.readahead_bytes, self._settings.whole_file_after_bytes
        room_bytes = writer.volume.capacity_bytes // SPILL_READERS
        return min(self._settings.readahead_bytes, room_bytes), writer.version.size_bytes + 1

    def _check_room_beside(self, fill: Fill, count: int) -> None:
        volume = fill.writer.volume
        if volume is self._store.spill and count > volume.capacity_bytes // 2:
            raise NoSpaceError(
                f"{count} bytes of a file at one time",
                why="the cache has no room for it, and it is read past it",
                hint="give the cache more capacity, or read less at one time",
            )

    async def _created(self, entry: Entry, path: bytes, *, spilled: bool, may_spill: bool) -> CacheWriter:
        """Beside the disks if spilled says so, or where it may and they have no room."""
        borrowed = not self._sources.owns(path)

        async def create() -> CacheWriter:
            return self._store.create(entry, borrowed=borrowed, spilled=spilled)

        try:
            return await with_room(self._store, create)
        except NoSpaceError:
            if spilled or not may_spill or self._store.spill is None:
                raise
            return self._store.create(entry, borrowed=borrowed, spilled=True)

    async def _verified(self, id: FileId) -> CachedFile | None:
        """Checks what was there before a power loss, or before this start (`verify`); blocks that don't match are
        dropped and fetched again. Sessions hear of it meanwhile: one of them may be waiting for this."""
        sound = await asyncio.get_running_loop().run_in_executor(self._disk, self._store.verify, id)
        if not sound:
            log.warning("cached file failed its checksum, bad blocks are dropped id=%x", id)
            telling = asyncio.ensure_future(self._on_damaged([id]))
            self._telling.add(telling)
            telling.add_done_callback(self._telling.discard)
        return self._store.index.cached(id)

    async def _checked(self, id: FileId) -> None:
        cached = self._store.index.cached(id)
        if cached is None:
            return
        sound = await asyncio.get_running_loop().run_in_executor(self._disk, self._store.verify, id)
        if not sound:
            path = os.fsdecode(self._store.index.path_of(id) or b"")
            log.warning("cached file failed its checksum, bad blocks are dropped id=%x path=%s", id, path)
            self.forget([id])
            await self._on_damaged([id])

    async def _fetch_small(
        self,
        source: ByteSource,
        entry: Entry,
        path: bytes,
        comparison: SmallComparison,
        *,
        background: bool,
        for_peer: bool,
        together: bool,
    ) -> None:
        """Again while it does not match what the origin says of it."""
        size_bytes = entry.version.size_bytes
        while True:
            arrived = Arrived(b"")
            if size_bytes:
                try:
                    async with source.read(
                        0, size_bytes, background=background, for_peer=for_peer
                    ) as arrived:
                        self._landing.add(entry.id)
                except VersionChangedError:
                    await self._see_change(entry)
                    raise
            small = _Small(entry, arrived, not self._sources.owns(path), comparison)
            try:
                return await self._small.submit(small, soon=not together)
            except WrongBytesError as error:
                comparison.refused(error)
            except NoSpaceError:
                if background or for_peer or self._store.spill is None:
                    raise
                return await self._spill_small(small)
            finally:
                self._landing.discard(entry.id)

    async def _spill_small(self, small: _Small) -> None:
        """Where no disk takes it. It was right: that is looked at before there is no room."""
        (failure,) = await self._commit_small([small], spilled=True)
        if failure is not None:
            raise failure from None

    async def _see_change(self, entry: Entry) -> None:
        """The next lookup finds what the origin has now, and this id is given up."""
        try:
            await self._namespace.refresh(entry.parent)
        except HeadraceError as error:
            log.info("a changed file's folder can't be listed error=%s", error)
        if self._store.index.entry(entry.id) is None:
            self.forget([entry.id])

    async def _commit_small(self, arrived: list[_Small], *, spilled: bool = False) -> list[Exception | None]:
        """By one transaction; where that fails each by its own, so that each hears of its own trouble only. In the disk
        pool: on the loop, the writes of a load hold up everybody else for up to 0.1 s."""
        work = partial(self._keep_right, arrived, spilled=spilled)
        try:
            results = await with_room(self._store, lambda: self._in_disk_pool(work))
        except Exception as error:  # noqa: BLE001 - handed to the one that waits
            if len(arrived) == 1:
                return [error]
            return [(await self._commit_small([one]))[0] for one in arrived]
        for one, wrong in zip(arrived, results, strict=True):
            if wrong is None:
                one.comparison.kept()
        return results

    def _keep_right(self, arrived: list[_Small], *, spilled: bool) -> list[Exception | None]:
        """Keeps those that match what their origin says of them, all or none of them; what is wrong with the others."""
        results: list[Exception | None] = []
        right: list[_Small] = []
        for one in arrived:
            try:
                one.comparison.check(one.arrived)
                right.append(one)
                results.append(None)
            except WrongBytesError as error:
                results.append(error)
        if right:
            self._store.complete_small_many(
                [(one.entry, one.arrived.body) for one in right],
                borrowed={one.entry.id for one in right if one.borrowed},
                extras={one.entry.id: one.arrived.extras for one in right if one.arrived.extras is not None},
                spilled=spilled,
            )
        return results

    async def _in_disk_pool(self, work: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _commit(self, fill: Fill, *, origin: OriginSource) -> None:
        """In a callback of the loop, where nobody would hear an exception."""
        id = fill.entry.id
        if self._fills.get(id) is not fill or fill.comparing is not None:
            return  # evicted, and perhaps made anew
        digest = self._digest_of(origin)
        if digest is None:
            self._complete(fill)
            return
        comparison = WholeComparison(
            self.digests, digest, origin.origin.url, fill.writer, origin, self._comparing
        )
        fill.comparing = asyncio.ensure_future(self._compare(fill, comparison))

    def _digest_of(self, origin: OriginSource) -> Digest | None:
        return self.digests.of(origin.origin.url, origin.key, origin.version)

    async def _compare(self, fill: Fill, comparison: WholeComparison) -> None:
        """Bytes that can't be told right are dropped, and fetched anew when they are wanted."""
        id = fill.entry.id
        try:
            if await comparison.settle():
                await self._on_damaged([id])
            if self._fills.get(id) is not fill:
                raise EvictedError(f"cache file {id:x}", why="it went while it was compared")
        except HeadraceError as error:
            fill.failure = error
            if self._fills.get(id) is fill:
                await self._drop(fill, error)
            return
        self._complete(fill)

    async def _drop(self, fill: Fill, error: HeadraceError) -> None:
        """A whole file that may be wrong."""
        id = fill.entry.id
        level = logging.INFO if isinstance(error, EvictedError | VersionChangedError) else logging.WARNING
        log.log(level, "a whole file that may be wrong is dropped id=%x error=%s", id, error)
        if isinstance(error, CorruptOriginError):
            self._corrupt[id] = (time.monotonic() + CORRUPT_S, error)
            if len(self._corrupt) > CORRUPT_MAX:
                del self._corrupt[next(iter(self._corrupt))]
        self.forget([id])
        self._store.free(id)
        await self._on_damaged([id])
        if isinstance(error, VersionChangedError):
            await self._see_change(fill.entry)

    def _refuse_corrupt(self, id: FileId) -> None:
        until_s, error = self._corrupt.get(id, (0.0, None))
        if error is not None and time.monotonic() < until_s:
            raise error.copied()
        self._corrupt.pop(id, None)

    def _complete(self, fill: Fill) -> None:
        id = fill.entry.id
        del self._fills[id]
        try:
            self._store.complete(fill.writer)
        except EvictedError:
            return
        except StoreError as error:
            log.warning("a whole file can't be committed id=%x error=%s", id, error)
            fill.writer.close()
            fill.failure = error
            return
        fill.committed = True
        self._on_complete([id])

    def _fetch_ahead(self, fill: Fill, start: int, end: int) -> None:
        ahead_start, ahead_end = fill.readahead.asked(start, end)
        if fill.readahead.wants_whole:
            fill.start_whole(start // BLOCK_SIZE_BYTES)
        if ahead_end > ahead_start:
            fill.start(range(start // BLOCK_SIZE_BYTES, -(-ahead_end // BLOCK_SIZE_BYTES)), background=True)

    def _drop_idle(self) -> None:
        if len(self._fills) > FILLS_IDLE_MAX:
            self.forget([id for id, fill in islice(self._fills.items(), FILLS_IDLE_MAX // 4) if fill.idle])
