"""Fill one cache file; for the node only. Bytes are written first, then the checksum, then the bit: if a bit is set,
the bytes may be read.

Any thread may write, and several may write different blocks at the same time. Nothing is durable against a power loss
by itself: see Store.sync. A one-block file has no map: it exists or not, and one that was half-written before kill -9
does not.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.base import failpoint
from headrace.base.errors import EvictedError, NoSpaceError, StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId, ObjectMetadata, Version, block_count, block_range
from headrace.base.whole_write import Body, pwrite_all
from headrace.overlay.object_metadata import store_origin_extras
from headrace.store.block_map import BlockMap
from headrace.store.checksum import block_checksum
from headrace.store.volume import Volume

FULL_ATTEMPTS = 8
"""Attempts to write after an eviction. Evicted files may be open elsewhere, and then free nothing; a guess."""


def storage_error(path: str, error: OSError) -> StoreError | NoSpaceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(f"cache file {path} can't be written", why="the filesystem is full")
    return StoreError(f"cache file {path} can't be written", why=error.strerror or str(error))


def write_whole(volume: Volume, path: str, body: Body, extras: ObjectMetadata | None) -> None:
    fd = volume.create(path, os.O_WRONLY | os.O_TRUNC)
    try:
        pwrite_all(fd, body, 0)
        if extras is not None:
            store_origin_extras(fd, len(body), extras)
    finally:
        os.close(fd)


def write_with_room(write: Callable[[], None], make_room: Callable[[], bool]) -> None:
    """Write and, if the disk is full, free space and write again: a disk may be full before its capacity is used up.
    make_room: returns False when nothing more can be evicted."""
    for _ in range(FULL_ATTEMPTS):
        try:
            return write()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not make_room():
                raise
    return write()


def write_map(volume: Volume, id: FileId, status: os.stat_result, checksums: list[int]) -> None:
    """Write the map of a complete file of more than one block, in the place of an old map; a smaller file has none.
    status: of the file. Raises OSError."""
    if status.st_size <= BLOCK_SIZE_BYTES:
        return
    volume.unlink(id)
    fd = volume.create(volume.map_path(id), os.O_RDWR | os.O_EXCL)
    try:
        BlockMap.initialise(fd, status.st_size, status.st_ino)
        map = BlockMap(fd, status.st_size, status.st_ino, writable=True)
        for block, checksum in enumerate(checksums):
            map.set(block, checksum)
        map.close()
    finally:
        os.close(fd)


class WriterRoom(Protocol):
    """Provides space to writers: the store."""

    def grow(self, writer: CacheWriter, count: int) -> None:
        """Account for so many bytes more, or less, before they are written. Raises NoSpaceError or EvictedError."""
        ...

    def make_room_to_write(self, writer: CacheWriter, count: int) -> bool:
        """Free space on the disk itself; return False if nothing can be freed."""
        ...


class CacheWriter:
    """An open cache file that is being filled. room: accounts for its bytes; None for a file that is accounted for."""

    def __init__(
        self,
        volume: Volume,
        id: FileId,
        version: Version,
        fd: int,
        map: BlockMap | None,
        room: WriterRoom | None = None,
    ) -> None:
        self.volume = volume
        self.id = id
        self.version = version
        self.fd = fd
        self.checksum = 0  # of a one-block file
        self._room = room
        self._blocks = block_count(version.size_bytes)
        self._map = map
        self._lock = threading.Lock()
        self._writing = 0
        self._closing = False
        self._noted = False
        self.blocks_present = map.count() if map is not None else 0

    @classmethod
    def create(
        cls,
        volume: Volume,
        id: FileId,
        version: Version,
        room: WriterRoom | None = None,
    ) -> CacheWriter:
        """Create an empty sparse file. An older file of that id is unlinked; its readers keep it open."""
        volume.unlink(id)
        path = volume.part_path(id)
        fds: list[int] = []
        try:
            fds.append(volume.create(path, os.O_RDWR | os.O_EXCL))
            os.ftruncate(fds[0], version.size_bytes)
            if version.size_bytes <= BLOCK_SIZE_BYTES:
                return cls(volume, id, version, fds[0], None, room)
            failpoint.hit("writer.created")
            fds.append(volume.create(volume.map_path(id), os.O_RDWR | os.O_EXCL))
            inode = os.fstat(fds[0]).st_ino
            BlockMap.initialise(fds[1], version.size_bytes, inode)
            map = BlockMap(fds[1], version.size_bytes, inode, writable=True)
            os.close(fds.pop())
            return cls(volume, id, version, fds[0], map, room)
        except OSError as error:
            for fd in fds:
                os.close(fd)
            volume.note_failure(error)
            volume.unlink(id)
            raise storage_error(path, error) from error

    @classmethod
    def reopen(
        cls,
        volume: Volume,
        id: FileId,
        version: Version,
        room: WriterRoom | None = None,
    ) -> CacheWriter | None:
        """Open a file that an earlier process began; None if it is unusable."""
        path, complete_path = volume.part_path(id), volume.data_path(id)
        fds: list[int] = []
        try:
            if not os.path.exists(path) and os.path.exists(complete_path):
                os.rename(complete_path, path)  # killed between the rename and the commit of the record
            fds.append(os.open(path, os.O_RDWR | os.O_CLOEXEC))
            stat = os.fstat(fds[0])
            if stat.st_size != version.size_bytes:
                raise ValueError("wrong length")
            if version.size_bytes <= BLOCK_SIZE_BYTES:
                return cls(volume, id, version, fds[0], None, room)
            fds.append(os.open(volume.map_path(id), os.O_RDWR | os.O_CLOEXEC))
            map = BlockMap(fds[1], version.size_bytes, stat.st_ino, writable=True)
            os.close(fds.pop())
            return cls(volume, id, version, fds[0], map, room)
        except (FileNotFoundError, ValueError):
            for fd in fds:
                os.close(fd)
            return None
        except OSError as error:
            for fd in fds:
                os.close(fd)
            volume.note_failure(error)
            raise storage_error(path, error) from error

    @property
    def complete(self) -> bool:
        return self.blocks_present >= self._blocks

    @property
    def closed(self) -> bool:
        """Return whether nothing more can be written; a write in progress may still be ending."""
        return self._closing

    def present(self, start: int, end: int) -> bool:
        """Return whether all blocks of start..end are present. Raises EvictedError if the writer was closed before they
        were."""
        if self.complete or end <= start:
            return True
        blocks = block_range(start, end)
        with self._lock:  # another thread may close the map
            if self._closing:
                raise self._evicted()
            return self._map is not None and self._map.has_all(blocks.start, blocks.stop)

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the absent parts of start..end as ranges of whole blocks; the last one ends at the end of the file."""
        ranges: list[tuple[int, int]] = []
        size = self.version.size_bytes
        for block in block_range(start, min(end, size)):
            low = block * BLOCK_SIZE_BYTES
            high = min(low + BLOCK_SIZE_BYTES, size)
            if self.present(low, high):
                continue
            if ranges and ranges[-1][1] == low:
                ranges[-1] = (ranges[-1][0], high)
            else:
                ranges.append((low, high))
        return ranges

    def write(self, offset: int, body: Body, extras: ObjectMetadata | None = None) -> None:
        """Write blocks, which are present on return. offset: the beginning of a block; body: whole blocks, or up to the
        file's end. extras: of the object, if known; stored once. StoreError (EIO), NoSpaceError, EvictedError (closed);
        after an error the blocks are not present."""
        length, size = len(body), self.version.size_bytes
        if (
            offset % BLOCK_SIZE_BYTES
            or offset + length > size
            or (length % BLOCK_SIZE_BYTES and offset + length != size)
        ):
            raise ValueError(f"{offset}+{length} is not whole blocks of a file of {size}")
        with self._lock:
            if self._closing:
                raise self._evicted()
            self._writing += 1
        try:
            self._write(offset, body, extras)
        finally:
            with self._lock:
                self._writing -= 1
                last = self._closing and self._writing == 0
            if last:
                self._close()

    def _grow(self, count: int) -> None:
        if self._room is not None:
            self._room.grow(self, count)

    def _make_room(self, count: int) -> bool:
        return self._room is not None and self._room.make_room_to_write(self, count)

    def _write(self, offset: int, body: Body, extras: ObjectMetadata | None) -> None:
        length, size = len(body), self.version.size_bytes
        self._grow(length)
        view = memoryview(body)
        checksums = [
            block_checksum(view[start : start + BLOCK_SIZE_BYTES])
            for start in range(0, length, BLOCK_SIZE_BYTES)
        ]
        try:
            write_with_room(lambda: pwrite_all(self.fd, body, offset), lambda: self._make_room(length))
        except OSError as error:
            self._grow(-length)
            self.volume.note_failure(error)
            raise storage_error(self.volume.part_path(self.id), error) from error
        if extras is not None and not self._noted:
            store_origin_extras(self.fd, size, extras)
            self._noted = True
        failpoint.hit("writer.bytes")
        again = 0
        with self._lock:
            for number, checksum in enumerate(checksums, offset // BLOCK_SIZE_BYTES):
                if self._has(number):
                    again += min(BLOCK_SIZE_BYTES, size - number * BLOCK_SIZE_BYTES)
                    continue
                if self._map is None:
                    self.checksum = checksum
                else:
                    self._map.set(number, checksum)
                self.blocks_present += 1
        if again:
            self._grow(-again)
        failpoint.hit("writer.bits")

    def replace(self, block: int, body: Body) -> None:
        """Replace the bytes of a present block; a concurrent reader may get some of both. Only for a file of several
        blocks. StoreError, EvictedError (closed)."""
        with self._lock:
            if self._closing or self._map is None:
                raise self._evicted()
            try:
                pwrite_all(self.fd, body, block * BLOCK_SIZE_BYTES)
            except OSError as error:
                raise storage_error(self.volume.part_path(self.id), error) from error
            self._map.set(block, block_checksum(body))

    def checksums(self) -> dict[int, int]:
        """Return the checksums of the present blocks. EvictedError (closed)."""
        with self._lock:
            if self._closing:
                raise self._evicted()
            return self._map.checksums() if self._map is not None else {}

    def drop_blocks(self, blocks: Iterable[int]) -> bool:
        """Make blocks absent. Their bytes stay until they are overwritten. Return False if the file was closed
        meanwhile."""
        with self._lock:
            if self._closing:
                return False
            for block in filter(self._has, blocks):
                if self._map is not None:
                    self._map.clear(block)
                self.blocks_present -= 1
        return True

    def _has(self, block: int) -> bool:
        return self.complete or (self._map is not None and self._map.has(block))

    def _evicted(self) -> EvictedError:
        return EvictedError(f"cache file {self.id:x} can't be written", why="it was evicted or freed")

    def close(self) -> None:
        """Close the file. If a write is in progress in another thread, that thread closes it when it ends."""
        with self._lock:
            self._closing = True
            if self._writing:
                return
        self._close()

    def _close(self) -> None:
        with self._lock:  # only once: the number may belong to another file afterwards
            fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
            if self._map is not None:
                self._map.close()
