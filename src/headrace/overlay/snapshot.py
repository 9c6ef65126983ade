"""What one name of an upper layer looks like at a moment: enough to make the same in another node's layer."""

from __future__ import annotations

import os
import stat
from enum import IntEnum

import msgspec
import xxhash

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES, Version, block_count
from headrace.base.namespace_path import check_path
from headrace.overlay.object_metadata import raw_extras
from headrace.overlay.syscalls import seen_at_rest
from headrace.overlay.upper import is_removed, is_whiteout

SMALL_BYTES_MAX = 256 << 10
"""Smaller files travel within the snapshot."""


class EntryType(IntEnum):
    GONE = 0
    """Nothing there, or nothing that the origin doesn't have."""
    FILE = 1
    DIRECTORY = 2
    REMOVED = 3
    LINK = 4
    WHITEOUT = 5


class Snapshot(msgspec.Struct, frozen=True):
    """shape: a EntryType. inode, ctime_ns: on the node that wrote it. replaces: the origin's version that it stands
    for, or hides. content: of a small file, or a link's target. sums: xxh3 of each block of 1 MiB of another file.
    extras: as `overlay/object_metadata.py` keeps them."""

    path: bytes
    shape: int
    inode: int = 0
    ctime_ns: int = 0
    mtime_ns: int = 0
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    replaces: Version | None = None
    content: bytes = b""
    sums: list[int] = []
    extras: bytes = b""

    def __post_init__(self) -> None:
        """Refuse what no layer can have: it came from another node, and is made below a directory of this one."""
        check_path(self.path)
        EntryType(self.shape)
        if self.mode & ~0o7777 or self.size_bytes < 0 or not 0 <= self.inode < 1 << 64:
            raise ValueError(f"mode {self.mode:o}, {self.size_bytes} bytes, inode {self.inode}")
        if self.is_large and len(self.sums) != block_count(self.size_bytes):
            raise ValueError(f"{len(self.sums)} checksums for {self.size_bytes} bytes")

    @property
    def state(self) -> tuple[object, ...]:
        """By which it is known whether anything changed. With what is in it: two changes may have one ctime."""
        inside = xxhash.xxh3_64_intdigest(self.content), hash(tuple(self.sums))
        return self.shape, self.inode, self.ctime_ns, self.size_bytes, self.replaces, inside

    @property
    def is_large(self) -> bool:
        return self.shape == EntryType.FILE and self.size_bytes > SMALL_BYTES_MAX


def entry_type_of(at: SafePath, found: os.stat_result) -> EntryType:
    """GONE for what can't be persisted: sockets, devices."""
    if is_whiteout(found):
        return EntryType.WHITEOUT
    if stat.S_ISDIR(found.st_mode):
        return EntryType.REMOVED if is_removed(at) else EntryType.DIRECTORY
    if stat.S_ISLNK(found.st_mode):
        return EntryType.LINK
    return EntryType.FILE if stat.S_ISREG(found.st_mode) else EntryType.GONE


def take(path: bytes, at: SafePath, replaces: Version | None) -> Snapshot:
    """Of what is there. Reads all of a file; one that is written meanwhile may be seen half before, half after, with
    the ctime of before. OSError."""
    found = at.lstat()
    shape = entry_type_of(at, found)
    content, sums, extras = b"", [], b""
    if shape is EntryType.LINK:
        content = at.readlink()
    elif shape is EntryType.FILE:
        fd = at.open(os.O_RDONLY | os.O_NONBLOCK)
        try:
            found = seen_at_rest(fd)
            if found.st_size <= SMALL_BYTES_MAX:
                content = os.pread(fd, SMALL_BYTES_MAX, 0)
            else:
                sums = block_sums(fd, found.st_size)
            extras = raw_extras(fd)
        finally:
            os.close(fd)
    return Snapshot(
        *(path, shape, found.st_ino, found.st_ctime_ns, found.st_mtime_ns),
        size_bytes=found.st_size if sums else len(content),
        mode=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        gid=found.st_gid,
        replaces=replaces,
        content=content,
        sums=sums,
        extras=extras,
    )


def block_sums(fd: int, size_bytes: int) -> list[int]:
    starts = range(0, size_bytes, BLOCK_SIZE_BYTES)
    return [
        xxhash.xxh3_64_intdigest(os.pread(fd, min(BLOCK_SIZE_BYTES, size_bytes - start), start))
        for start in starts
    ]
