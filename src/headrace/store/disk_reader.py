"""Reads a cache file as the disk has it, past the page cache: what jobs read stays there, and nothing is added."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator

from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.store.checksum import block_checksum

_NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class DiskReader:
    """fd: of a cache file of so many bytes; it stays the caller's. Where the file system has no O_DIRECT, bytes that
    were not in memory are let go of again."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        self._buffer = mmap.mmap(
            -1, min(BLOCK_SIZE_BYTES, _pages(size_bytes))
        )  # at a page, as O_DIRECT wants it
        self.is_direct = True
        try:
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno not in _NOT_DIRECT:
                raise
            self.is_direct = False
            self._fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)

    def read(self, start: int, length: int) -> memoryview:
        """At most a block, from the beginning of one; short where the file ends. Good until the next call. OSError."""
        with memoryview(self._buffer) as whole:
            if self.is_direct:
                count = os.preadv(self._fd, [whole[: _pages(length)]], start)
            else:
                count = self._read_and_let_go(whole[:length], start)
        return memoryview(self._buffer)[: min(count, length)]

    def _read_and_let_go(self, target: memoryview, start: int) -> int:
        try:
            was_there = os.preadv(self._fd, [target], start, os.RWF_NOWAIT) == len(target)
        except OSError:
            was_there = False
        if was_there:
            return len(target)
        count = os.preadv(self._fd, [target], start)
        os.posix_fadvise(self._fd, start, len(target), os.POSIX_FADV_DONTNEED)
        return count

    def close(self) -> None:
        os.close(self._fd)


def _pages(size_bytes: int) -> int:
    """Whole pages, and one at least."""
    return max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def verify_on_disk(
    fd: int, size_bytes: int, checksums: dict[int, int], *, before_read: Callable[[int], None]
) -> Iterator[int]:
    """As `checksum.verify_file`, of the disk. A block that can't be read is a bad one. before_read: told how many
    bytes; what it raises ends the reading."""
    reader = DiskReader(fd, size_bytes)
    try:
        for block in sorted(checksums):
            start = block * BLOCK_SIZE_BYTES
            length = min(BLOCK_SIZE_BYTES, size_bytes - start)
            before_read(length)
            try:
                body = reader.read(start, length)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                yield block
                continue
            if len(body) != length or block_checksum(body) != checksums[block]:
                yield block
    finally:
        reader.close()
