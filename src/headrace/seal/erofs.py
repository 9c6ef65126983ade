"""The structures of EROFS that an image has, and the values that are the same in every image.

The authority is the kernel's fs/erofs/erofs_fs.h; each comment names the structure there. All numbers are
little-endian. An image uses only what Linux 5.15 and later read: inodes of both sizes, shared and inline attributes,
and chunk-based files whose only chunk is a hole. The page docs/format/seals.md describes the whole image.
"""

from __future__ import annotations

import functools
import stat
from struct import Struct
from typing import NamedTuple

BLOCK_BYTES = 4096
"""The size of a page on most machines. Older kernels mount no image whose blocks are smaller than their pages."""
SLOT_BYTES = 32
"""An inode begins at a multiple of it; its number (nid) is the offset in the image divided by it."""
NAME_BYTES_MAX = 255
PATH_BYTES_MAX = 4095
"""PATH_MAX of Linux without its NUL. It also bounds how deep a reader descends into a hostile image."""
ID_MAX = (1 << 32) - 2
"""The kernel has no user and no group -1, and shows another one."""
LINK_BYTES_MAX = 4095
REDIRECT_BYTES_MAX = 255
FILE_BYTES_MAX = 1 << 43
"""A hole of one chunk has at most 2**31 blocks."""

# struct erofs_super_block, at offset 1024: magic, checksum, compatible features, log2 of the block size, extension
# slots, nid of the root, number of inodes, build time, its nanoseconds, blocks, first blocks of inodes and of shared
# attributes, uuid, volume name, incompatible features; compression, devices and prefixes are all 0.
SUPERBLOCK_OFFSET = 1024
SUPERBLOCK = Struct("<IIIBBHQqIIII16s16sI44x")
MAGIC = 0xE0F5E1E2
CHECKSUM_OFFSET = SUPERBLOCK_OFFSET + 4
COMPATIBLE = 0x1 | 0x2  # EROFS_FEATURE_COMPAT_SB_CHKSUM, _MTIME
INCOMPATIBLE = 0x4  # EROFS_FEATURE_INCOMPAT_CHUNKED_FILE

# struct erofs_inode_compact: format, attribute words, mode, links, size, reserved, i_u, number, uid, gid, reserved.
# Its time is the build time of the superblock.
COMPACT = Struct("<HHHHI4xIIHH4x")
# struct erofs_inode_extended: format, attribute words, mode, reserved, size, i_u, number, uid, gid, time, nanoseconds,
# links, reserved.
EXTENDED = Struct("<HHH2xQIIIIqII16x")
FLAT_PLAIN, FLAT_INLINE, CHUNK_BASED = (
    0,
    2,
    4,
)  # enum EROFS_INODE_*, from bit 1 of the format; bit 0: extended
HOLE = b"\xff\xff\xff\xff"  # EROFS_NULL_ADDR in the array of block addresses

# struct erofs_dirent: nid, offset of the name, type. The names of a block follow its dirents; the first offset says
# how many there are. The last name ends at a NUL, at the end of the block or at the directory's size.
DIRENT = Struct("<QHBx")
FILE_TYPES = {stat.S_IFREG: 1, stat.S_IFDIR: 2, stat.S_IFLNK: 7}  # EROFS_FT_*, as FT_* of linux/fs_types.h

# struct erofs_xattr_ibody_header: name filter (not used), number of shared attributes, 7 reserved bytes; then the ids
# of shared attributes, then the inline ones: struct erofs_xattr_entry, name, value, padding to 4 bytes.
# EROFS_XATTR_INDEX_TRUSTED stands for the prefix "trusted.".
ATTRIBUTE_ENTRY = Struct("<BBH")
TRUSTED = 4
METACOPY = ATTRIBUTE_ENTRY.pack(16, TRUSTED, 0) + b"overlay.metacopy"
REDIRECT_NAME = b"overlay.redirect"
INLINE_ATTRIBUTES_OFFSET = 12 + 4  # behind the header and the id of the only shared attribute

# The first block holds the superblock, the root and the attribute that all files share.
ROOT_OFFSET = SUPERBLOCK_OFFSET + SUPERBLOCK.size
ROOT_NID = ROOT_OFFSET // SLOT_BYTES  # 16 bits in the superblock, so the root can't be where other inodes are
METACOPY_OFFSET = ROOT_OFFSET + EXTENDED.size
METACOPY_ID = (
    METACOPY_OFFSET // 4
)  # an id counts words from the start of the area of shared attributes: block 0


class ImageEntry(NamedTuple):
    """Describes an entry of an image. path: from the root, which is b"". mode: with the type, which is regular file,
    directory or symbolic link. size_bytes: of a file, else 0. target: of a link, its target; of a file, the absolute
    path of its bytes in the data-only layer, which only an empty file may lack; of a directory b""."""

    path: bytes
    mode: int
    size_bytes: int
    uid: int
    gid: int
    mtime_ns: int
    target: bytes


@functools.lru_cache(maxsize=1024)
def file_struct(inode: Struct, target_bytes: int, chunks: int) -> tuple[Struct, int]:
    """Return the layout of a regular file with its attributes, padded to slots, and its attribute words. inode: COMPACT
    or EXTENDED. The fields are those of the inode, then those of `file_attributes`, then HOLE for the chunk."""
    layout, words = inode.format, 0
    if target_bytes:
        value_bytes = ATTRIBUTE_ENTRY.size + len(REDIRECT_NAME) + target_bytes
        padding = -value_bytes % 4
        layout += f"4xB7xIBBH{len(REDIRECT_NAME)}s{target_bytes}s{padding}x"
        words = 2 + (value_bytes + padding) // 4
    layout += "4s" * chunks
    return Struct(f"{layout}{-Struct(layout).size % SLOT_BYTES}x"), words


def file_attributes(target: bytes) -> tuple[int, int, int, int, int, bytes, bytes]:
    """Return the fields of a file's attributes: metacopy is shared, redirect is inline."""
    return 1, METACOPY_ID, len(REDIRECT_NAME), TRUSTED, len(target), REDIRECT_NAME, target


def hole_format(size_bytes: int) -> int:
    """Return the format of a file that is one hole (struct erofs_inode_chunk_info): log2 of the blocks of its chunk."""
    return max((size_bytes - 1).bit_length() - 12, 0)


def pack_superblock(block: bytearray, *, inodes: int, build_ns: int, blocks: int) -> None:
    """Put the superblock, its checksum and the shared attribute into the first block, which has the root already."""
    seconds, nanoseconds = divmod(build_ns, 10**9)
    features = (MAGIC, 0, COMPATIBLE, BLOCK_BYTES.bit_length() - 1, 0, ROOT_NID)
    places = (blocks, 0, 0, b"", b"", INCOMPATIBLE)
    SUPERBLOCK.pack_into(block, SUPERBLOCK_OFFSET, *features, inodes, seconds, nanoseconds, *places)
    block[METACOPY_OFFSET : METACOPY_OFFSET + len(METACOPY)] = METACOPY
    checksum = superblock_checksum(block)
    block[CHECKSUM_OFFSET : CHECKSUM_OFFSET + 4] = checksum.to_bytes(4, "little")


@functools.cache
def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def superblock_checksum(block: bytes | bytearray) -> int:
    """Return the CRC-32C of the first block of an image, whose checksum must be 0, from the superblock on. The kernel
    does not invert the result (erofs_superblock_csum_verify)."""
    table, checksum = _crc_table(), 0xFFFFFFFF
    for byte in block[SUPERBLOCK_OFFSET:BLOCK_BYTES]:
        checksum = checksum >> 8 ^ table[(checksum ^ byte) & 255]
    return checksum
