"""The cache of a node: index and cache files as one thing. Open this first.

The order of every change is named in docs/format.md. Thread-safe; but `on_evicted` is called only from the
thread that opened the store: files evicted from another one are told of at its next call. Lock order: store,
then index.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import structs

from headrace.base import failpoint
from headrace.base.beneath import SafePath
from headrace.base.errors import EvictedError, HeadraceError, NoSpaceError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId, ObjectMetadata
from headrace.overlay.reserve import Reserve
from headrace.store.checksum import block_checksum
from headrace.store.index import Index
from headrace.store.object_metadata import numbers_of, unnote
from headrace.store.recovery import FsckProgress, FsckReport, OnSound, bad_blocks, fsck, recover, version_of
from headrace.store.room import choose_volume, keep_index_room, reserve_readers
from headrace.store.schema import CachedFile
from headrace.store.spill import close_volumes, forget_spilled, note_spilled, open_spill
from headrace.store.usage import Accounts, allocated_bytes
from headrace.store.victims import Victims
from headrace.store.volume import Volume
from headrace.store.writer import (
    Body,
    CacheWriter,
    storage_error,
    write_map,
    write_whole,
    write_with_room,
)

EVICT_STEP_BYTES = 8 << 20
"""What is dropped while the lock is held once, beyond what is needed at once: some 60 ms of files of 4 KiB."""
CTIME_LAG_S = 0.05
"""How far the clock that the kernel gives files may be behind the real one: a tick, and more on a busy machine."""
NO_EXTRAS: Mapping[FileId, ObjectMetadata] = MappingProxyType({})


class Store:
    """on_evicted: told the ids of files that went to make room. unverified_found: files that recovery did
    not trust."""

    def __init__(
        self,
        index: Index,
        volumes: list[Volume],
        policy: str,
        *,
        high: float,
        low: float,
        borrowed_share: float,
        spill: Volume | None,
    ) -> None:
        self.index = index
        self.disks = volumes
        self.spill = spill
        self.volumes = volumes = volumes if spill is None else [*volumes, spill]
        """By number: the disks, and the spill."""
        self._has_spilled = False
        forget_spilled(index)
        self.reserve = Reserve(volumes[0].folder)
        self.on_evicted: Callable[[list[FileId]], None] = lambda _: None
        self.evicted_files = 0
        self._high, self._low, self._borrowed_share = high, low, borrowed_share
        self._accounts = Accounts(volumes, policy)
        self._draining: set[int] = set()  # volumes that were above the high watermark
        self._sync_failed = False
        self._written_bytes = self._index_bytes = 0
        self._writers: weakref.WeakValueDictionary[FileId, CacheWriter] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._home = threading.get_ident()
        self._untold, self._closed = list[FileId](), False
        self._victims = Victims(index, self._accounts, self._is_open)
        index.on_superseded = self._victims.superseded.append
        index.on_redated = partial(unnote, volumes)
        self.unverified_found = recover(index, self.disks)
        self._sequence = index.synced_sequence
        for cached in index.cached_files():
            self._take_in(cached)

    @classmethod
    def open(
        cls,
        index_folder: str,
        volumes: list[Volume],
        *,
        policy: str = "s3fifo",
        high: float = 0.95,
        low: float = 0.90,
        borrowed_share: float = 1.0,
        boot_id: str | None = None,
        spill: tuple[str, str] | None = None,
    ) -> Store:
        """Recovered on return. StoreBusyError, StoreError, CorruptIndexError; then everything is let go of.
        high, low: shares of a volume's capacity where eviction begins and ends; borrowed_share: what files that other
        nodes own may take of it. spill: as of open_spill; None: there is none."""
        index: Index | None = None
        beside: Volume | None = None
        try:
            for volume in volumes:
                volume.used_bytes = 0
                volume.open()
            reserve = Reserve(volumes[0].folder)
            reserve_readers(index_folder, reserve)
            index = reserve.spend(lambda: Index.open(index_folder, writable=True, boot_id=boot_id))
            beside = None if spill is None else open_spill(*spill, volumes)
            store = cls(
                index, volumes, policy, high=high, low=low, borrowed_share=borrowed_share, spill=beside
            )
            store.keep_room()
            return store
        except BaseException:
            if index is not None:
                index.close(clean=False)
            close_volumes(volumes, beside)
            raise

    @property
    def generation(self) -> int:
        return self.index.generation

    @property
    def used_bytes(self) -> int:
        """By files and what was written, without the index."""
        return self._accounts.used_bytes - self._index_bytes

    def statistics(self) -> dict[str, int]:
        return {
            **self._accounts.statistics(),
            "used_bytes": self.used_bytes,
            "files_evicted": self.evicted_files,
            "files_unverified_found": self.unverified_found,
        }

    # ------------------------------------------------------------ filling

    def create(self, entry: Entry, *, borrowed: bool = False, spilled: bool = False) -> CacheWriter:
        """An empty cache file with its record. NoSpaceError when room can't be made; evicts. borrowed: another node
        owns it. spilled: beside the disks, of which it never has more than that has room for."""
        with self._lock:
            self._forget_writer(entry.id)
            self._discard([entry.id])
            volume = self._choose(entry.version.size_bytes, spilled=spilled)
            writer = CacheWriter.create(volume, entry.id, entry.version)
            failpoint.hit("create.files")
            record = self._record(entry, volume, complete=False, borrowed=borrowed)
            self.index.put_cached(record)
            self._accounts.begin(record)
            return self._watch(writer)

    def writer(self, id: FileId) -> CacheWriter | None:
        """The writer of an incomplete file, opened again; None when there is none to go on with: create it
        anew."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or cached.complete or cached.unverified:
                return None
            known = self._writers.get(id)
            if known is not None and not known.closed:
                return known
            writer = CacheWriter.reopen(self.volumes[cached.volume], id, version_of(cached))
            return None if writer is None else self._watch(writer)

    def complete(self, writer: CacheWriter) -> CachedFile:
        """The commit: from its return on the file is served whole. Closes the writer. EvictedError."""
        if not writer.complete:
            raise StoreError(f"cache file {writer.id:x} is not whole", why="blocks are missing")
        with self._lock:
            volume, id = writer.volume, writer.id
            cached = self.index.cached(id)
            if cached is None or writer.closed or self._writers.get(id) is not writer:
                writer.close()  # and perhaps made anew since: those blocks are not ours
                raise EvictedError(f"cache file {id:x} was evicted", why="while it was filled")
            try:
                os.rename(volume.part_path(id), volume.data_path(id))
            except OSError as error:
                raise storage_error(volume.part_path(id), error) from error
            failpoint.hit("complete.renamed")
            done = structs.replace(
                cached,
                complete=True,
                unverified=False,
                checksum=writer.checksum,
                sequence=self._next_sequence(),
            )
            self.index.put_cached(done)
            self._accounts.let_go(id)
            self._take_in(done)
            self._writers.pop(id, None)
            writer.close()
            return done

    def complete_small(self, entry: Entry, body: Body) -> CachedFile:
        """A file of at most one block, at once."""
        return self.complete_small_many([(entry, body)])[0]

    def complete_small_many(
        self,
        files: list[tuple[Entry, Body]],
        *,
        borrowed: Container[FileId] = (),
        extras: Mapping[FileId, ObjectMetadata] = NO_EXTRAS,
        spilled: bool = False,
    ) -> list[CachedFile]:
        """Many such files by one commit; all or none of them are recorded. The files are written outside the
        lock; one id must not be under way twice. extras: of those of which they are known. spilled: as of create."""
        for entry, body in files:
            if len(body) != entry.version.size_bytes or len(body) > BLOCK_SIZE_BYTES:
                raise ValueError(f"{len(body)} bytes for a file of {entry.version.size_bytes}")
        told, places = numbers_of([entry for entry, _ in files], extras), list[Volume]()
        try:
            with self._lock:
                self._discard([entry.id for entry, _ in files])
                for entry, _ in files:
                    places.append(self._reserve(entry, spilled=spilled))
            for (entry, body), volume in zip(files, places, strict=True):
                self._write_small(volume, entry.id, body, None if entry.id in told else extras.get(entry.id))
                failpoint.hit("small.written")
            sums = [block_checksum(body) if len(body) else 0 for _, body in files]
            with self._lock:
                done = [
                    self._record(
                        *(entry, volume),
                        complete=True,
                        checksum=checksum,
                        borrowed=entry.id in borrowed,
                        told=told.get(entry.id),
                    )
                    for (entry, _), volume, checksum in zip(files, places, sums, strict=True)
                ]
                with self.index.batch():
                    for cached in done:
                        self.index.put_cached(cached)
                for cached in done:
                    self._accounts.release(cached.id)
                    self._take_in(cached)
                return done
        except BaseException:
            with self._lock:
                began = [entry for (entry, _), _ in zip(files, places, strict=False)]
                for entry, volume in zip(began, places, strict=True):
                    volume.unlink(entry.id)
                    self._accounts.release(entry.id)
            raise

    def adopt(self, entry: Entry, place: SafePath, checksums: list[int], *, borrowed: bool) -> bool:
        """The file at `place`, on the first volume's file system, becomes the cache file of the entry, by a rename:
        whole on return. It must not be written to any more. checksums: of its blocks. False, and nothing happened, when
        that file is just being written here. StoreError, NoSpaceError; then it is where it was."""
        with self._lock:
            volume, id = self.disks[0], entry.id
            if self._accounts.is_reserved(id):
                return False
            self._forget_writer(id)
            if self._discard([id]):
                self._untold.append(id)
            small = checksums[0] if entry.version.size_bytes <= BLOCK_SIZE_BYTES and checksums else 0
            record = self._record(entry, volume, complete=True, checksum=small, borrowed=borrowed)
            try:
                found = place.lstat()
                write_map(volume, id, found, checksums)
                failpoint.hit("adopt.map")
                self.index.put_cached(record)
                failpoint.hit("adopt.recorded")
                place.rename_out(volume.data_path(id))
            except OSError as error:
                self.index.drop_cached(id)
                volume.unlink(id)
                raise storage_error(volume.data_path(id), error) from error
            failpoint.hit("adopt.renamed")
            self.set_written(max(0, self._written_bytes - found.st_blocks * 512))  # it is not counted twice
            self._take_in(record)
        self._tell()
        return True

    def _reserve(self, entry: Entry, *, spilled: bool) -> Volume:
        self.index.heed_clock()
        size_bytes = entry.version.size_bytes
        volume = self._choose(size_bytes, spilled=spilled)
        if spilled:
            self._make_room(volume, allocated_bytes(size_bytes))
        self._accounts.reserve(entry.id, volume, allocated_bytes(size_bytes))
        return volume

    @property
    def _volumes_open(self) -> list[Volume]:
        return self.volumes if self._has_spilled else self.disks

    def _beside(self) -> Volume:
        if self.spill is None:
            raise NoSpaceError("reading past the cache", why="there is no room for it outside of its disks")
        if not self._has_spilled:
            note_spilled(self.index, self.spill)
            self._has_spilled = True
        return self.spill

    # ------------------------------------------------------------ use

    def touch(self, ids: Iterable[FileId]) -> None:
        """The files were used. Unknown ids are no error."""
        with self._lock:
            self._accounts.touch(ids)

    def pin(self, id: FileId, pinned: bool) -> bool:  # noqa: FBT001 - the word the callers use
        """A pinned file is never evicted. False, and nothing happens, when no disk has it."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or self.volumes[cached.volume] is self.spill:
                return False
            self.index.put_cached(structs.replace(cached, pinned=pinned))
            (self._accounts.pinned.add if pinned else self._accounts.pinned.discard)(id)
            return True

    def holds(self, cached: CachedFile) -> bool:
        """Whether a complete file is where its record says; if not, the record goes: people delete files."""
        if os.path.exists(self.volumes[cached.volume].data_path(cached.id)):
            return True
        with self._lock:
            if self.index.cached(cached.id) == cached:
                self._discard([cached.id])
        return False

    def free(self, id: FileId) -> int:
        """Drops the cached copy, pinned or not; the bytes freed. Readers that have it open go on; they are told,
        or they would hold its space."""
        with self._lock:
            self._forget_writer(id)
            freed = self._discard([id])
            if freed:
                self._untold.append(id)
        self._tell()
        return freed

    def verify(self, id: FileId) -> bool:
        """Checks a file against its checksums and trusts what is sound. True when no block was bad. Reads
        all of it, outside the lock: blocks about 0.2 ms a MiB."""
        cached = self.index.cached(id)
        if cached is None:
            return False
        return self.settle(cached, bad_blocks(self.volumes[cached.volume], cached)) == []

    def fsck(self, progress: FsckProgress, on_sound: OnSound = lambda _: None) -> FsckReport:
        """Checks and repairs everything; reads every cached byte, a file at a time outside the lock. progress:
        files checked, files in all, bytes checked, bytes in all; what it raises ends the check. Repairs survive a
        power loss."""
        report = fsck(
            self.index,
            self._volumes_open,
            settle=self.settle,
            drop_stray=self._drop_stray,
            progress=progress,
            on_sound=on_sound,
            bytes_total=self.used_bytes,
        )
        if not report.sound:
            self.sync()
        return report

    def sync(self) -> None:
        """What is complete now is trusted after a power loss, too. Blocks: flushes the volumes'
        filesystems."""
        self._sync(pause_s=CTIME_LAG_S)

    def _sync(self, *, pause_s: float) -> None:
        sequence, at_ns = self._sequence, time.time_ns()
        time.sleep(pause_s)  # so that a file that says it is older than at_ns is on the disk
        try:
            for volume in self.disks:
                volume.sync()
        except StoreError:
            self._sync_failed = True  # the kernel tells once of a page that it could not write
            raise
        failpoint.hit("sync.volumes")
        if self._sync_failed:
            self.index.checkpoint()
        else:
            self.index.checkpoint(synced_sequence=sequence, synced_ns=at_ns)

    def keep_room(self) -> None:
        """To be called now and then: what the index grows by finds room on a disk that others fill, too. One that
        has another trouble says so to who uses it."""
        with suppress(OSError):
            self.reserve.refill(-self.disks[0].short_on_disk(0, share=0.5))
            keep_index_room(self.index.folder, self.reserve)

    def close(self) -> None:
        """Synced and marked clean. Nothing may be called after it."""
        if self._closed:
            return
        self._closed = True
        try:
            for id in list(self._writers):
                self._forget_writer(id)
            forget_spilled(self.index)
            self._sync(pause_s=0)
            self.index.close(clean=not self._sync_failed)
        except HeadraceError:
            self.index.close(clean=False)
            raise
        finally:
            close_volumes(self.disks, self.spill)

    # ------------------------------------------------------------ eviction

    def set_written(self, size_bytes: int) -> None:
        """What was written on this node, beside the cache files, takes so much of the first volume."""
        with self._lock:
            self.disks[0].used_bytes += size_bytes - self._written_bytes
            self._written_bytes = size_bytes

    def _count_index(self) -> None:
        """It takes its part of the first volume, but half of that at most: an index can't be evicted."""
        before, half = self._index_bytes, self.disks[0].capacity_bytes // 2
        self._index_bytes = min(self.index.size_bytes, half)
        self.disks[0].used_bytes += self._index_bytes - before

    def evict_if_needed(self) -> list[FileId]:
        """Brings each volume that is above its high watermark a step towards the low one; the ids that went.
        Call it again while it returns some: in between, others get the lock."""
        with self._lock:
            gone: list[FileId] = []
            self._count_index()
            for volume in self._volumes_open:
                if volume.used_bytes > self._high * volume.capacity_bytes:
                    self._draining.add(volume.number)
                gone += self._trim_borrowed(volume)
                surplus = volume.used_bytes - int(self._low * volume.capacity_bytes)
                if surplus <= 0:
                    self._draining.discard(volume.number)
                if volume.number not in self._draining:
                    surplus = 0
                # others fill it, writers above all
                surplus = max(surplus, volume.short_on_disk(0) - volume.coming_bytes)
                if surplus > 0:
                    gone += self._evict(volume, 0, spare=min(surplus, EVICT_STEP_BYTES))
            self._untold += gone + self._drop_spilled()
        self._tell()
        return gone

    def _drop_spilled(self) -> list[FileId]:
        """What nobody reads just now, where a disk can take it next time."""
        spill = self.spill
        if spill is None or not spill.used_bytes or all(disk.disk_is_full for disk in self.disks):
            return []
        self._discard(ids := self._victims.all_idle(spill))
        return ids

    def _trim_borrowed(self, volume: Volume) -> list[FileId]:
        """A step towards what other nodes' files may take; the ids that went."""
        policy = self._accounts.policies[volume.number]
        surplus = policy.borrowed_bytes - int(self._borrowed_share * volume.capacity_bytes)
        if surplus <= 0:
            return []
        ids = policy.borrowed_victims(min(surplus, EVICT_STEP_BYTES), self._accounts.pinned.__contains__)
        self._discard(ids)
        self.evicted_files += len(ids)
        return ids

    def set_borrowed(self, id: FileId, *, borrowed: bool) -> None:
        """After a change of owners. Nothing where the file is not cached."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or cached.borrowed == borrowed:
                return
            changed = structs.replace(cached, borrowed=borrowed)
            self.index.put_cached(changed)
            if cached.complete:
                self._accounts.set_borrowed(changed)

    def _make_room(self, volume: Volume, size_bytes: int, *, keep: FileId | None = None) -> None:
        """NoSpaceError when what may go is not enough. keep: a file that must not go for it."""
        over, short = volume.used_bytes + size_bytes - volume.capacity_bytes, volume.short_on_disk(size_bytes)
        if max(over, short) <= 0:
            return
        spare = min(EVICT_STEP_BYTES, volume.capacity_bytes // 64)
        if (most := max(over, short - volume.coming_bytes)) > 0:
            self._untold += self._evict(volume, most, spare=spare, keep=keep)
        self._tell()
        if volume.short_on_disk(size_bytes, share=0.5) > 0:
            raise NoSpaceError(
                f"the disk of cache volume {volume.folder} is full",
                why=f"{size_bytes} bytes are needed and nothing of the cache can go",
                hint="make room on it",
            )
        if volume.used_bytes + size_bytes > volume.capacity_bytes:
            raise NoSpaceError(
                f"cache volume {volume.folder} is full",
                why=f"{size_bytes} bytes are needed and what is pinned or in use can't go",
                hint="unpin files, or give it more capacity",
            )

    def _make_room_on_disk(self, volume: Volume, size_bytes: int, *, keep: FileId | None = None) -> bool:
        """For a disk that is full although the capacity is not used up. False when nothing can go."""
        with self._lock:
            spare = min(EVICT_STEP_BYTES, volume.capacity_bytes // 64)
            gone = self._evict(volume, size_bytes, spare=spare, keep=keep)
            self._untold += gone
        self._tell()
        return bool(gone)

    @property
    def room_is_coming(self) -> bool:
        """Files went just now whose space is not back yet, as somebody has them open: told of it, at the latest now."""
        self._tell()
        with self._lock:
            return any(volume.coming_bytes for volume in self.disks)

    def room_for_written(self) -> int:
        """What the upper layer could have more of its disk, if no file were cached."""
        volume = self.disks[0]
        return volume.used_bytes - self._written_bytes + volume.free_bytes

    def _tell(self) -> None:
        if threading.get_ident() == self._home:
            told, self._untold = self._untold, []
            if told:
                self.on_evicted(told)

    def _evict(
        self, volume: Volume, bytes_needed: int, *, spare: int, keep: FileId | None = None
    ) -> list[FileId]:
        """Superseded files first, then those nobody fills any more, then the policy's; spare bytes more than
        needed. Files that are being filled go only for what is needed."""
        gone: list[FileId] = []
        left = bytes_needed + spare
        # each step is a list made only when the one before it was not enough
        for step in self._victims.steps:
            if step == self._victims.partial_open:
                left -= spare
            if left <= 0:
                break
            ids = step(volume, left, keep)
            for id in ids:
                self._forget_writer(id)
            left -= self._discard(ids)
            gone += ids
        self.evicted_files += len(gone)
        return gone

    def _is_open(self, id: FileId) -> bool:
        writer = self._writers.get(id)
        return writer is not None and not writer.closed

    # ------------------------------------------------------------ inside

    def _choose(self, size_bytes: int, *, spilled: bool) -> Volume:
        if spilled:
            return self._beside()
        return choose_volume(self.disks, size_bytes, high=self._high, make_room=self._make_room)

    def _write_small(self, volume: Volume, id: FileId, body: Body, extras: ObjectMetadata | None) -> None:
        path = volume.part_path(id)
        try:
            write_with_room(
                lambda: write_whole(path, body, extras),
                lambda: self._make_room_on_disk(volume, len(body), keep=id),
            )
            os.rename(path, volume.data_path(id))
        except OSError as error:
            raise storage_error(path, error) from error

    def _record(self, entry: Entry, volume: Volume, **details: Any) -> CachedFile:
        return CachedFile.of(entry, volume=volume.number, sequence=self._next_sequence(), **details)

    def _next_sequence(self) -> int:
        self.index.heed_clock()
        self._sequence += 1
        return self._sequence

    def _watch(self, writer: CacheWriter) -> CacheWriter:
        known = weakref.ref(writer)  # not the writer itself: that would keep it alive
        writer_volume, id = writer.volume, writer.id
        writer.on_grow = lambda count: self._grow(known(), count)
        writer.on_full = lambda count: self._make_room_on_disk(writer_volume, count, keep=id)
        self._writers[writer.id] = writer
        return writer

    def _grow(self, writer: CacheWriter | None, count: int) -> None:
        """Of a file being filled. NoSpaceError when nothing can go for it."""
        with self._lock:
            if (
                writer is None
                or self._writers.get(writer.id) is not writer
                or not self._accounts.is_partial(writer.id)
            ):
                if writer is None or count < 0:
                    return
                raise EvictedError(
                    f"cache file {writer.id:x} can't be written", why="it was evicted or freed"
                )
            if count > 0:
                self._make_room_to_grow(writer, count)
            self._accounts.grow(writer.id, count)

    def _make_room_to_grow(self, writer: CacheWriter, count: int) -> None:
        """EvictedError: of a file beside the disks what came first goes for what is wanted now."""
        try:
            self._make_room(writer.volume, count, keep=writer.id)
        except NoSpaceError as error:
            if writer.volume is not self.spill:
                raise
            self._forget_writer(writer.id)
            self._untold.append(writer.id)
            self._discard([writer.id])
            raise EvictedError(
                f"cache file {writer.id:x} can't be written", why="it is begun anew"
            ) from error

    def _forget_writer(self, id: FileId) -> None:
        writer = self._writers.pop(id, None)
        if writer is not None:
            writer.close()

    def _take_in(self, cached: CachedFile) -> None:
        """Enters what the index says into the accounts."""
        self._sequence = max(self._sequence, cached.sequence)
        self._accounts.take_in(cached)
        if cached.superseded:
            self._victims.superseded.append(cached.id)

    def _discard(self, ids: list[FileId]) -> int:
        """Records first, in one commit, then files: a crash between leaves files without a record."""
        found = [cached for cached in map(self.index.cached, ids) if cached is not None]
        if not found:
            return 0
        with self.index.batch():
            for cached in found:
                self.index.drop_cached(cached.id)
        failpoint.hit("discard.records")
        freed = 0
        for cached in found:
            self._accounts.pinned.discard(cached.id)
            freed += self._accounts.let_go(cached.id)
            self.volumes[cached.volume].unlink(cached.id)
        return freed

    def settle(self, cached: CachedFile, blocks: list[int] | None) -> list[int] | None:
        """Acts on what a check of this record found; the bad blocks, None when all of it is lost. A file that
        changed meanwhile is sound: it was made anew."""
        with self._lock:
            if self.index.cached(cached.id) != cached:
                return []
            if blocks is None:  # perhaps it was renamed under the check
                blocks = bad_blocks(self.volumes[cached.volume], cached)
            if blocks is None or blocks or cached.unverified:
                self._repair(cached, blocks)
            if blocks is None or blocks:
                self._untold.append(cached.id)  # who has it open should open it anew
        self._tell()
        return blocks

    def _drop_stray(self, volume: Volume, id: FileId) -> bool:
        with self._lock:
            cached = self.index.cached(id)
            if self._accounts.is_reserved(id) or (cached is not None and cached.volume == volume.number):
                return False
            volume.unlink(id)
            return True

    def _repair(self, cached: CachedFile, blocks: list[int] | None) -> None:
        """What was checked is trusted again; without its bad blocks, which makes it incomplete."""
        id, volume = cached.id, self.volumes[cached.volume]
        if blocks is None or (blocks and cached.size_bytes <= BLOCK_SIZE_BYTES):
            self._forget_writer(id)
            self._discard([id])
            return
        if blocks:
            self.index.put_cached(
                structs.replace(cached, complete=False, unverified=True)
            )  # stays so if we die half-way
            failpoint.hit("repair.record")
            known = self._writers.get(id) if self._is_open(id) else None
            writer = known or CacheWriter.reopen(volume, id, version_of(cached))
            if writer is None:
                self._discard([id])
                return
            for block in blocks:
                writer.drop_block(block)
            if known is None:
                writer.close()
        complete = cached.complete and not blocks
        self._accounts.let_go(id)
        fixed = structs.replace(cached, complete=complete, unverified=False, sequence=self._next_sequence())
        self.index.put_cached(fixed)
        self._take_in(fixed)
