"""Account for the cache files: bytes of each volume, and each file's position in its volume's eviction policy.

In memory only, rebuilt from the index at each start. `Store` updates it together with index and files, under its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from headrace.base.model import BLOCK_SIZE_BYTES, FileId
from headrace.ring.view import SEGMENT_BYTES
from headrace.store.block_map import map_bytes
from headrace.store.borrowed_first import BORROWED, BorrowedFirst
from headrace.store.file_lives import FileLives
from headrace.store.groups import FileGroups, OneGroup
from headrace.store.planned_choice import PlannedChoice
from headrace.store.schema import CachedFile
from headrace.store.sealed_ids import SealedIds
from headrace.store.tiered_files import TieredFiles
from headrace.store.volume import SPILL, Volume

PAGE_BYTES = 4096
SPREAD_BYTES = SEGMENT_BYTES
"""Parts of larger files are worth keeping, too: many nodes may own a part each, and a reader of scattered ranges never
completes the file. Such a part has a position in the policy."""


class Accounts:
    """The accounts of a store. policies: of each volume. groups: of the owned files on the disks.
    planned: hears of each complete file. pinned, sealed, moving: files that must not be evicted. tiered: the tiers of
    the disks. use_count: uses of files so far."""

    def __init__(
        self,
        volumes: Sequence[Volume],
        policy: str,
        planned: PlannedChoice,
        lives: FileLives,
        groups: FileGroups,
    ) -> None:
        disk_bytes = sum(volume.capacity_bytes for volume in volumes if volume.tier != SPILL) or 1
        spilled = FileGroups(OneGroup())
        self.policies = [
            BorrowedFirst(policy, spilled if v.tier == SPILL else groups, v.capacity_bytes / disk_bytes)
            for v in volumes
        ]
        self.groups = groups
        self.sealed = SealedIds()
        self.tiered = TieredFiles(volumes, groups.division, self.sealed)
        self.use_count = 0
        self._planned = planned
        self._lives = lives
        self._volumes = volumes
        self._pools: set[int] = set()  # of volume and group, that the plans know
        for volume in volumes:
            self._pool_of(volume.number, 0)
        self.pinned: set[FileId] = set()
        self.moving: set[FileId] = set()
        # incomplete files: id → volume, allocated bytes; those that grew last come last
        self._partial: dict[FileId, tuple[int, int]] = {}
        self._reserved: dict[FileId, tuple[int, int]] = {}  # small files being written, in the same form

    @property
    def used_bytes(self) -> int:
        """Return the bytes used on the disks."""
        return sum(volume.used_bytes for volume in self._volumes if volume.tier != SPILL)

    def statistics(self) -> dict[str, int]:
        return {
            "capacity_bytes": sum(volume.capacity_bytes for volume in self._volumes if volume.tier != SPILL),
            "used_bytes": self.used_bytes,
            "spilled_bytes": sum(volume.used_bytes for volume in self._volumes if volume.tier == SPILL),
            "borrowed_bytes": sum(policy.borrowed_bytes for policy in self.policies),
            "files_partial": len(self._partial),
            "files_pinned": len(self.pinned),
        }

    def is_kept(self, id: FileId) -> bool:
        """Return whether a file must not be evicted."""
        return id in self.pinned or id in self.moving or id in self.sealed

    def partials(self) -> Iterator[tuple[FileId, int, int]]:
        """Yield incomplete files: id, volume, allocated bytes; those that grew last come last."""
        return ((id, number, size_bytes) for id, (number, size_bytes) in self._partial.items())

    def partial_bytes(self, id: FileId) -> int | None:
        """Return the allocated bytes of an incomplete file; None for any other."""
        return self._partial.get(id, (0, None))[1]

    def choose(
        self, volume: int, is_kept: Callable[[FileId], bool], group: int, ids: list[FileId]
    ) -> list[FileId]:
        """Let the plans choose among the files of a group, instead of the victims of its policy."""
        return self._planned.choose(self._pool_of(volume, group), ids, is_kept)

    def _pool_of(self, volume: int, group: int) -> int:
        """Return the number by which the plans know the files of a group on a volume; it is negative for BORROWED. They
        learn it at the first use."""
        pool = volume + group * len(self._volumes)
        if pool not in self._pools:
            self._pools.add(pool)
            self._planned.add_volume(pool, partial(self.policies[volume].size_in, group))
        return pool

    def regroup(self, cached: CachedFile) -> None:
        """Ask for the group of a file again."""
        id, policy = cached.id, self.policies[cached.volume]
        volume = self._volumes[cached.volume]
        if cached.borrowed or volume.tier == SPILL or id in self._reserved:
            return
        size_bytes = self._partial[id][1] if id in self._partial else policy.size_of(id)
        self.groups.charge(id, -size_bytes)
        policy.regroup(id)
        self.groups.charge(id, size_bytes)
        if cached.complete:
            self._planned.note_resident(id)

    def _charge(self, id: FileId, volume: Volume, count: int) -> None:
        volume.used_bytes += count
        if volume.tier != SPILL:
            self.groups.charge(id, count)

    def touch(self, ids: Iterable[FileId]) -> None:
        """Record a use of files. Unknown ids are no error."""
        used = list(ids)
        for id in used:
            for policy in self.policies:
                policy.touch(id)
        self.use_count += len(used)
        self.tiered.note_used(used, self.volume_of)
        self._lives.note_used(used)

    def volume_of(self, id: FileId) -> int | None:
        """Return the number of the volume whose policy has a file."""
        return next((number for number, policy in enumerate(self.policies) if id in policy), None)

    # ------------------------------------------------------------ small files being written

    def reserve(self, id: FileId, volume: Volume, size_bytes: int) -> None:
        """Reserve the space of a small file before it is written."""
        self._charge(id, volume, size_bytes)
        self._reserved[id] = (volume.number, size_bytes)

    def release(self, id: FileId) -> None:
        """Release a reservation: the file is written, or will not be."""
        number, size_bytes = self._reserved.pop(id)
        self._charge(id, self._volumes[number], -size_bytes)
        self.groups.forget(id)

    def is_reserved(self, id: FileId) -> bool:
        return id in self._reserved

    # ------------------------------------------------------------ files with a record

    def begin(self, record: CachedFile) -> None:
        """Add an incomplete file without a byte."""
        self._partial[record.id] = (record.volume, 0)
        self._place(record, PAGE_BYTES)
        self._note_cached(record.id)

    def add(self, cached: CachedFile) -> None:
        """Add a file from its record and its volume."""
        volume = self._volumes[cached.volume]
        if volume.tier != SPILL:
            self._pool_of(volume.number, BORROWED if cached.borrowed else self.groups.assign(cached.id))
        if cached.complete:
            size_bytes = allocated_bytes(cached.size_bytes)
            self.policies[volume.number].insert(cached.id, size_bytes, borrowed=cached.borrowed)
            self._planned.note_resident(cached.id)
        else:
            size_bytes = volume.allocated(cached.id)
            self._partial[cached.id] = (volume.number, size_bytes)
            self._place(cached, size_bytes)
        self._charge(cached.id, volume, size_bytes)
        self._note_cached(cached.id)
        if cached.pinned:
            self.pinned.add(cached.id)

    def _note_cached(self, id: FileId) -> None:
        self._lives.note_cached(id)
        self.tiered.note_cached(id)

    def hold(self, volume: Volume, count: int) -> None:
        """Count bytes of copies that are on their way to a volume; a negative count when they have arrived or not."""
        volume.used_bytes += count

    def move(self, cached: CachedFile, source: Volume, *, used: bool) -> None:
        """Move a complete file from the policy of a volume to that of its record. used: it counts as used there."""
        id, target = cached.id, self._volumes[cached.volume]
        size_bytes = self.policies[source.number].remove(id)
        source.used_bytes -= size_bytes
        target.used_bytes += size_bytes
        self._pool_of(target.number, BORROWED if cached.borrowed else self.groups.number_of(id))
        policy = self.policies[target.number]
        policy.insert(id, size_bytes, borrowed=cached.borrowed)
        if used:
            policy.touch(id)
        self._planned.note_resident(id)

    def grow(self, id: FileId, count: int) -> None:
        """Grow an incomplete file; a negative count means that blocks were dropped."""
        number, size_bytes = self._partial.pop(id)
        self._partial[id] = (number, size_bytes + count)
        if id in self.policies[number]:
            self.policies[number].resize(id, max(PAGE_BYTES, size_bytes + count))
        self._charge(id, self._volumes[number], count)

    def remove(self, id: FileId) -> int:
        """Remove a file and return its bytes. A pin stays."""
        size_bytes = self._remove(id)
        self.groups.forget(id)
        self.tiered.note_removed(id)
        return size_bytes

    def _remove(self, id: FileId) -> int:
        number, size_bytes = self._partial.pop(id, (-1, 0))
        if number >= 0:
            self.policies[number].remove(id)
            self._charge(id, self._volumes[number], -size_bytes)
            return size_bytes
        for volume, policy in zip(self._volumes, self.policies, strict=True):
            size_bytes = policy.remove(id)
            if size_bytes:
                self._charge(id, volume, -size_bytes)
                return size_bytes
        return 0

    def set_borrowed(self, cached: CachedFile) -> None:
        """Update the policy after a complete file's record changed in `borrowed`."""
        id, volume, policy = cached.id, self._volumes[cached.volume], self.policies[cached.volume]
        size_bytes = policy.remove(id)
        self._charge(id, volume, -size_bytes)
        if cached.borrowed or volume.tier == SPILL:
            self.groups.forget(id)
        else:
            self.groups.assign(id)
        if cached.borrowed:
            self._pool_of(volume.number, BORROWED)
        self._charge(id, volume, size_bytes)
        policy.insert(id, size_bytes, borrowed=cached.borrowed)
        self._planned.note_resident(id)

    def _place(self, partial: CachedFile, size_bytes: int) -> None:
        """Add a part of a large file to the policy of complete files."""
        if partial.size_bytes > SPREAD_BYTES and not partial.borrowed:
            self.policies[partial.volume].insert(partial.id, max(PAGE_BYTES, size_bytes), borrowed=False)


def allocated_bytes(size_bytes: int) -> int:
    """Return the bytes of a complete file on the disk, with its map."""
    data = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    if size_bytes <= BLOCK_SIZE_BYTES:
        return max(data, PAGE_BYTES)
    return data + -(-map_bytes(-(-size_bytes // BLOCK_SIZE_BYTES)) // PAGE_BYTES) * PAGE_BYTES
