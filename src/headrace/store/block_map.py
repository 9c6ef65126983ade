"""The map file beside a cache file of more than one block: which blocks are present, and their checksums.

    header       64 bytes: magic(8) size(8) inode of the data file(8) blocks(8), zeros
    bitmap       one bit a block, lowest bit first, padded to 8 bytes
    checksums    8 bytes a block, xxh3_64 of its bytes

Little-endian. Written and read through shared mappings. A block's checksum is written after its bytes, and its bit
after its checksum. So a set bit can be trusted as long as the page cache: until a power loss. The inode ties the map to
its data file: both are created anew when a file is evicted and filled again.
"""

from __future__ import annotations

import mmap
import os
import struct

from headrace.base.model import block_count

MAP_MAGIC = b"HRMAP\0\0\1"
HEADER_BYTES = 64
READ_BYTES = 1 << 20
_HEADER = struct.Struct("<8sQQQ")
_CHECKSUM = struct.Struct("<Q")


def checksums_at(blocks: int) -> int:
    return HEADER_BYTES + (blocks + 63) // 64 * 8


def map_bytes(blocks: int) -> int:
    return checksums_at(blocks) + 8 * blocks


class BlockMap:
    """A mapping of one map file. Raises ValueError if the file is no map, or the map of another data file. Raises
    OSError if its disk fails."""

    def __init__(self, fd: int, size_bytes: int, inode: int, *, writable: bool) -> None:
        self.blocks = block_count(size_bytes)
        self._checksums_at = checksums_at(self.blocks)
        if os.fstat(fd).st_size != map_bytes(self.blocks):
            raise ValueError("wrong length")
        _read_through(fd, map_bytes(self.blocks))
        self.map = mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        if _HEADER.unpack_from(self.map) != (MAP_MAGIC, size_bytes, inode, self.blocks):
            self.map.close()
            raise ValueError("wrong header")

    @staticmethod
    def initialise(fd: int, size_bytes: int, inode: int) -> None:
        """Turn an empty file into a map without blocks."""
        blocks = block_count(size_bytes)
        # else a store to the mapping on a full disk raises SIGBUS
        os.posix_fallocate(fd, 0, map_bytes(blocks))
        os.pwrite(fd, _HEADER.pack(MAP_MAGIC, size_bytes, inode, blocks), 0)

    def has(self, block: int) -> bool:
        return bool(self.map[HEADER_BYTES + (block >> 3)] >> (block & 7) & 1)

    def has_all(self, first: int, stop: int) -> bool:
        low, high = first >> 3, (stop + 7) >> 3
        bits = int.from_bytes(self.map[HEADER_BYTES + low : HEADER_BYTES + high], "little") >> (first & 7)
        mask = (1 << (stop - first)) - 1
        return bits & mask == mask

    def count(self) -> int:
        bits = int.from_bytes(self.map[HEADER_BYTES : self._checksums_at], "little")
        return (bits & ((1 << self.blocks) - 1)).bit_count()

    def set(self, block: int, checksum: int) -> None:
        """Set the checksum and the bit of a block. One thread at a time may call it."""
        _CHECKSUM.pack_into(self.map, self._checksums_at + 8 * block, checksum)
        self.map[HEADER_BYTES + (block >> 3)] |= 1 << (block & 7)

    def clear(self, block: int) -> None:
        self.map[HEADER_BYTES + (block >> 3)] &= ~(1 << (block & 7)) & 255

    def checksum(self, block: int) -> int:
        """Return the checksum of a present block."""
        return int(_CHECKSUM.unpack_from(self.map, self._checksums_at + 8 * block)[0])

    def packed_checksums(self) -> bytes:
        """Return the checksums of all blocks as they are stored."""
        return self.map[self._checksums_at : self._checksums_at + 8 * self.blocks]

    def checksums(self) -> dict[int, int]:
        """Return the checksums of the present blocks."""
        return {block: self.checksum(block) for block in range(self.blocks) if self.has(block)}

    def close(self) -> None:
        self.map.close()


def _read_through(fd: int, size_bytes: int) -> None:
    """Read a file into the page cache. A disk that fails is an OSError here; in the mapping it would be SIGBUS, which
    ends the process."""
    offset = 0
    while offset < size_bytes:
        body = os.pread(fd, min(READ_BYTES, size_bytes - offset), offset)
        if not body:
            raise ValueError("wrong length")
        offset += len(body)
