"""Bytes of the protocol ↔ values; no I/O. The hot answers (OPEN) are packed where they are made."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.base.model import Entry, Kind
from headrace.fuse import abi

FOREVER_S = 1 << 31
"""Attributes of an id never change."""
_FILE_MODE = stat.S_IFREG | 0o444
_DIRECTORY_MODE = stat.S_IFDIR | 0o555
_DT = {Kind.FILE: 8, Kind.DIRECTORY: 4}
_ENTRY_BYTES = abi.ENTRY_REPLY.size
_ATTR_BYTES = abi.ATTR_REPLY.size
_NO_ATTR = (0,) * 22


@dataclass(frozen=True, slots=True)
class Init:
    """What the kernel offers. flags: 64 bits."""

    major: int
    minor: int
    max_readahead_bytes: int
    flags: int


def decode_init(request: bytes) -> Init:
    major, minor, readahead, flags, flags2 = abi.INIT_IN.unpack_from(request.ljust(80, b"\0"), 40)
    if not flags & abi.INIT_EXT:
        flags2 = 0
    return Init(major, minor, readahead, flags | flags2 << 32)


def init_reply(unique: int, *, flags: int, stack_depth: int, readahead_bytes: int) -> bytes:
    body = abi.INIT_OUT.pack(
        abi.KERNEL_VERSION,
        abi.KERNEL_MINOR_VERSION,
        readahead_bytes,
        flags & 0xFFFFFFFF,
        128,  # max_background: readahead of many files at once
        96,
        abi.PAGE_BYTES,
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


def decode_name(request: bytes | bytearray) -> bytes:
    return bytes(request[40 : request.index(b"\0", 40)])


class Attributes:
    """Encodes entries; knows who owns what users see."""

    def __init__(self, *, uid: int, gid: int, generation: int) -> None:
        self._uid = uid
        self._gid = gid
        self._generation = generation

    def _attr(self, entry: Entry) -> tuple[int, ...]:
        mtime_s, mtime_ns = divmod(entry.version.mtime_ns, 1_000_000_000)
        mtime_s = max(0, mtime_s)
        size = entry.version.size_bytes
        is_file = entry.kind == Kind.FILE
        mode, links = (_FILE_MODE, 1) if is_file else (_DIRECTORY_MODE, 2)
        return (
            *(entry.id, size, (size + 511) >> 9, mtime_s, mtime_s, mtime_s, mtime_ns, mtime_ns, mtime_ns),
            *(mode, links, self._uid, self._gid, 0, abi.PAGE_BYTES, 0),
        )

    def entry_reply(self, unique: int, node: int, entry: Entry, ttl_s: float) -> bytes:
        ttl, ttl_ns = int(ttl_s), int(ttl_s % 1 * 1e9)
        return abi.ENTRY_REPLY.pack(
            *(_ENTRY_BYTES, 0, unique, node, self._generation, ttl, FOREVER_S, ttl_ns, 0), *self._attr(entry)
        )

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


def dirent(ino: int, name: bytes, kind: Kind, offset: int) -> bytes:
    return abi.DIRENT.pack(ino, offset, len(name), _DT[kind]) + name + bytes(-len(name) & 7)


def direntplus_bare(ino: int, name: bytes, kind: Kind, offset: int) -> bytes:
    """For `.` and `..`: node id 0 tells the kernel to make no inode of it."""
    head = abi.DIRENTPLUS.pack(*_NO_ATTR, ino, offset, len(name), _DT[kind])
    return head + name + bytes(-len(name) & 7)


def inval_entry(parent: int, name: bytes) -> bytes:
    length = abi.INVAL_ENTRY_OUT.size + len(name) + 1
    return abi.INVAL_ENTRY_OUT.pack(length, abi.Notify.INVAL_ENTRY, 0, parent, len(name), 0) + name + b"\0"


def inval_inode(node: int) -> bytes:
    """Its attributes, and all its pages: of a directory, the listing."""
    return abi.INVAL_INODE_OUT.pack(abi.INVAL_INODE_OUT.size, abi.Notify.INVAL_INODE, 0, node, 0, 0)


def resend() -> bytes:
    return abi.OUT_HEADER.pack(16, abi.Notify.RESEND, 0)


def total_bytes(parts: Iterable[bytes]) -> int:
    return sum(map(len, parts))
