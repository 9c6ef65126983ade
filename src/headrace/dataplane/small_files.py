"""Fetch small files, of one block, by one read each. Those that arrive together are committed by one transaction."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from headrace.base.errors import NoSpaceError
from headrace.base.group_commit import GroupCommit
from headrace.base.model import Arrived, Entry, FileId
from headrace.dataplane.compare import SmallComparison, WrongBytesError
from headrace.dataplane.intent import ReadIntent
from headrace.dataplane.room import with_room
from headrace.dataplane.source import ByteSource
from headrace.store.store import Store

BATCH_FILES = 16
"""Most files of one transaction."""
BATCH_DELAY_S = 0.005
"""Seconds for which a file of a batch waits for others. A commit takes some 80 µs."""


@dataclass(frozen=True, slots=True)
class _ArrivedFile:
    """Hold a small file with its bytes. is_borrowed: another node owns it."""

    entry: Entry
    arrived: Arrived
    is_borrowed: bool
    comparison: SmallComparison


class SmallFileFetcher:
    """Fetch small files as a whole. arriving: ids of files whose bytes have arrived but are not committed yet."""

    def __init__(self, store: Store, disk: Executor) -> None:
        self._store = store
        self._disk = disk
        self._commits = GroupCommit(self._commit, most=BATCH_FILES, delay_s=BATCH_DELAY_S)
        self.arriving: set[FileId] = set()

    async def fetch(
        self,
        source: ByteSource,
        entry: Entry,
        comparison: SmallComparison,
        intent: ReadIntent,
        *,
        is_borrowed: bool,
    ) -> None:
        """Wait until the file is in the cache. It is fetched again while its bytes don't match its digest. Raises the
        errors of the source and of SmallComparison, and NoSpaceError."""
        size_bytes = entry.version.size_bytes
        while True:
            arrived = Arrived(b"")
            if size_bytes:
                async with source.read(0, size_bytes, intent) as arrived:
                    self.arriving.add(entry.id)
            file = _ArrivedFile(entry, arrived, is_borrowed, comparison)
            try:
                if intent.into_spill:
                    return await self._spill(file)
                return await self._commits.submit(file, soon=not intent.in_batch)
            except WrongBytesError as error:
                comparison.refuse(error)
            except NoSpaceError:
                if intent.into_spill or not intent.may_spill or self._store.spill is None:
                    raise
                return await self._spill(file)
            finally:
                self.arriving.discard(entry.id)

    async def stop(self) -> None:
        await self._commits.stop()

    async def _spill(self, file: _ArrivedFile) -> None:
        """Store a file in the spill: no disk has space for it, or is to have it. Its bytes were compared before."""
        (failure,) = await self._commit([file], spilled=True)
        if failure is not None:
            raise failure from None

    async def _commit(self, files: list[_ArrivedFile], *, spilled: bool = False) -> list[Exception | None]:
        """Commit a batch by one transaction, in the disk pool: the writes of a load would hold the loop for up to 0.1
        s. After a failure each file is committed separately, so that each caller gets only its own error."""
        work = partial(self._keep_right, files, spilled=spilled)
        loop = asyncio.get_running_loop()
        try:
            failures = await with_room(self._store, lambda: loop.run_in_executor(self._disk, work))
        except Exception as error:  # noqa: BLE001 - raised in the caller
            if len(files) == 1:
                return [error]
            return [(await self._commit([file]))[0] for file in files]
        for file, failure in zip(files, failures, strict=True):
            if failure is None:
                file.comparison.keep()
        return failures

    def _keep_right(self, files: list[_ArrivedFile], *, spilled: bool) -> list[Exception | None]:
        """Store the files that match their digests, all or none of them. Return the errors of the others."""
        failures: list[Exception | None] = []
        right: list[_ArrivedFile] = []
        for file in files:
            try:
                file.comparison.check(file.arrived)
                right.append(file)
                failures.append(None)
            except WrongBytesError as error:
                failures.append(error)
        if right:
            self._store.complete_small_many(
                [(file.entry, file.arrived.body) for file in right],
                borrowed={file.entry.id for file in right if file.is_borrowed},
                extras={
                    file.entry.id: file.arrived.extras for file in right if file.arrived.extras is not None
                },
                spilled=spilled,
            )
        return failures
