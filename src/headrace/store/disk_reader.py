"""Read a cache file from the disk, past the page cache: pages that jobs read stay there, and none are added."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Iterator

from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.checksum import block_checksum, is_unreadable

_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class DiskReader:
    """Reads of one cache file. fd: stays the caller's. If the file system has no O_DIRECT, bytes that were not in
    memory are dropped from the page cache again."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        # a mapping begins at a page, as O_DIRECT requires
        self._buffer = mmap.mmap(-1, min(BLOCK_SIZE_BYTES, _pages(size_bytes)))
        self.is_direct = True
        try:
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME | os.O_DIRECT)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            self.is_direct = False
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)

    def read(self, start: int, length: int) -> memoryview:
        """Read at most a block from its beginning; fewer bytes at the end of the file. The result is valid until the
        next call. Raises OSError."""
        with memoryview(self._buffer) as buffer:
            if self.is_direct:
                count = os.preadv(self._fd, [buffer[: _pages(length)]], start)
            else:
                count = self._read_and_drop(buffer[:length], start)
        return memoryview(self._buffer)[: min(count, length)]

    def _read_and_drop(self, target: memoryview, start: int) -> int:
        try:
            was_cached = os.preadv(self._fd, [target], start, os.RWF_NOWAIT) == len(target)
        except OSError:
            was_cached = False
        if was_cached:
            return len(target)
        count = os.preadv(self._fd, [target], start)
        os.posix_fadvise(self._fd, start, len(target), os.POSIX_FADV_DONTNEED)
        return count

    def close(self) -> None:
        os.close(self._fd)


def _pages(size_bytes: int) -> int:
    """Round a size up to whole pages, at least one."""
    return max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def verify_on_disk(
    fd: int, size_bytes: int, checksums: dict[int, int], *, before_read: Callable[[int], None]
) -> Iterator[int]:
    """Verify a file as `checksum.verify_file` does, on the disk. A block that can't be read counts as bad. before_read:
    called with the number of bytes; an exception that it raises ends the check."""
    blocks = sorted(checksums)
    on_disk = checksums_on_disk(fd, size_bytes, blocks, before_read=before_read)
    for block, checksum in zip(blocks, on_disk, strict=True):
        if checksum != checksums[block]:
            yield block


def checksums_on_disk(
    fd: int, size_bytes: int, blocks: Iterable[int], *, before_read: Callable[[int], None]
) -> Iterator[int | None]:
    """Yield the checksum of each block as the disk has it; None for a block that can't be read. before_read: called
    with the number of bytes; an exception that it raises ends the reading. OSError, but for an unreadable
    block."""
    reader = DiskReader(fd, size_bytes)
    try:
        for block in blocks:
            start = block * BLOCK_SIZE_BYTES
            length = min(BLOCK_SIZE_BYTES, size_bytes - start)
            before_read(length)
            try:
                body = reader.read(start, length)
            except OSError as error:
                if not is_unreadable(error):
                    raise
                yield None
                continue
            yield block_checksum(body) if len(body) == length else None
    finally:
        reader.close()
