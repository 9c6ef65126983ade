"""Read all cached files slowly and compare them with their checksums, to find rotten bytes before a job reads them.

The kernel serves cache files without Headrace, so nothing else would notice. Bad blocks are dropped as by `fsck`, all
sessions are notified, and the blocks are fetched again from peers or the origin. Then the scrub reads files that were
written here and are persisted (`scrub_written.py`). It never touches dirty files. Its progress and its findings are
kept across restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import msgspec

from headrace.base.beneath import SafePath
from headrace.base.boot_clock import Moment
from headrace.base.decoding import decode_msgpack
from headrace.base.errors import HeadraceError
from headrace.base.idle_priority import take_idle_priority
from headrace.base.model import Entry, FileId
from headrace.base.tasks import OwnedTasks
from headrace.store.disk_reader import verify_on_disk
from headrace.store.recovery import bad_blocks
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.writeback.scrub_written import WrittenFilesOfScrub, read_sums
from headrace.writeback.sync_journal import JournalRecord

log = logging.getLogger(__name__)

PASS_S_MIN = 3600.0
"""Least time between two passes, in seconds, for a small cache."""
FILE_BYTES_MIN = 128 << 10
"""Least bytes that a file counts as, because opening a small file costs more than reading it."""
SAVE_S = 10.0
DAMAGED_KEPT = 16
META = b"scrub"


class ScrubProgress(msgspec.Struct):
    """Hold the progress, which is kept in the index. after: the id that was checked last; 0 if no pass is running.
    files, size_bytes: of this pass. ended: when the last pass ended; ended_at: the same as text."""

    after: int = 0
    files: int = 0
    size_bytes: int = 0
    passes: int = 0
    ended: Moment | None = None
    ended_at: str = ""
    files_damaged: int = 0
    files_repaired: int = 0
    last_damaged: list[str] = []


class _StoppedError(Exception):
    """Report that the node stops."""


class ScrubPace:
    """Limit the bytes that the scrub's thread reads per second."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._due_s = 0.0
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def spend(self, count: int) -> None:
        """Wait until that many bytes may be read."""
        self._due_s = max(self._due_s, time.monotonic()) + count / self._bytes_s
        if self._stopped.wait(max(0.0, self._due_s - time.monotonic())):
            raise _StoppedError


class Scrub:
    """Scrub the cache, on the node's loop; a thread of its own reads the files.

    bytes_s: above 0. load: loads a whole file into the cache. on_damaged: makes clients drop files. entry_of: returns
    the index's entry of a path. written: the files that were written here; None on a node without writes.
    """

    def __init__(
        self,
        store: Store,
        bytes_s: float,
        *,
        load: Callable[[Entry], Awaitable[object]],
        on_damaged: Callable[[list[FileId]], Awaitable[None]],
        entry_of: Callable[[bytes], Entry | None] = lambda path: None,
        written: WrittenFilesOfScrub | None = None,
        pass_s_min: float = PASS_S_MIN,
    ) -> None:
        self._store = store
        self._bytes_s = bytes_s
        self._pace = ScrubPace(bytes_s)
        self._load, self._on_damaged = load, on_damaged
        self._entry_of, self._written = entry_of, written
        self._pass_s_min = pass_s_min
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scrub", initializer=take_idle_priority)
        self._progress = _saved(store)
        self._saved_s = time.monotonic()
        self._tasks = OwnedTasks()

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        """Save the progress and stop."""
        self._pace.stop()
        await self._tasks.close()
        self._thread.shutdown()
        with contextlib.suppress(HeadraceError):
            self._save()

    def statistics(self) -> dict[str, object]:
        progress = self._progress
        return {
            "bytes_s": self._bytes_s,
            "files_checked": progress.files,
            "bytes_checked": progress.size_bytes,
            "passes": progress.passes,
            "last_pass_ended": progress.ended_at,
            "files_damaged": progress.files_damaged,
            "files_repaired": progress.files_repaired,
            "last_damaged": progress.last_damaged,
        }

    async def _run(self) -> None:
        while True:
            progress = self._progress
            if not progress.after and progress.ended is not None:
                await asyncio.sleep(max(0.0, self._pass_s_min - progress.ended.age_s()))
            try:
                await self._pass()
            except _StoppedError:
                return
            except Exception:
                log.exception("scrub failed")  # and must go on
                self._progress.after += 1
                await asyncio.sleep(SAVE_S)

    async def _pass(self) -> None:
        """Run a pass from its beginning, or from the place where the last one was interrupted."""
        if not self._progress.after:
            self._progress = msgspec.structs.replace(self._progress, files=0, size_bytes=0)
        while files := self._store.index.cached_batch(self._progress.after):
            for file in files:
                try:
                    await self._check(file.id)
                except (HeadraceError, OSError) as error:  # the next pass tries it again
                    log.warning("a cached file can't be compared id=%x error=%s", file.id, error)
                self._progress.after = file.id
                if time.monotonic() - self._saved_s > SAVE_S:
                    self._save()
        await self._check_written()
        self._progress.after = 0
        self._progress.passes += 1
        self._progress.ended, self._progress.ended_at = (
            Moment.now(),
            datetime.now(UTC).isoformat("T", "seconds"),
        )
        self._save()

    async def _check(self, id: FileId) -> None:
        cached = self._store.index.cached(id)
        if cached is None or self._store.volumes[cached.volume] is self._store.spill:
            return
        blocks = await asyncio.get_running_loop().run_in_executor(self._thread, self._drop_bad_blocks, cached)
        self._progress.files += 1
        self._progress.size_bytes += cached.size_bytes
        if blocks is None or blocks:
            await self._repair(cached, "all of it" if blocks is None else f"{len(blocks)} blocks")

    def _drop_bad_blocks(self, cached: CachedFile) -> list[int] | None:
        """Check a file in the scrub's thread. Return the bad blocks, which are dropped; None if the whole file is
        dropped."""
        self._pace.spend(max(0, FILE_BYTES_MIN - cached.size_bytes))
        verify = partial(verify_on_disk, before_read=self._pace.spend)
        blocks = bad_blocks(self._store.volumes[cached.volume], cached, verify=verify)
        return self._store.verifier.settle(cached, blocks)

    async def _repair(self, cached: CachedFile, lost: str) -> None:
        """Fetch a file again whose bad blocks were dropped. Sessions forget it first."""
        path = os.fsdecode(self._store.index.path_of(cached.id) or b"")
        log.warning(
            "a cached file does not match its checksums, it is fetched again path=%s lost=%s", path, lost
        )
        self._progress.files_damaged += 1
        self._progress.last_damaged = [*self._progress.last_damaged, path][-DAMAGED_KEPT:]
        await self._on_damaged([cached.id])
        entry = self._store.index.entry(cached.id)
        if entry is not None:  # otherwise its name has another version by now
            try:
                await self._load(entry)
                if cached.pinned:
                    self._store.pin(cached.id, True)
                self._progress.files_repaired += 1
            except HeadraceError as error:
                log.warning(
                    "a damaged file was not fetched again, its next read fetches it path=%s error=%s",
                    path,
                    error,
                )
        self._save()

    async def _check_written(self) -> None:
        if self._written is None:
            return
        for row in self._written.rows():
            try:
                await self._check_row(self._written, row)
            except (HeadraceError, OSError) as error:
                path = os.fsdecode(row.path)
                log.warning("a written file can't be compared path=%s error=%s", path, error)
        self._written.ended()

    async def _check_row(self, written: WrittenFilesOfScrub, row: JournalRecord) -> None:
        sums = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._read_written, written.locate(row.path), row
        )
        self._progress.files += sums is not None
        self._progress.size_bytes += 0 if sums is None else row.size_bytes
        if not written.is_damaged(row, sums):
            return
        path = os.fsdecode(row.path)
        log.warning("a written file was damaged on the disk after it was persisted path=%s", path)
        self._progress.files_damaged += 1
        self._progress.last_damaged = [*self._progress.last_damaged, path][-DAMAGED_KEPT:]
        self._save()
        if not await written.drop(row):
            log.warning(
                "a damaged file is kept, because it is open or the origin has another version path=%s", path
            )
            return
        entry = self._entry_of(row.path)
        if entry is not None:
            await self._load(entry)
            self._progress.files_repaired += 1
        self._save()

    def _read_written(self, path: SafePath, row: JournalRecord) -> list[int] | None:
        self._pace.spend(max(0, FILE_BYTES_MIN - row.size_bytes))
        return read_sums(path, row, self._pace.spend)

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        self._store.index.state.put(META, msgspec.msgpack.encode(self._progress))


def _saved(store: Store) -> ScrubProgress:
    try:
        return decode_msgpack(store.index.state.get(META) or b"", ScrubProgress)
    except msgspec.MsgspecError:
        return ScrubProgress()
