"""Move complete cache files between the volumes of a store, while processes read them.

A batch of moves has three steps: choose the files, copy each one, commit them. The choice and the commit hold the
store's lock for some milliseconds; a copy takes long and holds no lock.

    copy      to moving/ on the other volume, every byte compared with its checksum
    link      give the copy the names of a cache file
    record    one commit of the index: from then on the file is at its new place
    unlink    the old file; who has it open keeps reading
    unstage   remove the names in moving/, which mark the move for a start after a kill

A file stays where it is if it is evicted, replaced or sealed before the commit. Reads never wait for a move.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from msgspec import structs

from headrace.base import failpoint
from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError, NoSpaceError, StoreError
from headrace.base.model import FileId
from headrace.store.file_registry import FileRegistry
from headrace.store.room import emptiest_volume
from headrace.store.schema import CachedFile
from headrace.store.space import CacheSpace
from headrace.store.staged_copy import Pace, link_staged, stage_copy, unstage
from headrace.store.tier_choice import tiers_above, tiers_below
from headrace.store.usage import allocated_bytes
from headrace.store.victims import Victims
from headrace.store.volume import SPILL, Volume

log = logging.getLogger(__name__)

BATCH_FILES = 64
BATCH_BYTES = 32 << 20
"""Files and bytes of a batch, about. A larger file is a batch by itself."""
CHOICE_S = 0.01
"""Seconds after which a choice of risers ends, because it holds the lock. The next one continues."""


@dataclass(frozen=True, slots=True)
class FileMove:
    """A file that moves. cached: its record when it was chosen. sinks: to a slower tier, as it cooled."""

    cached: CachedFile
    target: Volume
    sinks: bool = False

    @property
    def size_bytes(self) -> int:
        return allocated_bytes(self.cached.size_bytes)


@dataclass(slots=True)
class MoveCounts:
    """Counts since the node's start. dropped: files that had no place in a slower tier, or none where they may lie."""

    files_sunk: int = 0
    files_risen: int = 0
    files_replaced: int = 0
    files_dropped: int = 0
    bytes_moved: int = 0


class FileMoves:
    """The moves of a store; one batch at a time. low, high: shares of a volume's capacity as in SpaceRules. is_on:
    whether files are moved at all. Any thread may call the methods. The caller reports evictions afterwards, in the
    thread of `CacheSpace`."""

    def __init__(
        self, files: FileRegistry, space: CacheSpace, *, low: float, high: float, is_on: bool
    ) -> None:
        self.counts = MoveCounts()
        self.is_on = is_on
        self._files = files
        self._space = space
        self._accounts = files.accounts
        self._tiered = files.accounts.tiered
        self._low, self._high = low, high
        self._start = (low + high) / 2
        """Share where sinking starts: below the high watermark, above which new files go to a slower tier."""
        self._lock = files.lock
        self._victims = Victims(files.index, files.accounts, files.is_open)
        self.evicted_files = 0
        self._sinking: set[int] = set()

    @property
    def use_count(self) -> int:
        """Return how many uses of files were reported."""
        return self._accounts.use_count

    def plan_use(self, id: FileId, seconds: float) -> None:
        """Let a file rise that will be read in so many seconds, if it is in a slower tier than it might be."""
        with self._lock:
            self._tiered.note_planned(id, seconds, self._accounts.volume_of(id))

    # ------------------------------------------------------------ the choice

    def choose_sinks(self) -> list[FileMove]:
        """Choose cold files of the volumes that are nearly full, of the slowest tier first. Files without a place in a
        slower tier are evicted."""
        for disk in reversed(self._tiered.disks):
            if self._tiered.may_sink_from(disk):
                with self._batch() as moves:
                    self._sink_surplus(disk, moves)
                if moves:
                    return moves
        return []

    @contextlib.contextmanager
    def _batch(self) -> Iterator[list[FileMove]]:
        """Yield a list for a batch, under the lock. After an error its moves have ended."""
        moves: list[FileMove] = []
        with self._lock:
            try:
                yield moves
            except BaseException:
                self.abandon(moves)
                raise

    def _sink_surplus(self, volume: Volume, moves: list[FileMove]) -> None:
        if volume.used_bytes > self._start * volume.capacity_bytes:
            self._sinking.add(volume.number)
        surplus_bytes = volume.used_bytes - int(self._low * volume.capacity_bytes)
        if surplus_bytes <= 0:
            self._sinking.discard(volume.number)
        if volume.number not in self._sinking:
            return
        superseded = self._victims.superseded_on(volume, surplus_bytes)
        useless = superseded or self._victims.partial_idle(volume, surplus_bytes)
        if useless:  # evicted before others sink
            self._evict(useless)
        else:
            self._sink(volume, self._victims.of_policy(volume, min(surplus_bytes, BATCH_BYTES)), moves)

    def _sink(self, volume: Volume, ids: Iterable[FileId], moves: list[FileMove]) -> None:
        """Begin to sink files, and evict those that have no place."""
        unplaced: list[FileId] = []
        kept_disks: dict[int, int] = {}
        for cached in islice(self._records(ids), BATCH_FILES):
            target = self._place_below(volume, cached, kept_disks) if _is_movable(cached) else None
            if target is None:
                unplaced.append(cached.id)
            else:
                moves.append(self._begin(FileMove(cached, target, sinks=True)))
        self._drop(unplaced)

    def _place_below(self, volume: Volume, cached: CachedFile, kept_disks: dict[int, int]) -> Volume | None:
        """Return the volume where a cold file of another one may go; something colder there may go for it. None: the
        file itself is the coldest, or may not lie there. kept_disks: bytes that could not be freed, by disk: a look
        for them passes over all pinned and sealed files, so one is enough for a batch."""
        need = allocated_bytes(cached.size_bytes)
        for tier in tiers_below(volume.tier, self._tiered.order_of(cached.id)):
            disks = [disk for disk in self._tiered.disks if disk.tier == tier and not disk.is_spent]
            emptiest = emptiest_volume(disks, cached.size_bytes, high=self._high)
            if emptiest is not None:
                return emptiest
            for disk in disks:
                if need >= kept_disks.get(disk.number, sys.maxsize):
                    continue
                colder = self._victims.of_policy(disk, need)
                if not self._frees(disk, colder, need):
                    kept_disks[disk.number] = need
                elif self._tiered.choice.keeps(cached.id, colder, monotonic_s()):
                    self._evict(colder)
                    return disk
        return None

    def _frees(self, disk: Volume, ids: list[FileId], need: int) -> bool:
        """Return whether a file fits once others are evicted."""
        sizes = map(self._accounts.policies[disk.number].size_of, ids)
        return disk.used_bytes - sum(sizes) + need <= disk.capacity_bytes

    def choose_rises(self) -> list[FileMove]:
        """Choose files that were used again in a slower tier, or are needed soon by a plan. What must leave the faster
        tier for them comes before them."""
        with self._batch() as moves:
            until_s = monotonic_s() + CHOICE_S
            for _ in range(BATCH_FILES):
                for id, next_use_s in self._tiered.choice.take_risers(1):
                    cached = self._files.index.cached(id)
                    if cached is not None and _is_movable(cached) and not self._accounts.is_kept(id):
                        self._raise(cached, next_use_s, moves)
                if is_full(moves) or monotonic_s() > until_s:
                    break
        return moves

    def _raise(self, cached: CachedFile, next_use_s: float, moves: list[FileMove]) -> None:
        """Begin to move a file to a faster tier, if one has a place for it."""
        source, need = self._files.volumes[cached.volume], allocated_bytes(cached.size_bytes)
        if source.tier == SPILL:
            return
        for tier in tiers_above(source.tier, self._tiered.order_of(cached.id)):
            disks = [disk for disk in self._tiered.disks if disk.tier == tier and not disk.is_spent]
            # above the low watermark, there is room because others sank
            roomy = emptiest_volume(disks, cached.size_bytes, high=self._low)
            if roomy is not None:
                moves.append(self._begin(FileMove(cached, roomy)))
                return
            for disk in disks:
                if disk.used_bytes + need > disk.capacity_bytes or disk.short_on_disk(need) > 0:
                    continue
                displaced = self._victims.of_policy(disk, need)
                if displaced and self._tiered.choice.may_displace(next_use_s, displaced, monotonic_s()):
                    self._sink(disk, displaced, moves)
                    moves.append(self._begin(FileMove(cached, disk)))
                    return

    def choose_misplaced(self, ids: Iterable[FileId]) -> list[FileMove]:
        """Choose those of some files that lie where they may not, up to a full batch: the last file that was looked at
        is its last one then. A file without a place is deleted, if it is neither pinned nor sealed. Files that
        are being filled stay, and so do sealed ones on a disk."""
        unplaced: list[FileId] = []
        with self._batch() as moves:
            for cached in self._records(ids):
                if is_full(moves):
                    break
                volume = self._files.volumes[cached.volume]
                is_fixed = self._tiered.is_sealed_at(cached) or self._files.is_open(cached.id)
                is_fixed = is_fixed or cached.id in self._accounts.moving  # it was noted twice
                if is_fixed or cached.superseded or not self._tiered.is_misplaced(cached.id, volume):
                    continue
                target = self._place_for(cached) if _is_movable(cached) else None
                if target is not None:
                    moves.append(self._begin(FileMove(cached, target)))
                elif not cached.pinned and cached.id not in self._accounts.sealed:
                    unplaced.append(cached.id)
            self._drop(unplaced)
        return moves

    def _place_for(self, cached: CachedFile) -> Volume | None:
        places = [disk for disk in self._tiered.places_of(cached.id) if not disk.is_spent]
        emptiest = emptiest_volume(places, cached.size_bytes, high=self._high)
        if emptiest is not None:
            return emptiest
        for disk in places:
            try:
                self._space.make_room(disk, allocated_bytes(cached.size_bytes), keep=cached.id)
            except NoSpaceError:
                continue
            return disk
        return None

    def _records(self, ids: Iterable[FileId]) -> Iterator[CachedFile]:
        return filter(None, map(self._files.index.cached, ids))

    def _evict(self, ids: list[FileId]) -> None:
        for id in ids:
            self._files.forget_writer(id)
        self._files.discard(ids)
        self._space.note_evicted(ids)
        self.evicted_files += len(ids)

    def _drop(self, ids: Iterable[FileId]) -> None:
        """Evict those of some files that are still cached."""
        ids = [cached.id for cached in self._records(ids)]
        self._evict(ids)
        self.counts.files_dropped += len(ids)

    def _begin(self, move: FileMove) -> FileMove:
        """Hold the space of a move at its target, and keep its file from being evicted."""
        self._accounts.hold(move.target, move.size_bytes)
        self._accounts.moving.add(move.cached.id)
        return move

    # ------------------------------------------------------------ copy and commit

    def copy(self, move: FileMove, pace: Pace) -> None:
        """Copy a file to its staging place. Errors as in `stage_copy`, and StoreError for a file that was pinned since
        it was chosen to sink; call `abandon` then."""

        def pace_of_sink(count: int) -> None:
            pace(count)
            _check_pin(move, self._accounts.pinned)

        _check_pin(move, self._accounts.pinned)
        stage_copy(self._files.volumes[move.cached.volume], move.target, move.cached, pace_of_sink)
        move.target.written.add(move.cached.size_bytes)

    def abandon(self, moves: Iterable[FileMove]) -> None:
        """Give moves up; their files stay where they are."""
        with self._lock:
            for move in moves:
                self._end(move)

    def _release(self, move: FileMove) -> None:
        if move.cached.id not in self._accounts.moving:
            return
        self._accounts.hold(move.target, -move.size_bytes)
        self._accounts.moving.discard(move.cached.id)

    def _end(self, move: FileMove) -> None:
        self._release(move)
        try:
            unstage(move.target, move.cached.id)
        except OSError as error:  # the next move of the file, or the next start, removes it
            log.info("a copy is still at its staging place id=%x error=%s", move.cached.id, error)

    def commit(self, moves: Iterable[FileMove]) -> int:
        """Put copies in the place of their files, by one commit of the index. Return how many were; the other files
        changed meanwhile. Survives kill -9 on return, and a power loss: either file is complete. After an error the
        moves have ended."""
        moves = list(moves)
        with self._lock:
            try:
                return self._commit(moves)
            except BaseException:
                self.abandon(moves)
                raise

    def _commit(self, moves: list[FileMove]) -> int:
        linked: list[tuple[FileMove, CachedFile]] = []
        for move in moves:
            record = self._new_record(move)
            if record is None:
                self._end(move)
                continue
            try:
                link_staged(move.target, move.cached)
            except (OSError, HeadraceError):
                self._end(move)
                continue
            linked.append((move, record))
        failpoint.hit("move.linked")
        try:
            with self._files.index.batch():
                for _, record in linked:
                    self._files.index.put_cached(record)
        except HeadraceError:
            for move, _ in linked:
                with contextlib.suppress(HeadraceError):
                    move.target.unlink(move.cached.id)
            raise
        failpoint.hit("move.recorded")
        for move, record in linked:
            self._replace(move, record)
        self._space.note_evicted([move.cached.id for move, _ in linked])
        return len(linked)

    def _new_record(self, move: FileMove) -> CachedFile | None:
        """Return the record of a file at its new place; None if it has to stay, or is another one by now."""
        id = move.cached.id
        current = self._files.index.cached(id)
        if current is None or self._tiered.is_sealed_at(current) or self._accounts.is_reserved(id):
            return None
        if move.sinks and current.pinned:  # the pin came during the copy
            return None
        if structs.replace(current, pinned=move.cached.pinned, borrowed=move.cached.borrowed) != move.cached:
            return None
        sequence = self._files.next_sequence()
        return structs.replace(current, volume=move.target.number, sequence=sequence, sunk=move.sinks)

    def _replace(self, move: FileMove, record: CachedFile) -> None:
        source, id = self._files.volumes[move.cached.volume], move.cached.id
        self._accounts.move(record, source, used=not move.sinks)
        self._release(move)
        try:
            source.unlink(id)
            failpoint.hit("move.unlinked")
            unstage(move.target, id)
        except (OSError, HeadraceError) as error:  # the next start removes the old file
            log.warning("a moved file is still at its old place too id=%x error=%s", id, error)
        self.counts.bytes_moved += move.cached.size_bytes
        if move.sinks:
            self.counts.files_sunk += 1
        elif source.tier in self._tiered.order_of(id):
            self.counts.files_risen += 1
        else:
            self.counts.files_replaced += 1


def _is_movable(cached: CachedFile) -> bool:
    return cached.trusted and not cached.superseded


def is_full(moves: list[FileMove]) -> bool:
    """Return whether no more moves are to be in a batch."""
    return len(moves) >= BATCH_FILES or sum(move.size_bytes for move in moves) >= BATCH_BYTES


def _check_pin(move: FileMove, pinned: Container[FileId]) -> None:
    if move.sinks and move.cached.id in pinned:
        raise StoreError(f"cache file {move.cached.id:x}", why="it was pinned, and does not sink")
