"""Know the tiers of a node's volumes, where each file may lie, and which files are used in a slower tier than they
might. Its methods cost nothing on a node with one tier.

Sealed files lie on disks, because a seal outlives a restart of the host and files in memory don't.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from headrace.base.clock import monotonic_s
from headrace.base.model import FileId
from headrace.base.priority import Priority
from headrace.base.tiers import MEMORY, TIERS
from headrace.store.groups import SpaceDivision
from headrace.store.schema import CachedFile
from headrace.store.sealed_ids import SealedIds
from headrace.store.tier_choice import TierChoice, tiers_below
from headrace.store.volume import SPILL, Volume

MISPLACED_MAX = 65536
"""Misplaced files that are remembered. More are found after the next change of the policy, or the next start."""


class TieredFiles:
    """The tiers of a store. volumes: by number. sealed: the files of seals. choice: what it knows of each file. Called
    under the store's lock.

    disks: the fastest tier first. order: their tiers; files without a rule prefer the first one.
    """

    def __init__(self, volumes: Sequence[Volume], division: SpaceDivision, sealed: SealedIds) -> None:
        self.disks = sorted((volume for volume in volumes if volume.tier != SPILL), key=_speed)
        self.order = tuple(dict.fromkeys(volume.tier for volume in self.disks))
        self._lasting = tuple(tier for tier in self.order if tier != MEMORY) or self.order
        self._sealed = sealed
        self.choice = TierChoice()
        self.misplaced = deque[FileId](maxlen=MISPLACED_MAX)
        """Files that lie where they may not: they came by a rename, or the policy changed while they were filled."""
        self._volumes = volumes
        self._division = division

    @property
    def is_tiered(self) -> bool:
        return len(self.order) > 1

    def order_of(self, id: FileId) -> Sequence[str]:
        """Return the tiers where a file may lie, by preference. A rule that names no tier of this node binds nothing
        here."""
        if not self.is_tiered:
            return self.order
        tiers = self._lasting if id in self._sealed else self.order
        allowed = self._division.tiers_of(id)
        return tuple(tier for tier in allowed if tier in tiers) or tiers

    def outlives_restart(self, volume: Volume) -> bool:
        """Return whether files of a volume can be sealed. On a node with nothing but memory they can."""
        return volume.tier in self._lasting

    def places_of(self, id: FileId) -> list[Volume]:
        """Return the disks where a file may lie, by preference. Those come last to which no more is to be written
        today."""
        if not self.is_tiered:
            return sorted(self.disks, key=_is_spent)
        places = [disk for tier in self.order_of(id) for disk in self.disks if disk.tier == tier]
        return sorted(places, key=_is_spent)

    def is_sealed_at(self, cached: CachedFile) -> bool:
        """Return whether the image of a seal may name the place of a file."""
        return cached.id in self._sealed and self.outlives_restart(self._volumes[cached.volume])

    def may_write(self, id: FileId) -> bool:
        """Return whether a file may be written to some disk, as its value and the writes of the day are. Needs no
        lock."""
        if not any(disk.is_spent for disk in self.disks):
            return True
        is_valued = self._division.group_of(id).priority == Priority.HIGH
        return is_valued or not self.places_of(id)[0].is_spent

    def is_misplaced(self, id: FileId, volume: Volume) -> bool:
        return self.is_tiered and volume.tier != SPILL and volume.tier not in self.order_of(id)

    def note_placed(self, id: FileId, volume: Volume) -> None:
        """Remember a complete file if it lies where it may not."""
        if self.is_misplaced(id, volume):
            self.misplaced.append(id)

    def may_sink_from(self, volume: Volume) -> bool:
        """Return whether a slower tier than that of a volume exists."""
        return volume.tier in self.order and bool(tiers_below(volume.tier, self.order))

    def note_cached(self, id: FileId) -> None:
        if self.is_tiered:
            self.choice.add(id, monotonic_s())

    def note_removed(self, id: FileId) -> None:
        if self.is_tiered:
            self.choice.remove(id)

    def note_used(self, ids: Iterable[FileId], volume_of: Callable[[FileId], int | None]) -> None:
        """Record uses. volume_of: returns the number of the volume that has a file."""
        if not self.is_tiered:
            return
        now_s = monotonic_s()
        for id in ids:
            number = volume_of(id)
            if number is not None:
                self.choice.use(id, now_s, partial(self._is_low, id, self._volumes[number]))

    def note_planned(self, id: FileId, seconds: float, number: int | None) -> None:
        """Record that a file will be read in so many seconds. number: of its volume; None: it is not cached."""
        if number is not None and self._is_low(id, self._volumes[number]):
            self.choice.plan(id, seconds)

    def _is_low(self, id: FileId, volume: Volume) -> bool:
        if volume.tier == SPILL:
            return False
        return volume.tier != self.order_of(id)[0]


def _speed(volume: Volume) -> int:
    return TIERS.index(volume.tier) if volume.tier in TIERS else len(TIERS)


def _is_spent(volume: Volume) -> bool:
    return volume.is_spent
