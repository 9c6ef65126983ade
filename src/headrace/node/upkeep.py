"""Keep up a node's cache in the background: evict ahead of need, end idle fills, sync, watch the disks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from headrace.base.errors import CorruptIndexError, HeadraceError
from headrace.base.tasks import OwnedTasks
from headrace.dataplane.read import ReadPath
from headrace.store.room import has_better_disk
from headrace.store.store import Store
from headrace.writeback.writeback import WriteBack

if TYPE_CHECKING:
    from headrace.node.cluster_services import ClusterServices

log = logging.getLogger(__name__)

UPKEEP_INTERVAL_S = 1.0
SYNC_INTERVAL_S = 30.0
IDLE_FILL_S = 15.0


class Upkeep:
    """Runs one task. disk: the threads for blocking work. on_corrupt: gets the error of a damaged index, once a
    second. write, cluster: None for a node that writes nothing, or has no cluster. revoke_seal: removes a seal, so
    that its files can be evicted, and returns whether there was one. release_seals: the same for removed seals that
    nobody reads any more."""

    def __init__(
        self,
        store: Store,
        reads: ReadPath,
        disk: Executor,
        *,
        write: WriteBack | None,
        cluster: ClusterServices | None,
        revoke_seal: Callable[[], Awaitable[bool]],
        release_seals: Callable[[], Awaitable[bool]],
        on_corrupt: Callable[[CorruptIndexError], None],
    ) -> None:
        self._store = store
        self._reads = reads
        self._disk = disk
        self._write = write
        self._cluster = cluster
        self._revoke_seal = revoke_seal
        self._release_seals = release_seals
        self._on_corrupt = on_corrupt
        self._tasks = OwnedTasks()
        self.disks_full: list[str] = []
        """Directories of the disks that are full now."""
        self._disks_failing: list[str] = []
        self.disks_spent: list[str] = []
        """Directories of the disks to which the cache has written as much as it may in a day."""

    def start(self) -> None:
        self._check_disks()
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        synced_s = dropped_s = time.monotonic()
        while True:
            await asyncio.sleep(UPKEEP_INTERVAL_S)
            self._check_disks()
            try:
                await self._attempt(self._evict)
                if time.monotonic() - dropped_s > IDLE_FILL_S:
                    dropped_s = time.monotonic()
                    await self._attempt(self._drop_idle)
                if time.monotonic() - synced_s > SYNC_INTERVAL_S:
                    synced_s = time.monotonic()
                    await self._attempt(self._release_seals)
                    await self._attempt(self._sync)
            except CorruptIndexError as error:
                self._on_corrupt(error)

    async def _attempt(self, step: Callable[[], Awaitable[object]]) -> None:
        """Run one step. Its failure is logged, and keeps no other step from its work: the store is synced also while
        the disk of the seals fails. Raises CorruptIndexError alone."""
        try:
            await step()
        except CorruptIndexError:
            raise
        except (HeadraceError, OSError) as error:
            log.warning("the periodic upkeep failed error=%s", error)
        except Exception:
            log.exception("the periodic upkeep failed")  # eviction and sync must continue

    async def _evict(self) -> None:
        self._store.keep_room()
        self._store.space.set_written(self._bytes_written())
        while self._store.space.evict_if_needed():  # noqa: ASYNC110 - steps; others have their turn between
            await asyncio.sleep(0)
        if self._store.space.is_short() and not await self._release_seals():
            await self._revoke_seal()

    async def _drop_idle(self) -> None:
        """End fills that nobody reads any more."""
        incomplete = self._reads.close_idle()
        if self._cluster is not None:
            self._cluster.note_fetched(incomplete)

    async def _sync(self) -> None:
        """Sync filled files, so that a power loss costs little."""
        await asyncio.get_running_loop().run_in_executor(self._disk, self._store.sync)
        if self._cluster is not None:
            await self._cluster.replica_host.drop_idle()
            await self._cluster.replica_host.measure()
            await self._cluster.check_failover()

    def _bytes_written(self) -> int:
        """Return the bytes on the first volume beside the cache: dirty files of this host, and replicas of other
        nodes' files."""
        own = 0 if self._write is None else self._write.upper_bytes
        return own + (0 if self._cluster is None else self._cluster.replica_host.bytes_kept)

    def _check_disks(self) -> None:
        was_full = self.disks_full
        self.disks_full = [volume.folder for volume in self._store.disks if volume.disk_is_full]
        for directory in self.disks_full:
            if directory not in was_full:
                log.warning(
                    "a cache disk is full, files are not cached until it has space folder=%s", directory
                )
        for directory in was_full:
            if directory not in self.disks_full:
                log.warning("a cache disk has space again folder=%s", directory)
        self._check_failures()
        self._check_writes()

    def _check_failures(self) -> None:
        """Warn of a disk that fails while others take its files; where it is the only one, requests fail."""
        were_failing = self._disks_failing
        disks = self._store.disks
        self._disks_failing = [volume.folder for volume in disks if has_better_disk(volume, disks)]
        for directory in self._disks_failing:
            if directory not in were_failing:
                log.warning("a cache disk fails, other disks get its new files folder=%s", directory)

    def _check_writes(self) -> None:
        """Warn once, each time that the writes of a day of some disk are used up."""
        were_spent = self.disks_spent
        self.disks_spent = [volume.folder for volume in self._store.disks if volume.is_spent]
        for directory in self.disks_spent:
            if directory not in were_spent:
                log.warning(
                    "a cache disk has had its writes of a day, other files are read past it folder=%s",
                    directory,
                )
