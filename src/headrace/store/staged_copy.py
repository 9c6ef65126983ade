"""Copy a complete cache file to a staging place on another volume, and compare every byte with its checksum.

    moving/<id>         the bytes
    moving/<id>.map     the map of a file of more than one block

The names stay until the index has the file at its new place. So a name here after a kill marks a move that a start must
finish or undo (`file_moves.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterator

from headrace.base import failpoint
from headrace.base.errors import StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, FileId, block_count
from headrace.base.whole_write import pwrite_all
from headrace.overlay.mark_names import MARKS
from headrace.overlay.object_metadata import raw_extras
from headrace.store.block_map import BlockMap
from headrace.store.checksum import block_checksum
from headrace.store.schema import CachedFile
from headrace.store.volume import CREATE_ATTEMPTS, Volume
from headrace.store.writer import storage_error

FLUSH_BYTES = 32 << 20
"""Bytes of a copy after which they are flushed: reads would wait for more dirty pages at once."""
_FICLONE = 0x40049409
"""ioctl_ficlone(2): share the extents of a file, on XFS and btrfs."""
_STAGED = re.compile(r"[0-9a-f]{12}(?:\.map)?")

Pace = Callable[[int], None]
"""Takes bytes that were copied, and waits until more may be. An exception that it raises ends the copy."""


class CopyMismatchError(StoreError):
    """Report that the source of a copy does not match its checksums. The caller has it verified."""


def staged_path(volume: Volume, id: FileId) -> str:
    return f"{volume.folder}/moving/{id:012x}"


def staged_map_path(volume: Volume, id: FileId) -> str:
    return f"{volume.folder}/moving/{id:012x}.map"


def staged_ids(volume: Volume) -> Iterator[FileId]:
    """Yield the ids of copies in the staging place, each once."""
    try:
        names = os.listdir(f"{volume.folder}/moving")
    except FileNotFoundError:
        return
    yield from sorted({FileId(int(name[:12], 16)) for name in filter(_STAGED.fullmatch, names)})


def unstage(volume: Volume, id: FileId) -> None:
    """Remove the names of a copy from the staging place; its own names stay."""
    # the data last: it marks the move
    for path in (staged_map_path(volume, id), staged_path(volume, id)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def link_staged(volume: Volume, cached: CachedFile) -> None:
    """Give a copy the names of a cache file, the map first. Raises OSError; no name is left then."""
    id = cached.id
    volume.unlink(id)
    try:
        if cached.size_bytes > BLOCK_SIZE_BYTES:
            _link(volume, id, staged_map_path(volume, id), volume.map_path(id))
        _link(volume, id, staged_path(volume, id), volume.data_path(id))
    except OSError:
        volume.unlink(id)
        raise


def _link(volume: Volume, id: FileId, staged: str, path: str) -> None:
    for attempt in range(CREATE_ATTEMPTS):
        try:
            os.link(staged, path)
            return
        except FileNotFoundError:  # the directory went with its last file
            if attempt + 1 == CREATE_ATTEMPTS:
                raise
            volume.make_folder(id)


def stage_copy(source: Volume, target: Volume, cached: CachedFile, pace: Pace) -> None:
    """Copy a file. Blocks for its whole length, at the pace. Raises CopyMismatchError for bytes that are not what was
    cached, and StoreError or NoSpaceError; nothing is left then."""
    path = staged_path(target, cached.id)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        unstage(
            target, cached.id
        )  # a name that could not be removed earlier may be one of a file that is read
        with _opened(source.data_path(cached.id), os.O_RDONLY | os.O_NOATIME) as source_fd:
            sums = _checksums(source, cached, source_fd)
            with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
                _copy_bytes(source_fd, fd, cached.size_bytes, sums, pace)
                _copy_extras(source_fd, fd)
                _write_map(target, cached, os.fstat(fd).st_ino, sums)
                _copy_times(source_fd, fd)
        failpoint.hit("move.copied")
    except BaseException as error:
        with contextlib.suppress(OSError):
            unstage(target, cached.id)
        if isinstance(error, ValueError):
            raise CopyMismatchError(f"cache file {cached.id:x} can't be moved", why=str(error)) from error
        if isinstance(error, OSError):
            raise storage_error(path, error) from error
        raise


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _checksums(source: Volume, cached: CachedFile, fd: int) -> dict[int, int]:
    """Return the checksum of every block. ValueError if one is missing, or the file is another one."""
    status = os.fstat(fd)
    if status.st_size != cached.size_bytes:
        raise ValueError("it has another length")
    if cached.size_bytes <= BLOCK_SIZE_BYTES:
        return {0: cached.checksum} if cached.size_bytes else {}
    with _opened(source.map_path(cached.id), os.O_RDONLY) as map_fd:
        map = BlockMap(map_fd, cached.size_bytes, status.st_ino, writable=False)
        sums = map.checksums()
        map.close()
    if len(sums) < block_count(cached.size_bytes):
        raise ValueError("its map lacks blocks")
    return sums


def _copy_bytes(source_fd: int, fd: int, size_bytes: int, sums: dict[int, int], pace: Pace) -> None:
    """Share the extents where the file system can, else write the bytes; compare all of them."""
    is_shared = _clone(source_fd, fd)
    unflushed_bytes = 0
    for block, checksum in sums.items():
        start = block * BLOCK_SIZE_BYTES
        body = os.pread(fd if is_shared else source_fd, min(BLOCK_SIZE_BYTES, size_bytes - start), start)
        if block_checksum(body) != checksum:
            raise ValueError(f"block {block} does not match its checksum")
        if not is_shared:
            pwrite_all(fd, body, start)
            unflushed_bytes += len(body)
        if unflushed_bytes >= FLUSH_BYTES:
            os.fdatasync(fd)
            unflushed_bytes = 0
        pace(len(body))


def _clone(source_fd: int, fd: int) -> bool:
    try:
        fcntl.ioctl(fd, _FICLONE, source_fd)
    except OSError:
        return False
    return True


def _copy_extras(source_fd: int, fd: int) -> None:
    """Copy the attributes of the object that are stored at the file. Without them, readers ask the origin."""
    extras = raw_extras(source_fd)
    if extras:
        with contextlib.suppress(OSError):
            os.setxattr(fd, MARKS.extras, extras)


def _copy_times(source_fd: int, fd: int) -> None:
    """Copy when the file was fetched, and used last: its time to live counts from there."""
    status = os.fstat(source_fd)
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def _write_map(target: Volume, cached: CachedFile, inode: int, sums: dict[int, int]) -> None:
    if cached.size_bytes <= BLOCK_SIZE_BYTES:
        return
    path = staged_map_path(target, cached.id)
    with _opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as fd:
        BlockMap.initialise(fd, cached.size_bytes, inode)
        map = BlockMap(fd, cached.size_bytes, inode, writable=True)
        for block, checksum in sums.items():
            map.set(block, checksum)
        map.close()
