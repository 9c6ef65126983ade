"""The cache of a node: index and cache files as one object. Read this module first.

docs/format/ has the steps of every change. Thread-safe; space.py says who gets reports of evictions. Lock order: the
store's (of file_registry.py), a writer's, the index's. A change survives kill -9 on return, a power loss after `sync`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType

from msgspec import structs

from headrace.base import failpoint
from headrace.base.beneath import SafePath
from headrace.base.errors import CorruptIndexError, EvictedError, HeadraceError, NoSpaceError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, FileId, ObjectMetadata
from headrace.base.sizes import disk_bytes
from headrace.base.volume_owner import check_volumes, claim_volumes
from headrace.base.whole_write import Body
from headrace.overlay.reserve import Reserve
from headrace.store.checksum import block_checksum
from headrace.store.file_moves import FileMoves
from headrace.store.file_registry import FileRegistry
from headrace.store.fsck import FsckProgress, FsckReport, OnSound
from headrace.store.index import Index
from headrace.store.move_recovery import forget_lost
from headrace.store.object_metadata import numbers_of, unnote
from headrace.store.recovery import recover, version_of
from headrace.store.room import keep_index_room, on_sound_disks, reserve_readers
from headrace.store.schema import CachedFile
from headrace.store.sealed_files import NO_SEALS, SealedFiles, StoredSeals
from headrace.store.space import CacheSpace, SpaceRules
from headrace.store.spill import close_volumes, forget_spilled, open_spill
from headrace.store.usage import allocated_bytes
from headrace.store.verifier import FileVerifier
from headrace.store.volume import Volume
from headrace.store.writer import (
    CacheWriter,
    storage_error,
    write_map,
    write_whole,
    write_with_room,
)

CTIME_LAG_S = 0.05
"""Seconds by which the kernel's clock for files may be behind the real one: a tick, and more on a busy machine."""
NO_EXTRAS: Mapping[FileId, ObjectMetadata] = MappingProxyType({})


class Store:
    """The cache of a node. space: admits and evicts files. verifier: checks files. moves: moves files between tiers.
    unverified_found: how many files recovery did not trust."""

    def __init__(
        self,
        index: Index,
        volumes: list[Volume],
        rules: SpaceRules,
        *,
        spill: Volume | None,
        seals: StoredSeals,
    ) -> None:
        self.index = index
        self.disks = volumes
        self.spill = spill
        self.volumes = volumes = volumes if spill is None else [*volumes, spill]
        """The disks and the spill, by number."""
        forget_spilled(index)
        forget_lost(index, self.disks)
        self.reserve = Reserve(volumes[0].folder)
        self.unverified_found = recover(index, self.disks, seals)
        parts = (rules.policy, rules.planned, rules.lives, rules.divide(index))
        self._files = FileRegistry(index, volumes, *parts)
        self.sealed = SealedFiles(self._files, seals)
        """Known before anything can be evicted."""
        self.space = CacheSpace(self._files, self.disks, spill, rules)
        self.verifier = FileVerifier(self._files, self.space)
        self.moves = FileMoves(self._files, self.space, low=rules.low, high=rules.high, is_on=rules.sinks)
        self._lock = self._files.lock
        self._sync_failed = self._closed = False

    @classmethod
    def open(
        cls,
        index_folder: str,
        volumes: list[Volume],
        *,
        rules: SpaceRules | None = None,
        boot_id: str | None = None,
        spill: tuple[str, str] | None = None,
        seals: StoredSeals = NO_SEALS,
    ) -> Store:
        """Open and recover the cache. rules: of eviction. spill: as in open_spill; None: there is none. seals: whose
        files are kept, and outlive the index. StoreBusyError, StoreError, CorruptIndexError; everything is closed
        then."""
        index: Index | None = None
        spill_volume: Volume | None = None
        try:
            folders = [volume.folder for volume in volumes]
            check_volumes(folders)  # before anything is created in a directory whose disk is missing
            for volume in volumes:
                volume.used_bytes = 0
                volume.open()
            claim_volumes(folders)
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
            store = cls(index, volumes, rules or SpaceRules(), spill=spill_volume, seals=seals)
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
        return self.space.used_bytes

    def statistics(self) -> dict[str, int]:
        return {
            **self._files.accounts.statistics(),
            "used_bytes": self.used_bytes,
            "files_evicted": self.space.evicted_files + self.moves.evicted_files,
            "files_unverified_found": self.unverified_found,
        }

    def create(self, entry: Entry, *, borrowed: bool = False, spilled: bool = False) -> CacheWriter:
        """Create an empty cache file with its record, and evict others for it. borrowed: another node owns it. spilled:
        put it outside the disks; it never has more bytes than the spill has space for. Raises NoSpaceError."""

        def create_on_some() -> CacheWriter:
            self._files.forget_writer(entry.id)
            self._files.forget([entry.id])
            volume = self.space.choose(entry.id, entry.version.size_bytes, borrowed=borrowed, spilled=spilled)
            writer = CacheWriter.create(volume, entry.id, entry.version, self.space)
            try:
                failpoint.hit("create.files")
                record = self._files.record(entry, volume, complete=False, borrowed=borrowed)
                record = self._files.put_new(record)
            except BaseException:  # the disk of the index is full, or fails
                writer.close()
                with suppress(StoreError):
                    volume.unlink(entry.id)
                self._files.accounts.groups.forget(entry.id)
                raise
            self._files.accounts.begin(record)
            if record.superseded:
                self.index.supersede(record.id)
            return self._files.watch(writer)

        with self._lock:
            return on_sound_disks(self.disks, create_on_some)

    def writer(self, id: FileId) -> CacheWriter | None:
        """Return the writer of an incomplete file, opened again if needed; None if there is none to continue, so that
        the caller creates it again."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or cached.complete or cached.unverified:
                return None
            open_writer = self._files.writers.get(id)
            if open_writer is not None and not open_writer.closed:
                return open_writer
            writer = CacheWriter.reopen(self.volumes[cached.volume], id, version_of(cached), self.space)
            return None if writer is None else self._files.watch(writer)

    def complete(self, writer: CacheWriter) -> CachedFile:
        """Commit a complete file, which is served completely from then on, and close the writer. Raises
        EvictedError."""
        if not writer.complete:
            raise StoreError(f"cache file {writer.id:x} is not whole", why="blocks are missing")
        with self._lock:
            volume, id = writer.volume, writer.id
            cached = self.index.cached(id)
            if cached is None or writer.closed or self._files.writers.get(id) is not writer:
                writer.close()  # the file may have been created again, with blocks of another writer
                raise EvictedError(f"cache file {id:x} was evicted", why="while it was filled")
            try:
                os.rename(volume.part_path(id), volume.data_path(id))
            except OSError as error:
                volume.note_failure(error)
                raise storage_error(volume.part_path(id), error) from error
            failpoint.hit("complete.renamed")
            done = structs.replace(
                cached,
                complete=True,
                unverified=False,
                checksum=writer.checksum,
                sequence=self._files.next_sequence(),
            )
            try:
                self.index.put_cached(done)
            except (
                HeadraceError
            ):  # the record is of an incomplete file, and the next attempt renames it again
                with suppress(OSError):
                    os.rename(volume.data_path(id), volume.part_path(id))
                raise
            self._files.accounts.remove(id)
            self._files.add(done)
            self._files.writers.pop(id, None)
            writer.close()
            self.space.tiered.note_placed(id, volume)
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
        _check_small(files)
        return on_sound_disks(
            self.disks, lambda: self._complete_small(files, borrowed=borrowed, extras=extras, spilled=spilled)
        )

    def _complete_small(
        self,
        files: list[tuple[Entry, Body]],
        *,
        borrowed: Container[FileId],
        extras: Mapping[FileId, ObjectMetadata],
        spilled: bool,
    ) -> list[CachedFile]:
        codes, volumes = numbers_of([entry for entry, _ in files], extras), list[Volume]()
        try:
            with self._lock:
                self._files.forget([entry.id for entry, _ in files])
                for entry, _ in files:
                    volumes.append(self._reserve(entry, borrowed=entry.id in borrowed, spilled=spilled))
            for (entry, body), volume in zip(files, volumes, strict=True):
                self._write_small(volume, entry.id, body, None if entry.id in codes else extras.get(entry.id))
                volume.written.add(len(body))
                failpoint.hit("small.written")
            sums = [block_checksum(body) if len(body) else 0 for _, body in files]
            with self._lock:
                done = [
                    self._files.record(
                        *(entry, volume),
                        complete=True,
                        checksum=checksum,
                        borrowed=entry.id in borrowed,
                        content_type_code=codes.get(entry.id),
                    )
                    for (entry, _), volume, checksum in zip(files, volumes, sums, strict=True)
                ]
                with self.index.batch():
                    done = [self._files.put_new(cached) for cached in done]
                for cached in done:
                    self._files.accounts.release(cached.id)
                    self._files.add(cached)
                return done
        except BaseException:
            self._undo_small(files, volumes)
            raise

    def _undo_small(self, files: list[tuple[Entry, Body]], volumes: list[Volume]) -> None:
        """Delete the files that have a reservation, each on its volume, and end the reservations. A disk that fails
        keeps its files, and the caller raises the first error."""
        with self._lock:
            for (entry, _), volume in zip(files, volumes, strict=False):
                self._files.accounts.release(entry.id)
                with suppress(StoreError):
                    volume.unlink(entry.id)

    def adopt(self, entry: Entry, place: SafePath, checksums: list[int], *, borrowed: bool) -> bool:
        """Turn the file at `place`, on the first volume's file system, into the complete cache file of an entry, by a
        rename. No process may write to it from then on. checksums: of its blocks.

        Return False, with nothing changed, if it is just being written here. Raises StoreError or NoSpaceError; the
        file then stays at its place.
        """
        with self._lock:
            volume, id = self.disks[0], entry.id
            if self._files.accounts.is_reserved(id):
                return False
            self._files.forget_writer(id)
            if self._files.discard([id]):
                self.space.note_evicted([id])
            small = checksums[0] if entry.version.size_bytes <= BLOCK_SIZE_BYTES and checksums else 0
            record = self._files.record(entry, volume, complete=True, checksum=small, borrowed=borrowed)
            try:
                status = place.lstat()
                write_map(volume, id, status, checksums)
                failpoint.hit("adopt.map")
                self.index.put_cached(record)
                failpoint.hit("adopt.recorded")
                volume.make_folder(id)
                place.rename_out(volume.data_path(id))
            except OSError as error:
                self.index.drop_cached(id)
                volume.unlink(id)
                raise storage_error(volume.data_path(id), error) from error
            failpoint.hit("adopt.renamed")
            # so that the file is not counted twice
            self.space.set_written(max(0, self.space.written_bytes - disk_bytes(status)))
            self._files.add(record)
            self.space.tiered.note_placed(id, volume)
        self.space.report_evicted()
        return True

    def _reserve(self, entry: Entry, *, borrowed: bool, spilled: bool) -> Volume:
        self.index.state.heed_clock()
        size_bytes = entry.version.size_bytes
        volume = self.space.choose(entry.id, size_bytes, borrowed=borrowed, spilled=spilled)
        if spilled:
            self.space.make_room(volume, allocated_bytes(size_bytes))
        self._files.accounts.reserve(entry.id, volume, allocated_bytes(size_bytes))
        return volume

    def touch(self, ids: Iterable[FileId]) -> None:
        """Record a use of files. Unknown ids are no error."""
        with self._lock:
            self._files.accounts.touch(ids)

    def pin(self, id: FileId, pinned: bool) -> bool:  # noqa: FBT001 - the name that callers use
        """Pin or unpin a file; a pinned file is never evicted. Return False and do nothing if no disk has it."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or self.volumes[cached.volume] is self.spill:
                return False
            self.index.put_cached(structs.replace(cached, pinned=pinned))
            (self._files.accounts.pinned.add if pinned else self._files.accounts.pinned.discard)(id)
            return True

    def holds(self, cached: CachedFile) -> bool:
        """Return whether a complete file exists as its record describes it. Otherwise delete the record: users delete
        files."""
        if os.path.exists(self.volumes[cached.volume].data_path(cached.id)):
            return True
        with self._lock:
            if self.index.cached(cached.id) == cached:
                self._files.forget([cached.id])
        return False

    def free(self, id: FileId) -> int:
        """Delete the cached copy, pinned or not; return the freed bytes. Open readers keep reading, but are notified:
        otherwise they would hold its space."""
        with self._lock:
            self._files.forget_writer(id)
            freed = self._files.discard([id])
            if freed:
                self.space.note_evicted([id])
        self.space.report_evicted()
        return freed

    def fsck(self, progress: FsckProgress, on_sound: OnSound = lambda _: None) -> FsckReport:
        """Verify and repair everything, as `FileVerifier.fsck` does; repairs survive a power loss, or the report has
        the reason. Blocks for as long as it takes to read all cached bytes."""
        report = self.verifier.fsck(progress, on_sound)
        if report.repairs:
            try:
                self.sync()
            except CorruptIndexError:
                raise
            except (StoreError, NoSpaceError) as error:
                report.problems.append(str(error))
        return report

    def sync(self) -> None:
        """Make all complete files trusted after a power loss, too. Blocks: flushes the volumes' file systems."""
        self._sync(pause_s=CTIME_LAG_S)

    def _sync(self, *, pause_s: float) -> None:
        sequence, at_ns = self._files.sequence, time.time_ns()
        time.sleep(pause_s)  # so that every file with a ctime before at_ns is on the disk
        failures = [*_failed_syncs(self.disks)]
        for volume, _ in failures:
            self._sync_failed = True  # the kernel reports a page that it could not write only once
            self.verifier.distrust_unsynced(volume)
        for _, error in failures:
            raise error
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
            for id in list(self._files.writers):
                self._files.forget_writer(id)
            forget_spilled(self.index)
            self._sync(pause_s=0)
            self.index.close(clean=not self._sync_failed)
        except HeadraceError:
            self.index.close(clean=False)
            raise
        finally:
            close_volumes(self.disks, self.spill)

    def set_borrowed(self, id: FileId, *, borrowed: bool) -> None:
        """Update a file's record after a change of owners. Do nothing if the file is not cached."""
        with self._lock:
            cached = self.index.cached(id)
            if cached is None or cached.borrowed == borrowed:
                return
            changed = structs.replace(cached, borrowed=borrowed)
            self.index.put_cached(changed)
            if cached.complete:
                self._files.accounts.set_borrowed(changed)

    def _write_small(self, volume: Volume, id: FileId, body: Body, extras: ObjectMetadata | None) -> None:
        path = volume.part_path(id)
        try:
            write_with_room(
                lambda: write_whole(volume, path, body, extras),
                lambda: self.space.make_room_on_disk(volume, len(body), keep=id),
            )
            os.rename(path, volume.data_path(id))
        except OSError as error:
            volume.note_failure(error)
            raise storage_error(path, error) from error


def _failed_syncs(volumes: list[Volume]) -> Iterator[tuple[Volume, StoreError]]:
    """Sync each volume, also behind one that fails. Yield those that failed, with the error."""
    for volume in volumes:
        volume.written.save(now=True)
        try:
            volume.sync()
        except StoreError as error:
            yield volume, error


def _check_small(files: list[tuple[Entry, Body]]) -> None:
    for entry, body in files:
        if len(body) != entry.version.size_bytes or len(body) > BLOCK_SIZE_BYTES:
            raise ValueError(f"{len(body)} bytes for a file of {entry.version.size_bytes}")
