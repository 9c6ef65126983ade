"""Recover the state that the last run left.

clean mark             everything is trusted.
same boot id           the node was killed; the page cache survived, so every bit and every record is valid.
another boot id        power was lost: the index is at its last checkpoint. A file whose sequence the last sync does
                       not cover, and every incomplete file, is marked unverified: no byte of it is served until
                       its checksums were verified.
a sync failed          the page cache may have bytes that the disk has not: files are marked as after a power loss.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from msgspec import structs

from headrace.base import failpoint
from headrace.base.errors import CorruptIndexError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId, Version, block_count
from headrace.store.block_map import BlockMap
from headrace.store.checksum import verify_file
from headrace.store.index import Index
from headrace.store.move_recovery import settle_moves, where_it_is
from headrace.store.schema import CachedFile
from headrace.store.sealed_files import SealedFile, StoredSeals
from headrace.store.volume import Volume

log = logging.getLogger(__name__)

BATCH = 1000


def recover(index: Index, volumes: list[Volume], seals: StoredSeals) -> int:
    """Mark files that can't be trusted and remove files without a record; return the number of marked ones. Files of
    seals get their records again. Only then the checkpoint is of this boot: if the start is killed before, the next one
    has the same work to do."""
    for cached in index.cached_files():
        if cached.volume >= len(volumes):
            raise CorruptIndexError(
                f"index {index.folder}", why=f"it names volume {cached.volume}, which is not given"
            )
    settle_moves(index, volumes)
    if index.state.clean:
        return 0
    marked = 0
    if index.state.restored or index.state.sync_failed:
        marked = _mark_unsynced(index, volumes)
    if index.state.created:
        _skip_sealed_ids(index, seals)
    if index.state.restored or index.state.created:
        _restore_sealed(index, volumes, seals.read_files())
        _remove_strays(index, volumes)
    for volume in volumes:
        volume.remove_empty_folders()
    failpoint.hit("recover.marked")
    if index.state.unsettled:
        index.state.checkpoint()
    return marked


def _remove_strays(index: Index, volumes: list[Volume]) -> None:
    """Remove files without a record. What a disk can't list or remove stays until fsck removes it. Nothing reads it,
    because no id is used again."""
    problems = list[str]()
    for volume, id in orphans(index, volumes, problems):
        try:
            volume.unlink(id)
        except StoreError as error:
            problems.append(str(error))
    if problems:
        log.warning("files without a record can't be removed count=%d first=%s", len(problems), problems[0])


def _mark_unsynced(index: Index, volumes: list[Volume]) -> int:
    """Mark the files that may not be on their disk as the index says. Return their number."""
    marked = 0
    suspects: list[CachedFile] = []
    for cached in index.cached_files():
        actual = where_it_is(volumes, cached)
        if actual is not cached or not _was_synced(index, volumes[cached.volume], cached):
            suspects.append(actual)
        if len(suspects) >= BATCH:
            marked += _mark(index, suspects)
            suspects = []
    return marked + _mark(index, suspects)


def _skip_sealed_ids(index: Index, seals: StoredSeals) -> None:
    """Leave the ids of sealed files to them. The first id of a new index follows from the clock, which may have been
    set back since the seal was made."""
    last = max((max(ids, default=0) for ids in seals.read_ids()), default=0)
    if last:
        index.state.skip_ids(last)


def _restore_sealed(index: Index, volumes: list[Volume], sealed: Iterable[SealedFile]) -> None:
    """Record the complete files of seals again that the index lost. They were synced when they were sealed. No name of
    the index leads to them, so they count as superseded."""
    files = iter(sealed)
    while batch := [*islice(files, BATCH)]:
        with index.batch():
            for file in batch:
                volume = None if index.cached(file.id) is not None else _volume_of(file, volumes)
                if volume is not None:
                    index.put_cached(_record_of(file, volume))


def _volume_of(file: SealedFile, volumes: list[Volume]) -> Volume | None:
    for volume in volumes:
        try:
            if os.stat(volume.data_path(file.id)).st_size == file.version.size_bytes:
                return volume
        except OSError:
            continue
    return None


def _record_of(file: SealedFile, volume: Volume) -> CachedFile:
    return CachedFile(
        id=file.id,
        volume=volume.number,
        size_bytes=file.version.size_bytes,
        mtime_ns=file.version.mtime_ns,
        token=file.version.token,
        complete=True,
        pinned=False,
        unverified=False,
        superseded=True,
        checksum=file.checksum if file.version.size_bytes <= BLOCK_SIZE_BYTES else 0,
        sequence=0,
    )


def _was_synced(index: Index, volume: Volume, cached: CachedFile) -> bool:
    """Return whether a file's bytes reached the disk. A file that was deleted after the last sync and fetched again has
    its old record back, but new bytes, which may be lost: its ctime is later."""
    if not cached.complete or cached.sequence > index.state.synced_sequence:
        return False
    try:
        status = os.stat(volume.data_path(cached.id))
    except OSError:
        return False
    return status.st_size == cached.size_bytes and status.st_ctime_ns <= index.state.synced_ns


def _mark(index: Index, suspects: list[CachedFile]) -> int:
    with index.batch():
        for cached in suspects:
            index.put_cached(structs.replace(cached, unverified=True))
    return len(suspects)


def doubt(index: Index, ids: Iterable[FileId]) -> int:
    """Mark complete files as unverified: no byte is served before it was verified. Return their number."""
    with index.batch():
        suspects = [cached for cached in map(index.cached, ids) if cached is not None and cached.trusted]
        return _mark(index, suspects)


def unsynced_batches(index: Index, volume: Volume) -> Iterator[list[FileId]]:
    """Yield the ids of the trusted files of a volume that the last sync does not cover, in batches."""
    covered = index.state.synced_sequence
    ids = (
        cached.id
        for cached in index.cached_files()
        if cached.volume == volume.number and cached.trusted and cached.sequence > covered
    )
    while batch := [*islice(ids, BATCH)]:
        yield batch


def orphans(index: Index, volumes: list[Volume], problems: list[str]) -> Iterator[tuple[Volume, FileId]]:
    """Yield the files without a record. problems: gets the error of each directory that can't be listed."""
    for volume in volumes:
        for id in volume.ids(lambda error: problems.append(str(error))):
            cached = index.cached(id)
            if cached is None or cached.volume != volume.number:
                yield volume, id


def version_of(cached: CachedFile) -> Version:
    return Version(cached.size_bytes, cached.mtime_ns, cached.token)


Verify = Callable[[int, int, dict[int, int]], Iterator[int]]
"""A function like `verify_file`."""


def bad_blocks(volume: Volume, cached: CachedFile, *, verify: Verify = verify_file) -> list[int] | None:
    """Return the present blocks whose bytes don't match and, of a complete file, absent ones. None if the file or its
    map is unusable. Reads every block."""
    path = volume.data_path(cached.id)
    if not os.path.exists(path):
        path = volume.part_path(cached.id)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cache file {path} can't be read", why=error.strerror or str(error)) from error
    try:
        stat = os.fstat(fd)
        if stat.st_size != cached.size_bytes:
            return None
        if cached.size_bytes <= BLOCK_SIZE_BYTES:
            sums = {0: cached.checksum} if cached.complete and cached.size_bytes else {}
            return list(verify(fd, cached.size_bytes, sums))
        sums = _map_checksums(volume.map_path(cached.id), cached.size_bytes, stat.st_ino)
        blocks = range(block_count(cached.size_bytes))
        absent = [block for block in blocks if block not in sums] if cached.complete else []
        return sorted([*verify(fd, cached.size_bytes, sums), *absent])
    except (FileNotFoundError, ValueError):
        return None
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cache file {path} can't be read", why=error.strerror or str(error)) from error
    finally:
        os.close(fd)


def _map_checksums(path: str, size_bytes: int, inode: int) -> dict[int, int]:
    """Return the checksums of the present blocks. FileNotFoundError, ValueError for another map, StoreError."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        map = BlockMap(fd, size_bytes, inode, writable=False)
        sums = map.checksums()
        map.close()
        return sums
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"map {path} can't be read", why=error.strerror or str(error)) from error
    finally:
        if fd >= 0:
            os.close(fd)
