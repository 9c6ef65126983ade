"""Encode and decode the bytes of the FUSE protocol, without I/O. The hot replies (OPEN) are packed elsewhere."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.base.model import FILE_ID_MAX, Entry, Kind
from headrace.fuse import abi

FOREVER_S = 1 << 31
"""Seconds for which the kernel keeps attributes of an id of the index: they never change."""
UPPER_TTL_S = 1
"""Seconds for which the kernel keeps names and attributes of the upper layer. Another session may change them."""
_FILE_MODE = stat.S_IFREG | 0o444
_DIRECTORY_MODE = stat.S_IFDIR | 0o555
_DT = {Kind.FILE: 8, Kind.DIRECTORY: 4}
_ENTRY_BYTES = abi.ENTRY_REPLY.size
_ATTR_BYTES = abi.ATTR_REPLY.size
_NO_ATTR = (0,) * 22


@dataclass(frozen=True, slots=True)
class Init:
    """Holds what the kernel offers in INIT. `flags` has 64 bits."""

    major: int
    minor: int
    max_readahead_bytes: int
    flags: int


def decode_init(request: bytes) -> Init:
    major, minor, readahead, flags, flags2 = abi.INIT_IN.unpack_from(request.ljust(80, b"\0"), 40)
    if not flags & abi.INIT_EXT:
        flags2 = 0
    return Init(major, minor, readahead, flags | flags2 << 32)


def init_reply(
    unique: int,
    *,
    flags: int,
    stack_depth: int,
    readahead_bytes: int,
    write_bytes_max: int = abi.PAGE_BYTES,
) -> bytes:
    body = abi.INIT_OUT.pack(
        abi.KERNEL_VERSION,
        abi.KERNEL_MINOR_VERSION,
        readahead_bytes,
        flags & 0xFFFFFFFF,
        128,  # max_background: readahead of many files at once
        96,
        write_bytes_max,
        1,
        abi.READ_BYTES_MAX // abi.PAGE_BYTES,
        0,
        flags >> 32,
        stack_depth,
        0,
    )
    return abi.OUT_HEADER.pack(16 + len(body), 0, unique) + body


def error_reply(unique: int, errno: int) -> bytes:
    return abi.OUT_HEADER.pack(16, -errno, unique)


def data_reply(unique: int, data: bytes) -> bytes:
    return abi.OUT_HEADER.pack(16 + len(data), 0, unique) + data


def decode_name(request: bytes | bytearray, offset: int = 40) -> bytes:
    """Return the name that begins at an offset of the request."""
    return bytes(request[offset : request.index(b"\0", offset)])


def decode_names(request: bytes | bytearray, offset: int = 40) -> tuple[bytes, bytes]:
    first = decode_name(request, offset)
    return first, decode_name(request, offset + len(first) + 1)


_U64 = (1 << 64) - 1  # the protocol encodes seconds before 1970 modulo 2**64


class AttributeEncoder:
    """Encodes entries and stat results as attributes. `uid` and `gid` own the files that have no owner. `numbers` maps
    a node id to the inode number to show, where that differs from the node id."""

    def __init__(
        self,
        *,
        uid: int,
        gid: int,
        generation: int,
        writable: bool = False,
        numbers: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._numbers = numbers
        self._file_mode = _FILE_MODE | (0o200 if writable else 0)
        self._directory_mode = _DIRECTORY_MODE | (0o200 if writable else 0)
        self._uid = uid
        self._gid = gid
        self._generation = generation

    def _attr(self, entry: Entry) -> tuple[int, ...]:
        mtime_s, mtime_ns = divmod(entry.mtime_ns, 1_000_000_000)
        mtime_s = max(0, mtime_s)
        size = entry.version.size_bytes
        is_file = entry.kind == Kind.FILE
        mode, links = (self._file_mode, 1) if is_file else (self._directory_mode, 2)
        uid, gid, attributes = self._uid, self._gid, entry.attributes
        if attributes is not None and attributes.mode is not None:
            mode = stat.S_IFREG | attributes.mode
            uid, gid = attributes.uid or 0, attributes.gid or 0
        return (
            *(entry.id, size, (size + 511) >> 9, mtime_s, mtime_s, mtime_s, mtime_ns, mtime_ns, mtime_ns),
            *(mode, links, uid, gid, 0, abi.PAGE_BYTES, 0),
        )

    def entry_reply(self, unique: int, node: int, entry: Entry, ttl_s: float) -> bytes:
        ttl, ttl_ns = int(ttl_s), int(ttl_s % 1 * 1e9)
        return abi.ENTRY_REPLY.pack(
            *(_ENTRY_BYTES, 0, unique, node, self._generation, ttl, FOREVER_S, ttl_ns, 0), *self._attr(entry)
        )

    def stat_entry_reply(self, unique: int, node: int, file_stat: os.stat_result, generation: int) -> bytes:
        """Encode the entry of a file in the upper layer."""
        return abi.ENTRY_REPLY.pack(_ENTRY_BYTES, 0, unique, *self._stat_entry(node, file_stat, generation))

    def _stat_entry(self, node: int, file_stat: os.stat_result, generation: int) -> tuple[int, ...]:
        number = self.number_of(node)
        return (
            node,
            self._generation + generation,
            UPPER_TTL_S,
            UPPER_TTL_S,
            0,
            0,
            *_stat_attr(number, file_stat),
        )

    def number_of(self, node: int) -> int:
        return self._numbers.get(node, node & FILE_ID_MAX)

    def stat_attr_reply(self, unique: int, node: int, file_stat: os.stat_result) -> bytes:
        attr = _stat_attr(self.number_of(node), file_stat)
        return abi.ATTR_REPLY.pack(_ATTR_BYTES, 0, unique, UPPER_TTL_S, 0, 0, *attr)

    def create_reply(
        self, unique: int, node: int, file_stat: os.stat_result, generation: int, opened: tuple[int, int, int]
    ) -> bytes:
        """Encode the reply to CREATE. `opened` is the file handle, the open flags and the backing id."""
        entry = self._stat_entry(node, file_stat, generation)
        return abi.CREATE_REPLY.pack(abi.CREATE_REPLY.size, 0, unique, *entry, *opened)

    def stat_direntplus(
        self, name: bytes, node: int, file_stat: os.stat_result, generation: int, offset: int
    ) -> bytes:
        kind = stat.S_IFMT(file_stat.st_mode) >> 12
        head = abi.DIRENTPLUS.pack(
            *self._stat_entry(node, file_stat, generation), self.number_of(node), offset, len(name), kind
        )
        return head + name + bytes(-len(name) & 7)

    def negative_reply(self, unique: int, ttl_s: float) -> bytes:
        ttl, ttl_ns = int(ttl_s), int(ttl_s % 1 * 1e9)
        return abi.ENTRY_REPLY.pack(_ENTRY_BYTES, 0, unique, 0, 0, ttl, 0, ttl_ns, 0, *_NO_ATTR[6:])

    def attr_reply(self, unique: int, entry: Entry) -> bytes:
        valid_s = FOREVER_S if entry.kind == Kind.FILE else 1
        return abi.ATTR_REPLY.pack(_ATTR_BYTES, 0, unique, valid_s, 0, 0, *self._attr(entry))

    def direntplus(self, entry: Entry, node: int, offset: int, ttl_s: float) -> bytes:
        name = entry.name
        ttl, ttl_ns = int(ttl_s), int(ttl_s % 1 * 1e9)
        head = abi.DIRENTPLUS.pack(
            *(node, self._generation, ttl, FOREVER_S, ttl_ns, 0),
            *self._attr(entry),
            *(entry.id, offset, len(name), _DT[entry.kind]),
        )
        return head + name + bytes(-len(name) & 7)


def _stat_attr(number: int, file_stat: os.stat_result) -> tuple[int, ...]:
    accessed, accessed_ns = divmod(file_stat.st_atime_ns, 1_000_000_000)
    modified, modified_ns = divmod(file_stat.st_mtime_ns, 1_000_000_000)
    changed, changed_ns = divmod(file_stat.st_ctime_ns, 1_000_000_000)
    return (
        *(number, file_stat.st_size, file_stat.st_blocks),
        *(accessed & _U64, modified & _U64, changed & _U64, accessed_ns, modified_ns, changed_ns),
        *(file_stat.st_mode, file_stat.st_nlink, file_stat.st_uid, file_stat.st_gid),
        *(_device(file_stat.st_rdev) if file_stat.st_rdev else 0, file_stat.st_blksize, 0),
    )


def _device(number: int) -> int:
    """Encode a device number as the kernel does (new_encode_dev)."""
    major, minor = os.major(number), os.minor(number)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def decode_device(encoded: int) -> int:
    return os.makedev((encoded & 0xFFF00) >> 8, (encoded & 0xFF) | ((encoded >> 12) & 0xFFF00))


def stat_dirent(name: bytes, number: int, file_stat: os.stat_result, offset: int) -> bytes:
    kind = stat.S_IFMT(file_stat.st_mode) >> 12
    return abi.DIRENT.pack(number, offset, len(name), kind) + name + bytes(-len(name) & 7)


def dirent(ino: int, name: bytes, kind: Kind, offset: int) -> bytes:
    return abi.DIRENT.pack(ino, offset, len(name), _DT[kind]) + name + bytes(-len(name) & 7)


def direntplus_bare(ino: int, name: bytes, kind: Kind, offset: int) -> bytes:
    """Encode `.` or `..`. Node id 0 tells the kernel to create no inode for it."""
    head = abi.DIRENTPLUS.pack(*_NO_ATTR, ino, offset, len(name), _DT[kind])
    return head + name + bytes(-len(name) & 7)


def inval_entry(parent: int, name: bytes, *, expire: bool = False) -> bytes:
    """Encode an invalidation of a name. expire: the kernel looks the name up again, and detaches no mount below it
    before (Linux 6.2)."""
    length = abi.INVAL_ENTRY_OUT.size + len(name) + 1
    flags = abi.EXPIRE_ONLY if expire else 0
    head = abi.INVAL_ENTRY_OUT.pack(length, abi.Notify.INVAL_ENTRY, 0, parent, len(name), flags)
    return head + name + b"\0"


def inval_inode(node: int) -> bytes:
    """Encode an invalidation of a node's attributes and of all its pages; the pages of a directory are its listing."""
    return abi.INVAL_INODE_OUT.pack(abi.INVAL_INODE_OUT.size, abi.Notify.INVAL_INODE, 0, node, 0, 0)


def resend() -> bytes:
    return abi.OUT_HEADER.pack(16, abi.Notify.RESEND, 0)
