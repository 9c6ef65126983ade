"""Manage the fills of large files, from the empty cache file to its commit.

A fill writes to a disk. For a reader of this host it may write to the spill, if no disk has space. A complete file is
compared with the digest that its origin names (compare.py), then committed. A file that may be wrong is dropped.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from functools import partial
from itertools import islice

from headrace.base.clock import monotonic_s
from headrace.base.errors import (
    CorruptOriginError,
    EvictedError,
    HeadraceError,
    NoSpaceError,
    StoreError,
    VersionChangedError,
)
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId
from headrace.dataplane.compare import Digests, WholeComparison, comparing_pool
from headrace.dataplane.fill import Fill, RangeLimits
from headrace.dataplane.intent import ReadIntent
from headrace.dataplane.readahead import ReadAhead
from headrace.dataplane.room import with_room
from headrace.dataplane.settings import ReadSettings
from headrace.dataplane.source import ByteSource, OriginSource, SourceFactory
from headrace.store.room import has_better_disk
from headrace.store.store import Store
from headrace.store.writer import CacheWriter

log = logging.getLogger(__name__)

FILLS_MAX = 1024
"""Number of fills above which idle ones are closed. Each holds a descriptor and a map."""
SPILL_READERS = 8
"""Readers of large files that share the space of the spill."""
CORRUPT_S, CORRUPT_MAX = 30.0, 1000
"""Seconds for which a large file is not fetched again after no two reads agreed on it, as each attempt reads all of it;
and most such files."""


class OpenFills:
    """Hold the fills by file id, on the node's loop. on_complete: called with the ids of committed files. on_damaged:
    makes clients drop the bytes of files. on_changed: handles a file that has another version at its origin."""

    def __init__(
        self,
        store: Store,
        sources: SourceFactory,
        disk: Executor,
        settings: ReadSettings,
        digests: Digests,
        *,
        on_complete: Callable[[list[FileId]], None],
        on_damaged: Callable[[list[FileId]], Awaitable[None]],
        on_changed: Callable[[Entry], Awaitable[None]],
    ) -> None:
        self._store = store
        self._sources = sources
        self._disk = disk
        self._settings = settings
        self._digests = digests
        self._on_complete = on_complete
        self._on_damaged = on_damaged
        self._on_changed = on_changed
        self._limits = RangeLimits(
            max(1, settings.range_bytes // BLOCK_SIZE_BYTES), sources.segment_bytes, sources.in_flight_max
        )
        self._comparing = comparing_pool()
        self._fills: dict[FileId, Fill] = {}
        self._idle_before: dict[FileId, int] = {}
        self._corrupt: dict[FileId, tuple[float, CorruptOriginError]] = {}

    def get(self, id: FileId) -> Fill | None:
        return self._fills.get(id)

    def can_continue(self, id: FileId, intent: ReadIntent) -> bool:
        """Return whether a fill exists that this read can use. A read into the spill can't use one on a disk. A
        background read does not use one in the spill, because loaded files belong on a disk."""
        fill = self._fills.get(id)
        if fill is None or fill.is_closed:
            return False
        is_spilled = fill.volume is self._store.spill
        return not (intent.background if is_spilled else intent.into_spill)

    async def begin(
        self, entry: Entry, path: bytes, source: ByteSource, origin: OriginSource, intent: ReadIntent
    ) -> bool:
        """Begin the fill of a file in a new cache file, or in the incomplete one that exists. Return True if all blocks
        are present and the file is committed. Raises NoSpaceError, and CorruptOriginError shortly after the origin's
        bytes were found corrupt."""
        self._refuse_corrupt(entry.id)
        writer = None if intent.into_spill else self._store.writer(entry.id)
        if writer is None:
            writer = await self._create(entry, path, intent)
        fill = self._fills[entry.id] = Fill(
            *(entry, source, writer),
            store=self._store,
            disk=self._disk,
            limits=self._limits,
            readahead=self._readahead(writer),
            on_last_block=partial(self._finish, origin=origin),
        )
        if writer.complete:  # a crash or an error of the disk preceded the commit
            self._finish(fill, origin=origin)
        if len(self._fills) > FILLS_MAX:
            self.close([id for id, fill in islice(self._fills.items(), FILLS_MAX // 4) if fill.is_idle])
        if fill.failure is not None:
            raise fill.failure
        return fill.is_committed

    def check_spill_room(self, fill: Fill, size_bytes: int) -> None:
        """Raise NoSpaceError for a read of more bytes than the spill can hold for one reader."""
        if fill.volume is self._store.spill and size_bytes > fill.volume.capacity_bytes // 2:
            raise NoSpaceError(
                f"{size_bytes} bytes of a file at one time",
                why="the cache has no space for it, so it is read without being cached",
                hint="give the cache more capacity, or read less at one time",
            )

    def close(self, ids: Iterable[FileId]) -> None:
        """Close the fills of files that were evicted, freed, or are no longer read."""
        for id in ids:
            fill = self._fills.pop(id, None)
            if fill is not None:
                fill.close()

    def leave_failing_disk(self, id: FileId, fill: Fill | None) -> bool:
        """Give a file up whose disk fails, so that it is fetched to another one. Return False if there is none. fill:
        the one that failed, if there is one."""
        volume = None if fill is None else fill.volume
        cached = self._store.index.cached(id)
        if volume is None and cached is not None:
            volume = self._store.volumes[cached.volume]
        if volume is None or not has_better_disk(volume, self._store.disks):
            return False
        if fill is None or self._fills.get(id, fill) is fill:  # else another reader has done so
            self.close([id])
            with contextlib.suppress(StoreError):
                self._store.free(id)
        return True

    def close_idle(self) -> list[FileId]:
        """Close the fills that are idle and got no request since the previous call, and return their ids. The store
        evicts a file with an open writer last."""
        idle = {id: fill.request_count for id, fill in self._fills.items() if fill.is_idle}
        closed = [id for id, count in idle.items() if self._idle_before.get(id) == count]
        self.close(closed)
        self._idle_before = idle
        return closed

    async def stop(self) -> None:
        """Cancel all fills."""
        for fill in list(self._fills.values()):
            await fill.stop()
        self._fills.clear()
        self._comparing.shutdown()

    # ------------------------------------------------------------ the cache file

    async def _create(self, entry: Entry, path: bytes, intent: ReadIntent) -> CacheWriter:
        """Create a cache file on a disk. It is in the spill if the intent requires that, or permits it and no disk has
        space."""
        borrowed = not self._sources.owns(path)

        async def create() -> CacheWriter:
            return self._store.create(entry, borrowed=borrowed, spilled=intent.into_spill)

        try:
            return await with_room(self._store, create)
        except NoSpaceError:
            if intent.into_spill or not intent.may_spill or self._store.spill is None:
                raise
            return self._store.create(entry, borrowed=borrowed, spilled=True)

    def _readahead(self, writer: CacheWriter) -> ReadAhead:
        """Return how far to read ahead. In the spill that is less, and never all of the file: other readers' bytes
        would be pushed out."""
        size_bytes, settings = writer.version.size_bytes, self._settings
        window_bytes, whole_after_bytes = settings.readahead_bytes, settings.whole_file_after_bytes
        if writer.volume is self._store.spill:
            window_bytes = min(window_bytes, writer.volume.capacity_bytes // SPILL_READERS)
            whole_after_bytes = size_bytes + 1
        return ReadAhead(size_bytes, window_bytes_max=window_bytes, whole_file_after_bytes=whole_after_bytes)

    # ------------------------------------------------------------ the end of a fill

    def _finish(self, fill: Fill, *, origin: OriginSource) -> None:
        """Compare a complete file, and commit it. Runs in a callback of the loop, where an exception would be lost."""
        if self._fills.get(fill.entry.id) is not fill or fill.is_comparing:
            return  # evicted, and perhaps created again
        digest = self._digests.of(origin.mount.origin.url, origin.key, origin.version)
        if digest is None:
            self._commit(fill)
            return
        comparison = WholeComparison(self._digests, digest, fill.writer, origin, self._comparing)
        fill.compare(self._compare(fill, comparison))

    async def _compare(self, fill: Fill, comparison: WholeComparison) -> None:
        """Commit the file after its comparison. Drop it if its bytes can't be confirmed."""
        id = fill.entry.id
        try:
            if await comparison.run():
                await self._on_damaged([id])
            if self._fills.get(id) is not fill:
                raise EvictedError(f"cache file {id:x}", why="it was evicted while it was compared")
        except HeadraceError as error:
            await self._refuse(fill, error)
        except Exception:  # otherwise nobody could commit this file, or begin it anew
            log.exception("a complete file could not be compared id=%x", id)
            await self._refuse(fill, StoreError(f"cache file {id:x}", why="it could not be compared"))
        else:
            self._commit(fill)

    async def _refuse(self, fill: Fill, error: HeadraceError) -> None:
        fill.fail(error)
        if self._fills.get(fill.entry.id) is fill:
            await self._drop(fill, error)

    def _commit(self, fill: Fill) -> None:
        """Commit the file, and report it as complete."""
        is_committed = fill.commit()
        if is_committed or fill.is_closed:
            del self._fills[fill.entry.id]
        if is_committed:
            self._on_complete([fill.entry.id])

    async def _drop(self, fill: Fill, error: HeadraceError) -> None:
        """Delete a complete file that may be wrong; the next reader fetches it again."""
        id = fill.entry.id
        level = logging.INFO if isinstance(error, EvictedError | VersionChangedError) else logging.WARNING
        log.log(level, "a complete file that may be wrong is dropped id=%x error=%s", id, error)
        if isinstance(error, CorruptOriginError):
            self._corrupt[id] = (monotonic_s() + CORRUPT_S, error)
            if len(self._corrupt) > CORRUPT_MAX:
                del self._corrupt[next(iter(self._corrupt))]
        self.close([id])
        self._store.free(id)
        await self._on_damaged([id])
        if isinstance(error, VersionChangedError):
            await self._on_changed(fill.entry)

    def _refuse_corrupt(self, id: FileId) -> None:
        """Raise the recent CorruptOriginError of a file."""
        until_s, error = self._corrupt.get(id, (0.0, None))
        if error is not None and monotonic_s() < until_s:
            raise error.copied()
        self._corrupt.pop(id, None)
