"""Move clean files from the upper layer to the cache. This happens when the layer takes too much of the disk, or when
the cache needs them for a load or another node. A rename makes the file itself the cache file, so it is not fetched
from the origin. It can then be evicted like any other.

A file is moved only while no process has it open or mapped: the kernel grants a lease for that (fcntl(2), F_SETLEASE).
Sessions open names of the layer under the layer's lock, which this code holds, too. Attributes that the origin cannot
store are lost, as docs/semantics/names.md says. A file with a user's extended attributes stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterable

from headrace.base.beneath import Pin, SafePath
from headrace.base.clock import wall_s
from headrace.base.errors import HeadraceError, NoSpaceError, PathNotFoundError
from headrace.base.file_leases import may_be_open
from headrace.base.model import Entry, FileId, block_count
from headrace.base.namespace_path import split
from headrace.base.sizes import disk_bytes
from headrace.base.tasks import OwnedTasks
from headrace.namespace.tree import NameTree
from headrace.overlay.hiding import is_removal_pending
from headrace.overlay.kept_times import keeping_times
from headrace.overlay.mark_names import HIDDEN_FROM_USERS, MARKS
from headrace.overlay.marks import base_version
from headrace.overlay.upper import Upper
from headrace.store.checksum import block_checksums
from headrace.store.store import Store
from headrace.writeback.preconditions import head_deadline
from headrace.writeback.sync_journal import JournalRecord
from headrace.writeback.upper_quota import UpperQuota
from headrace.writeback.writable_layer import WritableLayer

log = logging.getLogger(__name__)

CACHE_MODE = 0o600
"""Mode of a cache file."""
DEMOTE_NOW_BYTES_MAX = 1 << 30
"""Largest file that `demote` moves. All of it is read before its first byte can be served: half a second or more per
GiB."""
COPY_KEPT_NS = 2_000_000_000
"""Time for which an unchanged copy of the origin's file stays, in nanoseconds. A program asked for it: the kernel is
about to look it up again, only once, and then to open it."""
Take = Callable[[SafePath], bool]
"""Move a file of the layer away from its place. Return False if it stays."""


class Demoter:
    """Move clean files from the upper layer to the cache.

    store: the cache that takes them, on the same disk; None to delete them. owns: returns whether this node is an owner
    of a path. on_demoted: called with paths that left the layer. on_adopted: called with files that the cache took.
    """

    def __init__(
        self,
        layer: WritableLayer,
        tree: NameTree,
        quota: UpperQuota,
        *,
        store: Store | None,
        owns: Callable[[bytes], bool],
        on_demoted: Callable[[list[bytes]], None],
        on_adopted: Callable[[list[FileId]], None] = lambda ids: None,
    ) -> None:
        self._layer = layer
        self._upper = layer.upper
        self._journal = layer.journal
        self._threads = layer.threads
        self._tree = tree
        self.quota = quota
        self._store = store
        self._owns = owns
        self._on_demoted = on_demoted
        self._on_adopted = on_adopted
        self._tasks = OwnedTasks()
        self._reads = OwnedTasks(Exception)  # a failure is that of the read
        self._is_stopped = False
        self.count = 0
        """Number of files that left the layer since the start."""

    def begin(self, clean: list[tuple[JournalRecord, os.stat_result]]) -> None:
        """Start to demote clean files in the background if the layer exceeds its limit."""
        surplus_bytes = self.quota.surplus_bytes
        if surplus_bytes > 0 and not self._tasks:
            self._tasks.start(self.demote_clean(clean, surplus_bytes))

    async def stop(self) -> None:
        """Demote no more files. On return no demotion uses the layer: reads for other nodes go on until the node has
        left the cluster."""
        self._is_stopped = True
        await self._tasks.close()
        await self._reads.wait()

    async def demote_clean(
        self, clean: list[tuple[JournalRecord, os.stat_result]], bytes_wanted: int
    ) -> None:
        """Move that many bytes of clean files out of the layer, beginning with the oldest writes. A file that fails
        stays, and the others are moved."""
        clean = [(row, status) for row, status in clean if not self._layer.is_exclusive(row.path)]
        rows = {row.path: row for row, _ in clean}
        for path in choose(clean, bytes_wanted):
            try:
                await self._demote_one(rows[path])
            except (HeadraceError, OSError) as error:
                log.warning("a clean file was not demoted path=%s error=%s", os.fsdecode(path), error)

    async def demote(self, path: bytes, entry: Entry) -> bool:
        """Move a clean file into the cache. Return whether the cache has that version now."""
        if self._is_stopped:
            return False
        row, store = self._journal.get(path), self._store
        if store is None or row is None or row.begun or row.version != entry.version:
            return False
        if self._layer.is_exclusive(path):
            return False
        if row.size_bytes > DEMOTE_NOW_BYTES_MAX:
            return False
        try:
            await self._reads.start(self._demote_one(row))
        except OSError as error:
            log.warning("a clean file was not demoted path=%s error=%s", os.fsdecode(path), error)
            return False
        return _is_cached(store, entry)

    async def drop_damaged(self, row: JournalRecord) -> bool:
        """Delete a clean file whose bytes are damaged, if the origin still has its version. Return whether it was
        deleted. Raises HeadraceError if the origin does not answer."""
        place = self._tree.mounts.find(row.path)
        if place is None or self._layer.is_exclusive(row.path):
            return False
        try:
            info = await place[0].origin.head(place[1], deadline=head_deadline())
        except PathNotFoundError:
            return False
        if info.version != row.version:
            return False
        freed = remove_clean_file(self._upper, row, self._is_shown(row), keep_users=True)
        self._record_demoted(row.path, freed)
        return freed > 0

    def _record_demoted(self, path: bytes, freed: int) -> None:
        """Record a file that left the layer. freed: the bytes that this freed; 0 if it stayed."""
        if freed:
            self._journal.drop_demoted(path)
            self.quota.left(freed)
            self.count += 1
            self._on_demoted([path])

    async def _demote_one(self, row: JournalRecord) -> None:
        self._record_demoted(row.path, await self._move(row))

    async def _move(self, row: JournalRecord) -> int:
        """Move a file to the cache, or delete it if the cache has it already. Return the bytes that this freed."""
        entry = self._tree.entry_at(row.path)
        if entry is None or entry.version != row.version:
            return 0
        store = self._store

        def remove(take: Take | None = None) -> int:
            def work() -> int:
                return remove_clean_file(self._upper, row, self._is_shown(row), take=take, keep_users=True)

            return work() if store is None else store.reserve.spend(work)

        if store is None or _is_cached(store, entry):
            await asyncio.sleep(0)
            return remove()
        loop = asyncio.get_running_loop()
        sums = await loop.run_in_executor(self._threads, checksums_of, self._upper.at(row.path), row)
        if sums is None:
            return 0
        borrowed = not self._owns(row.path)

        def adopt(safe_path: SafePath) -> bool:
            return store.adopt(entry, safe_path, sums, borrowed=borrowed)

        try:
            freed = remove(adopt)
        except NoSpaceError:  # the cache would evict it next
            return remove()
        except HeadraceError as error:
            log.warning("a clean file was not demoted path=%s error=%s", os.fsdecode(row.path), error)
            return 0
        if freed:
            self._on_adopted([entry.id])
        return freed

    def _is_shown(self, row: JournalRecord) -> Callable[[bytes], bool]:
        """Return a check of whether the index has the row's version at a path."""

        def shown(path: bytes) -> bool:
            entry = self._tree.entry_at(path)
            return entry is not None and entry.version == row.version

        return shown


def _is_cached(store: Store, entry: Entry) -> bool:
    cached = store.index.cached(entry.id)
    return cached is not None and cached.trusted and store.holds(cached)


def checksums_of(safe_path: SafePath, row: JournalRecord) -> list[int] | None:
    """Return the checksums of a clean file's blocks; None if it is no longer clean. A later change shows in its ctime.
    Reads the whole file."""
    fd = row.open(safe_path)
    if fd is None:
        return None
    try:
        count = block_count(row.size_bytes)
        sums = [sum for sum in block_checksums(fd, row.size_bytes, range(count)) if sum is not None]
        return sums if len(sums) == count else None  # the file was truncated
    except OSError as error:
        log.warning("a clean file can't be read path=%s error=%s", os.fsdecode(row.path), error)
        return None
    finally:
        os.close(fd)


def choose(rows: Iterable[tuple[JournalRecord, os.stat_result]], bytes_wanted: int) -> list[bytes]:
    """Return paths of clean files, oldest writes first, that have that many bytes together."""
    paths: list[bytes] = []
    for row, status in sorted(rows, key=lambda pair: pair[1].st_mtime_ns):
        if bytes_wanted <= 0:
            break
        paths.append(row.path)
        bytes_wanted -= disk_bytes(status)
    return paths


def remove_clean_file(
    upper: Upper,
    row: JournalRecord,
    is_shown: Callable[[bytes], bool],
    *,
    take: Take | None = None,
    keep_users: bool = False,
) -> int:
    """Remove a clean file from the layer. Return the bytes that this frees, at least 1; 0 if the file is in use, was
    written or copied up just now, or has other names.

    is_shown: whether the index has the row's version at the path, so that the name stays visible. take: moves the
    file away; None deletes it. keep_users: keep a file with a user's extended attributes.
    """
    safe_path = upper.at(row.path)
    with upper.lock:
        try:
            fd = safe_path.open(os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return 0
        try:
            if _may_leave(upper, fd, row, is_shown, keep_users=keep_users):
                return _remove_opened(upper, safe_path, fd, take)
        finally:
            os.close(fd)
    return 0


def _may_leave(
    upper: Upper, fd: int, row: JournalRecord, is_shown: Callable[[bytes], bool], *, keep_users: bool
) -> bool:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or not row.describes(status):
        return False
    if may_be_open(fd) or _is_new_copy(fd, row.path, status) or not is_shown(row.path):
        return False
    if keep_users and _has_attributes(fd):
        return False
    # otherwise a removed directory came back with it, and the node has not handled that yet
    return not is_removal_pending(upper, row.path)


def _remove_opened(upper: Upper, safe_path: SafePath, fd: int, take: Take | None) -> int:
    """Remove a file that may leave. Return the bytes that this frees, at least 1; 0 if `take` refuses."""
    freed = max(disk_bytes(os.fstat(fd)), 1)
    upper.mark_demoted(split(safe_path.path)[0])
    with keeping_times(safe_path.parent):  # for programs the name stays where it was
        if take is None:
            safe_path.unlink()
            if os.fstat(fd).st_nlink == 0:  # else another user exchanged the name just now
                with contextlib.suppress(OSError):  # its bytes go when it is closed, too
                    os.truncate(Pin(fd).proc_path, 0)
        elif take(safe_path):
            _apply_cache_attributes(fd)
        else:
            return 0
    return freed


def _apply_cache_attributes(fd: int) -> None:
    """Give a file the owner and mode of a cache file. The index keeps its own."""
    if not MARKS.single_owner:
        os.fchown(fd, os.geteuid(), os.getegid())
    os.fchmod(fd, CACHE_MODE)


def _has_attributes(fd: int) -> bool:
    """Return whether a file has extended attributes of a user."""
    return any(
        name.startswith("user.") and not name.startswith(HIDDEN_FROM_USERS) for name in os.listxattr(fd)
    )


def _is_new_copy(fd: int, path: bytes, status: os.stat_result) -> bool:
    """Return whether a file was copied up just now, and has the time of its base still. It may have been uploaded as it
    is. Raises OSError if that can't be read."""
    age_ns = int(wall_s() * 1e9) - status.st_ctime_ns
    base = base_version(fd, path) if 0 <= age_ns < COPY_KEPT_NS else None
    return base is not None and status.st_mtime_ns == base.mtime_ns
