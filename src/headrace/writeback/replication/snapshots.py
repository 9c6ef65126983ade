"""Take snapshots of the layer's names for replicas. Calls are on the node's loop; files are read in `threads`."""

from __future__ import annotations

import asyncio
import errno
import time

from headrace.base.errors import StoreError
from headrace.base.os_errors import unread_error
from headrace.overlay.snapshot import EntryType, Snapshot, take
from headrace.overlay.syscalls import CTIME_TICK_NS
from headrace.writeback.planner import StepPlanner
from headrace.writeback.preconditions import Preconditions
from headrace.writeback.writable_layer import WritableLayer

CHECKSUMS_CACHED_MAX = 16
"""Most large files whose checksums stay in memory."""
GONE_ERRORS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""Errors that mean that a path has no entry, or is below a file or a link. Others say nothing about the entry."""


class Snapshots:
    """Take snapshots of paths of a layer."""

    def __init__(
        self,
        layer: WritableLayer,
        preconditions: Preconditions,
        planner: StepPlanner,
    ) -> None:
        self._upper = layer.upper
        self._modes = layer.modes
        self._threads = layer.threads
        self._preconditions = preconditions
        self._planner = planner
        self._with_checksums: dict[int, Snapshot] = {}

    async def names(self) -> tuple[list[bytes], dict[bytes, StoreError]]:
        """Return all paths that are replicated, and the errors of those that can't be read, and of directories whose
        names can't."""
        unread: dict[bytes, OSError] = {}

        def walk() -> list[bytes]:
            return [path for path, _ in self._upper.walk(unread=unread) if self._modes.copies(path) > 1]

        names = await asyncio.get_running_loop().run_in_executor(self._threads, walk)
        return names, {path: unread_error(path, error) for path, error in unread.items()}

    async def of(self, path: bytes) -> Snapshot:
        """Return the snapshot of a path. It is GONE if the path is persisted, has no replicas or does not exist. Raises
        StoreError if the entry can't be read now: GONE would delete a replica that is needed."""
        safe_path = self._upper.at(path)
        try:
            status = safe_path.lstat()
            if self._modes.copies(path) < 2 or self._planner.is_persisted(path, status):
                return Snapshot(path, EntryType.GONE)
            replaces = self._preconditions.replaces(path, safe_path, status)
            known = self._with_checksums.get(status.st_ino)
            if known is not None and (known.path, *known.state[1:5]) == (
                *(path, status.st_ino, status.st_ctime_ns, status.st_size, replaces),
            ):
                return known
            loop = asyncio.get_running_loop()
            taken = await loop.run_in_executor(self._threads, take, path, safe_path, replaces)
            self._cache_checksums(taken)
            return taken
        except OSError as error:
            if error.errno not in GONE_ERRORS:
                raise unread_error(path, error) from error
            return Snapshot(path, EntryType.GONE)

    def _cache_checksums(self, taken: Snapshot) -> None:
        """Keep the checksums of a large file until its ctime changes. They are not kept if a change within the same
        tick could go unnoticed."""
        self._with_checksums.pop(taken.inode, None)
        if taken.is_large and time.time_ns() - taken.ctime_ns > CTIME_TICK_NS:
            self._with_checksums[taken.inode] = taken
            if len(self._with_checksums) > CHECKSUMS_CACHED_MAX:
                del self._with_checksums[next(iter(self._with_checksums))]
