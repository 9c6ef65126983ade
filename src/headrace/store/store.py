"""The cache of a node: index and cache files as one object. Read this module first.

docs/format.md has the steps of every change. Thread-safe; but `evicted` is called only from the thread that opened
the store: files that another thread evicts are reported at its next call. Lock order: store, then index.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any

from msgspec import structs

from headrace.base import failpoint
from headrace.base.beneath import SafePath
from headrace.base.errors import EvictedError, HeadraceError, NoSpaceError, StoreError
from headrace.base.listeners import Listeners
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
"""Bytes evicted per acquisition of the lock, beyond the bytes needed at once: some 60 ms for files of 4 KiB."""
CTIME_LAG_S = 0.05
"""How far the kernel's clock for files may be behind the real one: a tick, and more on a busy machine."""
NO_EXTRAS: Mapping[FileId, ObjectMetadata] = MappingProxyType({})


class Store:
    """The cache of a node. evicted: called with the ids of evicted files. unverified_found: how many recovery did
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
        """The disks and the spill, by number."""
        self._has_spilled = False
        forget_spilled(index)
        self.reserve = Reserve(volumes[0].folder)
        self.evicted: Listeners[[list[FileId]]] = Listeners()
        self.evicted_files = 0
        self._high, self._low, self._borrowed_share = high, low, borrowed_share
        self._accounts = Accounts(volumes, policy)
        self._draining: set[int] = set()  # volumes that were above the high watermark
        self._sync_failed = False
        self._written_bytes = self._index_bytes = 0
        self._writers: weakref.WeakValueDictionary[FileId, CacheWriter] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        self._home = threading.get_ident()
        self._unreported, self._closed = list[FileId](), False
        self._victims = Victims(index, self._accounts, self._is_open)
        self.unverified_found = recover(index, self.disks)
        self._sequence = index.state.synced_sequence
        for cached in index.cached_files():
            self._add_to_accounts(cached)

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
        """Open and recover the cache. high, low: shares of a volume's capacity where eviction begins and ends.
        borrowed_share: the share for files that other nodes own. spill: as in open_spill; None: there is none.
        StoreBusyError, StoreError, CorruptIndexError; everything is closed then."""
        index: Index | None = None
        spill_volume: Volume | None = None
        try:
            for volume in volumes:
                volume.used_bytes = 0
                volume.open()
            reserve = Reserve(volumes[0].folder)
            reserve_readers(index_folder, reserve)
            by_number = [*volumes]
            index = reserve.spend(
                lambda: Index.open(
                    index_folder, writable=True, boot_id=boot_id, on_redated=partial(unnote, by_number)
                )
            )
            spill_volume = None if spill is None else open_spill(*spill, volumes)
            by_number += [] if spill_volume is None else [spill_volume]
            store = cls(
                index, volumes, policy, high=high, low=low, borrowed_share=borrowed_share, spill=spill_volume
            )
            store.keep_room()
            return store
        except BaseException:
            if index is not None:
                index.close(clean=False)
            close_volumes(volumes, spill_volume)
            raise

    @property
    def generation(self) -> int:
        return self.index.state.generation

    @property
    def used_bytes(self) -> int:
        """Return the bytes of cache files and the upper layer, without the index."""
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
        """Create an empty cache file with its record, and evict others for it. borrowed: another node owns it. spilled:
        put it outside the disks; it never has more bytes than the spill has space for. NoSpaceError."""
        with self._lock:
            self._forget_writer(entry.id)
            self._discard([entry.id])
            volume = self._choose(entry.version.size_bytes, spilled=spilled)
            writer = CacheWriter.create(volume, entry.id, entry.version, self)
            failpoint.hit("create.files")
            record = self._record(entry, volume, complete=False, borrowed=borrowed)
            self.index.put_cached(record)
            self._accounts.begin(record)
            return self._watch(writer)

    def writer(self, id: FileId) -> CacheWriter | None:
        """Return the writer of an incomplete file, opened again if needed; None if there is none to continue: create it
        anew."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or cached.complete or cached.unverified:
                return None
            open_writer = self._writers.get(id)
            if open_writer is not None and not open_writer.closed:
                return open_writer
            writer = CacheWriter.reopen(self.volumes[cached.volume], id, version_of(cached), self)
            return None if writer is None else self._watch(writer)

    def complete(self, writer: CacheWriter) -> CachedFile:
        """Commit a complete file, which is served completely from then on, and close the writer. EvictedError."""
        if not writer.complete:
            raise StoreError(f"cache file {writer.id:x} is not whole", why="blocks are missing")
        with self._lock:
            volume, id = writer.volume, writer.id
            cached = self.index.cached(id)
            if cached is None or writer.closed or self._writers.get(id) is not writer:
                writer.close()  # the file may have been created anew, with blocks of another writer
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
            self._accounts.remove(id)
            self._add_to_accounts(done)
            self._writers.pop(id, None)
            writer.close()
            return done

    def complete_small(self, entry: Entry, body: Body) -> CachedFile:
        """Store a file of at most one block in one step."""
        return self.complete_small_many([(entry, body)])[0]

    def complete_small_many(
        self,
        files: list[tuple[Entry, Body]],
        *,
        borrowed: Container[FileId] = (),
        extras: Mapping[FileId, ObjectMetadata] = NO_EXTRAS,
        spilled: bool = False,
    ) -> list[CachedFile]:
        """Store many such files by one commit, which records all or none. The files are written outside the lock; the
        same id must not be written twice at a time. extras: known attributes of objects. spilled: as in create."""
        for entry, body in files:
            if len(body) != entry.version.size_bytes or len(body) > BLOCK_SIZE_BYTES:
                raise ValueError(f"{len(body)} bytes for a file of {entry.version.size_bytes}")
        codes, volumes = numbers_of([entry for entry, _ in files], extras), list[Volume]()
        try:
            with self._lock:
                self._discard([entry.id for entry, _ in files])
                for entry, _ in files:
                    volumes.append(self._reserve(entry, spilled=spilled))
            for (entry, body), volume in zip(files, volumes, strict=True):
                self._write_small(volume, entry.id, body, None if entry.id in codes else extras.get(entry.id))
                failpoint.hit("small.written")
            sums = [block_checksum(body) if len(body) else 0 for _, body in files]
            with self._lock:
                done = [
                    self._record(
                        *(entry, volume),
                        complete=True,
                        checksum=checksum,
                        borrowed=entry.id in borrowed,
                        content_type_code=codes.get(entry.id),
                    )
                    for (entry, _), volume, checksum in zip(files, volumes, sums, strict=True)
                ]
                with self.index.batch():
                    for cached in done:
                        self.index.put_cached(cached)
                for cached in done:
                    self._accounts.release(cached.id)
                    self._add_to_accounts(cached)
                return done
        except BaseException:
            with self._lock:
                reserved = [entry for (entry, _), _ in zip(files, volumes, strict=False)]
                for entry, volume in zip(reserved, volumes, strict=True):
                    volume.unlink(entry.id)
                    self._accounts.release(entry.id)
            raise

    def adopt(self, entry: Entry, place: SafePath, checksums: list[int], *, borrowed: bool) -> bool:
        """Turn the file at `place`, on the first volume's file system, into the complete cache file of an entry, by a
        rename. Nobody may write to it any more. checksums: of its blocks. Return False, with nothing changed, if it is
        just being written here. StoreError, NoSpaceError; the file stays where it was then."""
        with self._lock:
            volume, id = self.disks[0], entry.id
            if self._accounts.is_reserved(id):
                return False
            self._forget_writer(id)
            if self._discard([id]):
                self._unreported.append(id)
            small = checksums[0] if entry.version.size_bytes <= BLOCK_SIZE_BYTES and checksums else 0
            record = self._record(entry, volume, complete=True, checksum=small, borrowed=borrowed)
            try:
                status = place.lstat()
                write_map(volume, id, status, checksums)
                failpoint.hit("adopt.map")
                self.index.put_cached(record)
                failpoint.hit("adopt.recorded")
                place.rename_out(volume.data_path(id))
            except OSError as error:
                self.index.drop_cached(id)
                volume.unlink(id)
                raise storage_error(volume.data_path(id), error) from error
            failpoint.hit("adopt.renamed")
            # so that the file is not counted twice
            self.set_written(max(0, self._written_bytes - status.st_blocks * 512))
            self._add_to_accounts(record)
        self._report_evicted()
        return True

    def _reserve(self, entry: Entry, *, spilled: bool) -> Volume:
        self.index.state.heed_clock()
        size_bytes = entry.version.size_bytes
        volume = self._choose(size_bytes, spilled=spilled)
        if spilled:
            self._make_room(volume, allocated_bytes(size_bytes))
        self._accounts.reserve(entry.id, volume, allocated_bytes(size_bytes))
        return volume

    @property
    def _volumes_open(self) -> list[Volume]:
        return self.volumes if self._has_spilled else self.disks

    def _open_spill(self) -> Volume:
        if self.spill is None:
            raise NoSpaceError("reading past the cache", why="there is no space for it outside of its disks")
        if not self._has_spilled:
            note_spilled(self.index, self.spill)
            self._has_spilled = True
        return self.spill

    # ------------------------------------------------------------ use

    def touch(self, ids: Iterable[FileId]) -> None:
        """Record a use of files. Unknown ids are no error."""
        with self._lock:
            self._accounts.touch(ids)

    def pin(self, id: FileId, pinned: bool) -> bool:  # noqa: FBT001 - the name that callers use
        """Pin or unpin a file; a pinned file is never evicted. Return False and do nothing if no disk has it."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or self.volumes[cached.volume] is self.spill:
                return False
            self.index.put_cached(structs.replace(cached, pinned=pinned))
            (self._accounts.pinned.add if pinned else self._accounts.pinned.discard)(id)
            return True

    def holds(self, cached: CachedFile) -> bool:
        """Return whether a complete file exists as its record says; if not, delete the record: users delete files."""
        if os.path.exists(self.volumes[cached.volume].data_path(cached.id)):
            return True
        with self._lock:
            if self.index.cached(cached.id) == cached:
                self._discard([cached.id])
        return False

    def free(self, id: FileId) -> int:
        """Delete the cached copy, pinned or not; return the freed bytes. Open readers keep reading, but are notified:
        otherwise they would hold its space."""
        with self._lock:
            self._forget_writer(id)
            freed = self._discard([id])
            if freed:
                self._unreported.append(id)
        self._report_evicted()
        return freed

    def verify(self, id: FileId) -> bool:
        """Verify a file, and trust its valid blocks. Return whether no block was bad. It reads all of the file, outside
        the lock, in about 0.2 ms a MiB."""
        cached = self.index.cached(id)
        if cached is None:
            return False
        return self.settle(cached, bad_blocks(self.volumes[cached.volume], cached)) == []

    def fsck(self, progress: FsckProgress, on_sound: OnSound = lambda _: None) -> FsckReport:
        """Verify and repair everything; reads every cached byte, a file at a time, outside the lock. progress: files
        checked, files in all, bytes checked, bytes in all; an exception that it raises ends the check. Repairs survive
        a power loss."""
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
        """Make all complete files trusted after a power loss, too. Blocks: flushes the volumes' file systems."""
        self._sync(pause_s=CTIME_LAG_S)

    def _sync(self, *, pause_s: float) -> None:
        sequence, at_ns = self._sequence, time.time_ns()
        time.sleep(pause_s)  # so that every file with a ctime before at_ns is on the disk
        try:
            for volume in self.disks:
                volume.sync()
        except StoreError:
            self._sync_failed = True  # the kernel reports a page that it could not write only once
            raise
        failpoint.hit("sync.volumes")
        if self._sync_failed:
            self.index.state.checkpoint()
        else:
            self.index.state.checkpoint(synced_sequence=sequence, synced_ns=at_ns)

    def keep_room(self) -> None:
        """Reserve space for the index on a disk that others fill, too; call it regularly. It suppresses OSErrors."""
        with suppress(OSError):
            self.reserve.refill(-self.disks[0].short_on_disk(0, share=0.5))
            keep_index_room(self.index.folder, self.reserve)

    def close(self) -> None:
        """Sync everything and mark it clean. Nothing may be called afterwards."""
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
        """Set how many bytes of the first volume the upper layer takes, beside the cache files."""
        with self._lock:
            self.disks[0].used_bytes += size_bytes - self._written_bytes
            self._written_bytes = size_bytes

    def _count_index(self) -> None:
        """Add the index to the first volume's used bytes, at most half of the capacity: it can't be evicted."""
        previous, half = self._index_bytes, self.disks[0].capacity_bytes // 2
        self._index_bytes = min(self.index.size_bytes, half)
        self.disks[0].used_bytes += self._index_bytes - previous

    def evict_if_needed(self) -> list[FileId]:
        """Bring each volume above its high watermark a step towards the low one, and return the evicted ids. Call it
        again while it returns some: in between, others get the lock."""
        with self._lock:
            evicted: list[FileId] = []
            self._count_index()
            for volume in self._volumes_open:
                if volume.used_bytes > self._high * volume.capacity_bytes:
                    self._draining.add(volume.number)
                evicted += self._trim_borrowed(volume)
                surplus = volume.used_bytes - int(self._low * volume.capacity_bytes)
                if surplus <= 0:
                    self._draining.discard(volume.number)
                if volume.number not in self._draining:
                    surplus = 0
                # other programs and the upper layer fill the disk, too
                surplus = max(surplus, volume.short_on_disk(0) - volume.coming_bytes)
                if surplus > 0:
                    evicted += self._evict(volume, 0, spare=min(surplus, EVICT_STEP_BYTES))
            self._unreported += evicted + self._drop_spilled()
        self._report_evicted()
        return evicted

    def _drop_spilled(self) -> list[FileId]:
        """Delete spilled files that are not being filled, if a disk can accept them next time."""
        spill = self.spill
        if spill is None or not spill.used_bytes or all(disk.disk_is_full for disk in self.disks):
            return []
        self._discard(ids := self._victims.all_idle(spill))
        return ids

    def _trim_borrowed(self, volume: Volume) -> list[FileId]:
        """Evict a step of the borrowed files beyond their share, and return the ids."""
        policy = self._accounts.policies[volume.number]
        surplus = policy.borrowed_bytes - int(self._borrowed_share * volume.capacity_bytes)
        if surplus <= 0:
            return []
        ids = policy.borrowed_victims(min(surplus, EVICT_STEP_BYTES), self._accounts.pinned.__contains__)
        self._discard(ids)
        self.evicted_files += len(ids)
        return ids

    def set_borrowed(self, id: FileId, *, borrowed: bool) -> None:
        """Update a file's record after a change of owners. Do nothing if the file is not cached."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or cached.borrowed == borrowed:
                return
            changed = structs.replace(cached, borrowed=borrowed)
            self.index.put_cached(changed)
            if cached.complete:
                self._accounts.set_borrowed(changed)

    def _make_room(self, volume: Volume, size_bytes: int, *, keep: FileId | None = None) -> None:
        """Evict files until that many bytes fit. NoSpaceError if that is impossible. keep: a file that must stay."""
        over, short = volume.used_bytes + size_bytes - volume.capacity_bytes, volume.short_on_disk(size_bytes)
        if max(over, short) <= 0:
            return
        spare = min(EVICT_STEP_BYTES, volume.capacity_bytes // 64)
        if (most := max(over, short - volume.coming_bytes)) > 0:
            self._unreported += self._evict(volume, most, spare=spare, keep=keep)
        self._report_evicted()
        if volume.short_on_disk(size_bytes, share=0.5) > 0:
            raise NoSpaceError(
                f"the disk of cache volume {volume.folder} is full",
                why=f"{size_bytes} bytes are needed and no cached file can be evicted",
                hint="free space on it",
            )
        if volume.used_bytes + size_bytes > volume.capacity_bytes:
            raise NoSpaceError(
                f"cache volume {volume.folder} is full",
                why=f"{size_bytes} bytes are needed and pinned files and files in use can't be evicted",
                hint="unpin files, or give it more capacity",
            )

    def _make_room_on_disk(self, volume: Volume, size_bytes: int, *, keep: FileId | None = None) -> bool:
        """Evict files from a full disk whose capacity is not used up. Return False if nothing can be evicted."""
        with self._lock:
            spare = min(EVICT_STEP_BYTES, volume.capacity_bytes // 64)
            evicted = self._evict(volume, size_bytes, spare=spare, keep=keep)
            self._unreported += evicted
        self._report_evicted()
        return bool(evicted)

    @property
    def room_is_coming(self) -> bool:
        """Report evicted files; return whether recent ones still hold space, because somebody has them open."""
        self._report_evicted()
        with self._lock:
            return any(volume.coming_bytes for volume in self.disks)

    def room_for_written(self) -> int:
        """Return how much larger the upper layer could be if no file were cached, in bytes."""
        volume = self.disks[0]
        return volume.used_bytes - self._written_bytes + volume.free_bytes

    def _report_evicted(self) -> None:
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
            if bytes_left <= 0:
                break
            ids = step(volume, bytes_left, keep)
            for id in ids:
                self._forget_writer(id)
            bytes_left -= self._discard(ids)
            evicted += ids
        self.evicted_files += len(evicted)
        return evicted

    def _is_open(self, id: FileId) -> bool:
        writer = self._writers.get(id)
        return writer is not None and not writer.closed

    # ------------------------------------------------------------ inside

    def _choose(self, size_bytes: int, *, spilled: bool) -> Volume:
        if spilled:
            return self._open_spill()
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
        self.index.state.heed_clock()
        self._sequence += 1
        return self._sequence

    def _watch(self, writer: CacheWriter) -> CacheWriter:
        """Register a writer of this store."""
        self._writers[writer.id] = writer
        return writer

    def make_room_to_write(self, writer: CacheWriter, count: int) -> bool:
        """Free space on the disk itself, as WriterRoom says."""
        return self._make_room_on_disk(writer.volume, count, keep=writer.id)

    def grow(self, writer: CacheWriter, count: int) -> None:
        """Account for bytes of a file that is being filled. NoSpaceError if nothing can be evicted for it."""
        with self._lock:
            if self._writers.get(writer.id) is not writer or not self._accounts.is_partial(writer.id):
                if count < 0:
                    return
                raise EvictedError(
                    f"cache file {writer.id:x} can't be written", why="it was evicted or freed"
                )
            if count > 0:
                self._make_room_to_grow(writer, count)
            self._accounts.grow(writer.id, count)

    def _make_room_to_grow(self, writer: CacheWriter, count: int) -> None:
        """Make space for more bytes of a file. In the spill, that drops the file's earlier bytes: EvictedError."""
        try:
            self._make_room(writer.volume, count, keep=writer.id)
        except NoSpaceError as error:
            if writer.volume is not self.spill:
                raise
            self._forget_writer(writer.id)
            self._unreported.append(writer.id)
            self._discard([writer.id])
            raise EvictedError(
                f"cache file {writer.id:x} can't be written", why="its earlier bytes are dropped"
            ) from error

    def _forget_writer(self, id: FileId) -> None:
        writer = self._writers.pop(id, None)
        if writer is not None:
            writer.close()

    def _add_to_accounts(self, cached: CachedFile) -> None:
        """Add the record of a file to the accounts."""
        self._sequence = max(self._sequence, cached.sequence)
        self._accounts.add(cached)
        if cached.superseded:
            self.index.supersede(cached.id)

    def _discard(self, ids: list[FileId]) -> int:
        """Delete records in one commit, then files: a crash in between leaves files without a record. Return freed
        bytes."""
        records = [cached for cached in map(self.index.cached, ids) if cached is not None]
        if not records:
            return 0
        with self.index.batch():
            for cached in records:
                self.index.drop_cached(cached.id)
        failpoint.hit("discard.records")
        freed = 0
        for cached in records:
            self._accounts.pinned.discard(cached.id)
            freed += self._accounts.remove(cached.id)
            self.volumes[cached.volume].unlink(cached.id)
        return freed

    def settle(self, cached: CachedFile, blocks: list[int] | None) -> list[int] | None:
        """Act on the result of a verification; return the bad blocks, None if the file is lost, [] if it changed
        meanwhile."""
        with self._lock:
            if self.index.cached(cached.id) != cached:
                return []
            if blocks is None:  # the file may have been renamed during the check
                blocks = bad_blocks(self.volumes[cached.volume], cached)
            if blocks is None or blocks or cached.unverified:
                self._repair(cached, blocks)
            if blocks is None or blocks:
                self._unreported.append(cached.id)  # readers should open it again
        self._report_evicted()
        return blocks

    def _drop_stray(self, volume: Volume, id: FileId) -> bool:
        with self._lock:
            cached = self.index.cached(id)
            if self._accounts.is_reserved(id) or (cached is not None and cached.volume == volume.number):
                return False
            volume.unlink(id)
            return True

    def _repair(self, cached: CachedFile, blocks: list[int] | None) -> None:
        """Trust a verified file again without its bad blocks, which makes it incomplete."""
        id, volume = cached.id, self.volumes[cached.volume]
        if blocks is None or (blocks and cached.size_bytes <= BLOCK_SIZE_BYTES):
            self._forget_writer(id)
            self._discard([id])
            return
        if blocks:
            # the record stays so if the node dies before the end
            self.index.put_cached(structs.replace(cached, complete=False, unverified=True))
            failpoint.hit("repair.record")
            open_writer = self._writers.get(id) if self._is_open(id) else None
            writer = open_writer or CacheWriter.reopen(volume, id, version_of(cached))
            if writer is None:
                self._discard([id])
                return
            for block in blocks:
                writer.drop_block(block)
            if open_writer is None:
                writer.close()
        complete = cached.complete and not blocks
        self._accounts.remove(id)
        fixed = structs.replace(cached, complete=complete, unverified=False, sequence=self._next_sequence())
        self.index.put_cached(fixed)
        self._add_to_accounts(fixed)
