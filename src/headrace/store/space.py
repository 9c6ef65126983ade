"""Give space on the volumes to files that are filled, and evict others for it.

The lock is the registry's. Only the thread that constructed the space reports evictions: files that another thread
evicts are reported at its next call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from headrace.base.errors import EvictedError, NoSpaceError
from headrace.base.listeners import Listeners
from headrace.base.model import FileId
from headrace.store.borrowed_space import BorrowedSpace
from headrace.store.file_lives import FileLives, NoLives
from headrace.store.file_registry import FileRegistry
from headrace.store.groups import OneGroup, SpaceDivision
from headrace.store.index import Index
from headrace.store.planned_choice import NoPlans, PlannedChoice
from headrace.store.room import choose_volume, emptiest_volume
from headrace.store.spill import note_spilled
from headrace.store.tenant_limits import TenantLimits
from headrace.store.tiered_files import TieredFiles
from headrace.store.usage import allocated_bytes
from headrace.store.victims import Step, Victims
from headrace.store.volume import Volume, takes_changes
from headrace.store.writer import CacheWriter

EVICT_STEP_BYTES = 8 << 20
EVICT_STEP_FILES = 512
"""Most bytes, and about the files, that are evicted per acquisition of the lock beyond what is needed at once: some
15 ms, and as much where plans choose them."""

KEPT_FILES_MAX = 64
"""Files that a disk may keep before an eviction ends: their records are lost, and no space is won."""


@dataclass(frozen=True, slots=True)
class SpaceRules:
    """Say what is evicted, and when. high, low: shares of a volume's capacity where eviction begins and ends.
    borrowed_share: the share for files that other nodes own. policy: of build_policy. planned: knows which files are
    read when. lives: hears of cached files. sinks: files move to a slower tier instead of being evicted at the
    watermark. divide: takes the index, and returns which group each file is in and what each tenant may have."""

    high: float = 0.95
    low: float = 0.90
    borrowed_share: float = 1.0
    policy: str = "s3fifo"
    planned: PlannedChoice = field(default_factory=NoPlans)
    lives: FileLives = field(default_factory=NoLives)
    sinks: bool = False
    divide: Callable[[Index], SpaceDivision] = field(default=lambda _: OneGroup())

    def limits_of(self, volume: Volume, tiered: TieredFiles) -> tuple[float, float]:
        """Return the used bytes of a volume above which eviction begins in the background, and where it ends. Where
        files sink, they do so long before."""
        if self.sinks and tiered.may_sink_from(volume):
            return volume.capacity_bytes, volume.capacity_bytes
        return self.high * volume.capacity_bytes, self.low * volume.capacity_bytes


class CacheSpace:
    """The space of a node's disks and of its spill. evicted: called with the ids of evicted files. No method waits for
    another process; deleting files blocks for the disk."""

    def __init__(
        self,
        files: FileRegistry,
        disks: list[Volume],
        spill: Volume | None,
        rules: SpaceRules,
    ) -> None:
        self.evicted: Listeners[[list[FileId]]] = Listeners()
        self.evicted_files = 0
        self.division = files.accounts.groups.division
        self.pinned = files.accounts.pinned
        self.tenant_bytes = files.accounts.groups.used_bytes
        self.written_bytes = self._index_bytes = 0
        self._files = files
        self._disks = disks
        self._spill = spill
        self._has_spilled = False
        self._high = rules.high
        self.borrowed = BorrowedSpace(files.accounts, disks, rules.borrowed_share)
        self._rules = rules
        self._lock = files.lock
        self._home = threading.get_ident()
        self._unreported = list[FileId]()
        self._step_bytes = EVICT_STEP_BYTES  # of about EVICT_STEP_FILES
        self._draining: set[int] = set()  # volumes that were above the high watermark
        self.tiered = files.accounts.tiered
        self._victims = Victims(files.index, files.accounts, files.is_open)
        self._limits = TenantLimits(files, disks, self._victims)

    @property
    def used_bytes(self) -> int:
        """Return the bytes of cache files and the upper layer, without the index."""
        return self._files.accounts.used_bytes - self._index_bytes

    def note_evicted(self, ids: list[FileId]) -> None:
        """Report files at the next report, so that readers open them again. The caller holds the lock."""
        self._unreported += ids

    def choose(self, id: FileId, size_bytes: int, *, borrowed: bool, spilled: bool) -> Volume:
        """Return the volume for a new file, and remember its group. Raises NoSpaceError."""
        if spilled:
            return self._open_spill()
        groups = self._files.accounts.groups
        if not borrowed:
            groups.assign(id)
        try:
            self._keep_limit(id, allocated_bytes(size_bytes))
            places, make_room = self.tiered.places_of(id), partial(self.make_room, keep=id)
            return choose_volume(places, size_bytes, high=self._high, make_room=make_room)
        except NoSpaceError:
            groups.forget(id)
            raise

    def _keep_limit(self, id: FileId, count: int) -> None:
        """Evict files of the tenant that a file belongs to, if it would exceed its limit. Raises NoSpaceError."""
        self._unreported += self._count_evicted(self._limits.make_room(id, count))
        self.report_evicted()
        self._limits.check(id, count)

    def regroup(self, after: FileId) -> FileId | None:
        """Ask for the groups of some hundred files again, those with ids above `after`. Return the last one; None at
        the end. Call it from id 0 on when the answers of the division have changed."""
        with self._lock:
            batch = self._files.index.cached_batch(after)
            for cached in batch:
                self._files.accounts.regroup(cached)
        return batch[-1].id if batch else None

    def has_free(self, size_bytes: int, *, share: float) -> bool:
        """Return whether the volume that a file of that size gets stays below a share of its capacity."""
        with self._lock:
            volume = emptiest_volume(self._disks, size_bytes, high=self._high)
            return volume is not None and volume.used_bytes + size_bytes <= share * volume.capacity_bytes

    @property
    def open_volumes(self) -> list[Volume]:
        return self._files.volumes if self._has_spilled else self._disks

    def _open_spill(self) -> Volume:
        if self._spill is None:
            raise NoSpaceError("reading past the cache", why="this node has no spill")
        if not self._has_spilled:
            note_spilled(self._files.index, self._spill)
            self._has_spilled = True
        return self._spill

    def set_written(self, size_bytes: int) -> None:
        """Set how many bytes of the first volume the upper layer takes, beside the cache files."""
        with self._lock:
            growth_bytes = size_bytes - self.written_bytes
            self._disks[0].used_bytes += growth_bytes
            self.written_bytes = size_bytes
            if growth_bytes > 0:
                self._disks[0].written.add(growth_bytes)

    def _count_index(self) -> None:
        """Add the index to the first volume's used bytes, at most half of the capacity: it can't be evicted."""
        previous, half = self._index_bytes, self._disks[0].capacity_bytes // 2
        self._index_bytes = min(self._files.index.size_bytes, half)
        self._disks[0].used_bytes += self._index_bytes - previous

    def evict_if_needed(self) -> list[FileId]:
        """Move each volume above its high watermark a step towards the low one, and return the evicted ids. Call it
        again while it returns some: in between, other threads get the lock."""
        with self._lock:
            evicted: list[FileId] = []
            self._count_index()
            for volume in self.open_volumes:
                if volume.is_failing:  # its files can't be deleted, and perhaps be read
                    continue
                full_bytes, end_bytes = self._rules.limits_of(volume, self.tiered)
                if volume.used_bytes > full_bytes:
                    self._draining.add(volume.number)
                evicted += self._trim_borrowed(volume)
                surplus = volume.used_bytes - int(end_bytes)
                if surplus <= 0:
                    self._draining.discard(volume.number)
                if volume.number not in self._draining:
                    surplus = 0
                # other programs and the upper layer fill the disk, too
                surplus = max(surplus, volume.short_on_disk(0) - volume.coming_bytes)
                if surplus > 0:
                    evicted += self._evict(volume, 0, spare=min(surplus, self._step_bytes))
            evicted += self._count_evicted(self._limits.trim(EVICT_STEP_BYTES))
            self._unreported += evicted + self._drop_spilled()
        self.report_evicted()
        return evicted

    def is_short(self) -> bool:
        """Return whether a disk is above its high watermark, or full. After `evict_if_needed` this means that nothing
        more can be evicted."""
        with self._lock:
            return any(
                volume.used_bytes > self._rules.limits_of(volume, self.tiered)[0]
                or volume.short_on_disk(0) > volume.coming_bytes
                for volume in self._disks
                if not volume.is_failing
            )

    def _drop_spilled(self) -> list[FileId]:
        """Delete spilled files that are not being filled, if a disk can accept them next time."""
        spill = self._spill
        if spill is None or not spill.used_bytes or all(disk.disk_is_full for disk in self._disks):
            return []
        self._files.forget(ids := self._victims.all_idle(spill))
        return ids

    def _trim_borrowed(self, volume: Volume) -> list[FileId]:
        """Evict a step of the borrowed files beyond their share, and return the ids."""
        surplus = -self.borrowed.room_on(volume)
        if surplus <= 0:
            return []
        ids = self.borrowed.victims(volume, min(surplus, EVICT_STEP_BYTES))
        self._files.forget(ids)
        return self._count_evicted(ids)

    def _count_evicted(self, ids: list[FileId]) -> list[FileId]:
        self.evicted_files += len(ids)
        return ids

    def make_room(self, volume: Volume, size_bytes: int, *, keep: FileId | None = None) -> None:
        """Evict files until that many bytes fit. Raises NoSpaceError if that is impossible. keep: the file that needs
        them, which stays."""
        over, short = volume.used_bytes + size_bytes - volume.capacity_bytes, volume.short_on_disk(size_bytes)
        if max(over, short) <= 0:
            return
        spare = min(self._step_bytes, volume.capacity_bytes // 64)
        if (most := max(over, short - volume.coming_bytes)) > 0:
            self._unreported += self._evict(volume, most, spare=spare, keep=keep)
        self.report_evicted()
        if volume.short_on_disk(size_bytes, share=0.5) > 0:
            raise NoSpaceError(
                f"the disk of cache volume {volume.folder} is full",
                why=f"{size_bytes} bytes are needed and no cached file can be evicted",
                hint="free space on it",
            )
        if volume.used_bytes + size_bytes > volume.capacity_bytes:
            index_bytes = self._index_bytes if volume is self._disks[0] else 0
            raise NoSpaceError(
                f"cache volume {volume.folder} is full",
                why=f"{size_bytes} bytes are needed, and pinned files, files in use and the {index_bytes} bytes of the "
                "index can't be evicted",
                hint="unpin files, or give it more capacity",
            )

    def make_room_on_disk(self, volume: Volume, size_bytes: int, *, keep: FileId | None = None) -> bool:
        """Evict files from a full disk whose capacity is not used up. Return False if nothing can be evicted."""
        with self._lock:
            spare = min(self._step_bytes, volume.capacity_bytes // 64)
            evicted = self._evict(volume, size_bytes, spare=spare, keep=keep)
            self._unreported += evicted
        self.report_evicted()
        return bool(evicted)

    @property
    def room_is_coming(self) -> bool:
        """Report evicted files. Return whether recent ones still occupy space, because a process has them open."""
        self.report_evicted()
        with self._lock:
            return any(volume.coming_bytes for volume in self._disks)

    def room_for_written(self) -> int:
        """Return the bytes by which the upper layer could grow if no file were cached."""
        volume = self._disks[0]
        return volume.used_bytes - self.written_bytes + volume.free_bytes

    def report_evicted(self) -> None:
        if threading.get_ident() == self._home:
            evicted, self._unreported = self._unreported, []
            if evicted:
                self.evicted(evicted)

    def _evict(
        self, volume: Volume, bytes_needed: int, *, spare: int, keep: FileId | None = None
    ) -> list[FileId]:
        """Evict superseded files first, then idle incomplete ones, then the policy's, with spare bytes more than
        needed. Files that are being filled are evicted only for the needed bytes."""
        evicted: list[FileId] = []
        bytes_left = bytes_needed + spare
        # each step's list is made only if the previous ones were not enough
        for step in self._victims.steps:
            if step == self._victims.partial_open:
                bytes_left -= spare
            if bytes_left <= 0 or _keeps_files(volume):
                break
            bytes_left -= _evict_by(step, self._files, volume, bytes_left, keep=keep, evicted=evicted)
        self.evicted_files += len(evicted)
        self._step_bytes = _next_step_bytes(self._step_bytes, len(evicted))
        return evicted

    def make_room_to_write(self, writer: CacheWriter, count: int) -> bool:
        """Free space on the disk itself, as WriterRoom defines."""
        return self.make_room_on_disk(writer.volume, count, keep=writer.id)

    def grow(self, writer: CacheWriter, count: int) -> None:
        """Account for bytes of a file that is being filled. Raises NoSpaceError if nothing can be evicted for it."""
        with self._lock:
            is_current = self._files.writers.get(writer.id) is writer
            if not is_current or self._files.accounts.partial_bytes(writer.id) is None:
                if count < 0:
                    return
                raise EvictedError(
                    f"cache file {writer.id:x} can't be written", why="it was evicted or freed"
                )
            if count > 0:
                self._make_room_to_grow(writer, count)
                writer.volume.written.add(count)
            self._files.accounts.grow(writer.id, count)

    def _make_room_to_grow(self, writer: CacheWriter, count: int) -> None:
        """Make space for more bytes of a file. In the spill, that drops the file's earlier bytes. Raises
        EvictedError."""
        try:
            if writer.volume is not self._spill:
                self._keep_limit(writer.id, count)
            self.make_room(writer.volume, count, keep=writer.id)
        except NoSpaceError as error:
            if writer.volume is not self._spill:
                raise
            self._files.forget_writer(writer.id)
            self._unreported.append(writer.id)
            self._files.discard([writer.id])
            raise EvictedError(
                f"cache file {writer.id:x} can't be written", why="its earlier bytes are dropped"
            ) from error


def _evict_by(
    step: Step,
    files: FileRegistry,
    volume: Volume,
    bytes_needed: int,
    *,
    keep: FileId | None,
    evicted: list[FileId],
) -> int:
    """Evict what a step chooses, and others for files that the disk keeps. Return the freed bytes. evicted: gets the
    ids."""
    freed_bytes = kept = 0
    while freed_bytes < bytes_needed and kept < KEPT_FILES_MAX:
        ids = step(volume, bytes_needed - freed_bytes, keep)
        for id in ids:
            files.forget_writer(id)
        deletion = files.delete(ids)
        freed_bytes += deletion.freed_bytes
        kept += deletion.kept
        evicted += ids
        if not deletion.kept or _keeps_files(volume):
            break
    return freed_bytes


def _keeps_files(volume: Volume) -> bool:
    """Return whether a disk that failed lately still lets no file go. The records would be lost for nothing."""
    return volume.is_failing and not takes_changes(volume.folder)


def _next_step_bytes(step_bytes: int, files: int) -> int:
    """Return a smaller step after one that evicted many small files, and a larger one after one of few files."""
    if files > EVICT_STEP_FILES:
        return max(EVICT_STEP_BYTES // 64, step_bytes * EVICT_STEP_FILES // files)
    return min(EVICT_STEP_BYTES, 2 * step_bytes) if files < EVICT_STEP_FILES // 2 else step_bytes
