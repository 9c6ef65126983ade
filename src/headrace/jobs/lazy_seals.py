"""Renew lazy seals after their missing files were loaded, by a job or by readers.
A seal is renewed in part, too, when some of its files have arrived and no more arrive.

A view of a lazy seal reads missing files through a layer that a process serves (`fuse/lazy_main.py`). The image of a
complete seal names cache files only. `headrace up` mounts it over the earlier view (`SealMounts`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial

import msgspec

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, StoreError, VersionChangedError
from headrace.base.model import ROOT_ID, Entry, FileId, Kind
from headrace.base.tasks import OwnedTasks
from headrace.jobs.files import FileWork, LoadJob
from headrace.jobs.missing_files import (
    MissingFiles,
    current_id,
    files_of,
    is_sealed_version,
    is_whole,
    sealed_version,
)
from headrace.jobs.progress import JobProgress, each_file
from headrace.jobs.seal import Sealing
from headrace.namespace.namespace import Namespace
from headrace.seal.catalogue import Catalogue, SealId, SealRecord
from headrace.seal.snapshot import SnapshotEntry
from headrace.store.store import Store

log = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
QUIET_S = 60.0
"""A seal is renewed in part if nothing has arrived for so long."""
AGAIN_S_MAX = 256.0
"""A renewal that fails is tried again after a second, and after twice the time whenever it fails again."""
ARRIVED_SHARE = 0.1
"""Least share of the missing files that must have arrived then, because a renewal takes 12 s per million files."""
COUNT_SHARE = 0.005
"""Largest share of a processor that counting the missing files takes."""


class LazySeals:
    """Renews the lazy seals whose files have arrived, in one task."""

    def __init__(
        self,
        namespace: Namespace,
        store: Store,
        files: FileWork,
        catalogue: Catalogue,
        sealing: Sealing,
        missing: MissingFiles,
    ) -> None:
        self._namespace = namespace
        self._store = store
        self._files = files
        self._catalogue = catalogue
        self._sealing = sealing
        self._missing = missing
        self._renewing = threading.Lock()
        self._counts: dict[SealId, tuple[int, float]] = {}
        """The number of files that each seal lacks, and the time since which it lacks them."""
        self._failures: dict[SealId, tuple[int, float]] = {}
        """Failures in a row of the renewal of each seal, and the time until which it is not tried again."""
        self._tasks = OwnedTasks()

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    async def complete(self, seal: SealId, progress: JobProgress) -> None:
        """Load the missing files of a lazy seal, and renew it durably. If a file fails, `progress` has it and the seal
        stays as it is. A complete seal stays as it is, too. Raises PathNotFoundError, InvalidImageError or
        NoSpaceError."""
        record = await self._sealing.in_thread(self._catalogue.record, seal)
        progress.listing = False
        if not record.is_lazy:
            return
        progress.files_total = record.missing
        await each_file(self._missing_files(record), lambda entry: self._load(record, entry), progress)
        if not progress.failed_files:
            await self._sealing.in_thread(progress.finish, self._renew, record)

    async def _missing_files(self, record: SealRecord) -> AsyncIterator[tuple[bytes, Entry]]:
        for entry, id in files_of(self._catalogue, record):
            if entry.is_missing:
                yield entry.path, Entry(id, ROOT_ID, entry.path, Kind.FILE, sealed_version(entry))

    async def _load(self, record: SealRecord, wanted: Entry) -> int:
        """Load a file at its sealed version."""
        sealed = SnapshotEntry(wanted.name, 0, wanted.version.size_bytes, wanted.version.mtime_ns)
        sealed = msgspec.structs.replace(sealed, token=wanted.version.token)
        id = current_id(self._store.index, record.path, sealed, wanted.id)
        if id is None:
            path = os.path.join(os.fsencode(record.path), wanted.name)
            entry = await self._namespace.resolver.resolve(path)
            if not is_sealed_version(sealed, entry.version):
                raise VersionChangedError(
                    "the file changed at its origin after it was sealed", hint="seal the directory again"
                )
            id = entry.id
        if id != wanted.id:
            self._store.sealed.add([id])
        size_bytes = await self._files.load(
            msgspec.structs.replace(wanted, id=id), job=LoadJob(f"seal {record.path}")
        )
        if not is_whole(self._store, id):
            raise StoreError("seal", why="no disk of the cache has room for the file")
        return size_bytes

    async def _run(self) -> None:
        count_at_s = monotonic_s()
        while True:
            try:
                for record in await self._whole():
                    await self._try_renew(record)
                began_s = monotonic_s()
                if began_s >= count_at_s and self._missing.may_lack():
                    await self._sealing.in_thread(self._missing.count_again)
                    count_at_s = began_s + (monotonic_s() - began_s) / COUNT_SHARE
                    await self._renew_quiet()
            except (HeadraceError, OSError) as error:
                log.warning("a lazy seal could not be renewed error=%s", error)
            except Exception:
                log.exception("a lazy seal could not be renewed")  # the next round may succeed
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _whole(self) -> list[SealRecord]:
        """Return the lazy seals whose files have all arrived."""
        return await self._sealing.in_thread(self._missing.check) if self._missing.may_lack() else []

    async def _renew_quiet(self) -> None:
        """Renew the seals whose missing files have stopped arriving: the files that arrived no longer need the
        layer."""
        now_s, before = monotonic_s(), self._counts
        self._counts = {}
        for seal, count in self._missing.counts().items():
            last_count, since_s = before.get(seal, (-1, now_s))
            self._counts[seal] = count, since_s if count == last_count else now_s
            if now_s - self._counts[seal][1] < QUIET_S:
                continue
            record = await self._sealing.in_thread(self._catalogue.record, seal)
            if record.missing - count >= max(1, ARRIVED_SHARE * record.missing):
                await self._try_renew(record, in_part=True)

    async def _try_renew(self, record: SealRecord, *, in_part: bool = False) -> None:
        """Renew a seal. After a failure, as on a full disk, wait before the next attempt: each writes a whole list."""
        seal = record.seal
        failures, again_s = self._failures.get(seal, (0, 0.0))
        if monotonic_s() < again_s:
            return
        try:
            await self._sealing.in_thread(partial(self._renew, record, in_part=in_part))
            self._failures.pop(seal, None)
        except (HeadraceError, OSError) as error:
            pause_s = min(AGAIN_S_MAX, 2.0**failures)
            self._failures[seal] = failures + 1, monotonic_s() + pause_s
            log.warning(
                "a lazy seal could not be renewed seal=%s again_s=%.0f error=%s", seal, pause_s, error
            )

    def _renew(self, record: SealRecord, *, in_part: bool = False) -> None:
        """Write the list and the image of the next generation, durably. in_part: some files may still be missing;
        otherwise a missing file raises StoreError. If another thread renewed the seal meanwhile, nothing is written."""
        try:
            with self._renewing:
                if self._catalogue.record(record.seal) != record:
                    return
                renewed = msgspec.structs.replace(record, generation=record.generation + 1)
                self._sealing.renew(renewed, self._rows(record, in_part=in_part))
                log.info("a lazy seal was renewed seal=%s", record.seal)
        finally:
            self._missing.forget(record.seal)
        self._missing.check()

    def _rows(self, record: SealRecord, *, in_part: bool) -> Iterator[tuple[SnapshotEntry, int]]:
        ids = iter(self._catalogue.ids(record))
        for entry in self._catalogue.entries(record):
            id = FileId(next(ids)) if entry.is_file else FileId(0)
            if not entry.is_missing:
                yield entry, id
                continue
            current = current_id(self._store.index, record.path, entry, id)
            if current is None or not is_whole(self._store, current):
                if in_part:
                    yield entry, current or id
                    continue
                raise StoreError(f"seal: {os.fsdecode(entry.path)}", why="the cache lacks the file")
            wanted = Entry(current, ROOT_ID, entry.path, Kind.FILE, sealed_version(entry))
            checksum = self._sealing.checksum(os.fsdecode(entry.path), wanted)
            yield msgspec.structs.replace(entry, checksum=checksum), current
