"""The checksum of a block: xxh3, 64 bits. It detects torn and corrupt blocks, but does not protect against an
attacker."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Any

import xxhash

from headrace.base.errors import StoreError
from headrace.base.model import BLOCK_SIZE_BYTES, block_count

_UNREADABLE = frozenset(
    (errno.EIO, errno.ENODATA, errno.EILSEQ, errno.EBADMSG, errno.EUCLEAN, errno.EREMOTEIO)
)
"""Errors of a bad sector. Through the page cache it is EIO, past it the block layer's own, mostly ENODATA."""


def is_unreadable(error: OSError) -> bool:
    """Return whether a read failed because the disk does not have the bytes any more."""
    return error.errno in _UNREADABLE


def block_checksum(body: Any) -> int:
    """Return the checksum of an object with the buffer protocol."""
    return xxhash.xxh3_64_intdigest(body)


def block_checksums(fd: int, size_bytes: int, blocks: Iterable[int]) -> Iterator[int | None]:
    """Yield the checksum of each block of a file; None for one that is short. About 0.2 ms a block. Raises OSError."""
    for block in blocks:
        start = block * BLOCK_SIZE_BYTES
        length = min(BLOCK_SIZE_BYTES, size_bytes - start)
        body = os.pread(fd, length, start)
        yield block_checksum(body) if len(body) == length else None


def verify_file(fd: int, size_bytes: int, checksums: dict[int, int]) -> Iterator[int]:
    """Yield the numbers of those blocks in checksums whose bytes don't match, or can't be read any more. It reads all
    of them. Raises StoreError."""
    for block in range(block_count(size_bytes)):
        if block not in checksums:
            continue
        try:
            (checksum,) = block_checksums(fd, size_bytes, (block,))
        except OSError as error:
            if not is_unreadable(error):
                raise StoreError("cache file can't be read", why=error.strerror or str(error)) from error
            checksum = None
        if checksum != checksums[block]:
            yield block
