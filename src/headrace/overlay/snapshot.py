"""Describe one name of an upper layer at a moment, completely enough to recreate it in another node's layer."""

from __future__ import annotations

import errno
import os
import stat
from enum import IntEnum

import msgspec
import xxhash

from headrace.base.beneath import SafePath
from headrace.base.model import BLOCK_SIZE_BYTES, Version, block_count
from headrace.base.namespace_path import check_path
from headrace.overlay.given_mode import as_given
from headrace.overlay.mark_names import MARKS
from headrace.overlay.marks import is_removed, is_whiteout
from headrace.overlay.object_metadata import raw_extras
from headrace.overlay.syscalls import seen_at_rest

SMALL_BYTES_MAX = 256 << 10
"""The snapshot of a file up to this size contains its bytes."""


class EntryType(IntEnum):
    """Name the kind of an entry in a snapshot."""

    GONE = 0
    """The name does not exist, or has nothing that the origin lacks."""
    FILE = 1
    DIRECTORY = 2
    REMOVED = 3
    """A directory that hides the origin's."""
    LINK = 4
    """A symbolic link."""
    WHITEOUT = 5


class Snapshot(msgspec.Struct, frozen=True):
    """Describe the state of one name.

    shape: an EntryType. inode, ctime_ns: those on the writer. replaces: the origin's version that the entry replaces or
    hides. content: the bytes of a small file, or a link's target. sums: xxh3 of each block of 1 MiB of a large file.
    extras: as `overlay/object_metadata.py` stores them.
    """

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
        """Refuse values that no layer can have. Another node sent them, and this node creates the file from them."""
        check_path(self.path)
        EntryType(self.shape)
        if self.mode & ~0o7777 or self.size_bytes < 0 or not 0 <= self.inode < 1 << 64:
            raise ValueError(f"mode {self.mode:o}, {self.size_bytes} bytes, inode {self.inode}")
        if not (0 <= self.uid < 1 << 32 and 0 <= self.gid < 1 << 32):
            raise ValueError(f"uid {self.uid}, gid {self.gid}")
        if self.is_large and len(self.sums) != block_count(self.size_bytes):
            raise ValueError(f"{len(self.sums)} checksums for {self.size_bytes} bytes")
        if self.shape == EntryType.FILE and not self.is_large and len(self.content) != self.size_bytes:
            raise ValueError(f"{len(self.content)} bytes of a file of {self.size_bytes}")
        if self.shape == EntryType.LINK and (not self.content or b"\0" in self.content):
            raise ValueError(f"a link to {self.content[:80]!r}")

    @property
    def state(self) -> tuple[object, ...]:
        """Return a value that differs after any change. It includes the contents, because two changes may share one
        ctime."""
        contents = xxhash.xxh3_64_intdigest(self.content), hash(tuple(self.sums))
        return self.shape, self.inode, self.ctime_ns, self.size_bytes, self.replaces, contents

    @property
    def is_large(self) -> bool:
        """Return whether the snapshot has checksums instead of the file's bytes."""
        return self.shape == EntryType.FILE and self.size_bytes > SMALL_BYTES_MAX


def entry_type_of(path: SafePath, status: os.stat_result) -> EntryType:
    """Return the type of an entry; GONE for entries that can't be persisted: sockets, devices."""
    if is_whiteout(status):
        return EntryType.WHITEOUT
    if stat.S_ISDIR(status.st_mode):
        return EntryType.REMOVED if is_removed(path) else EntryType.DIRECTORY
    if stat.S_ISLNK(status.st_mode):
        return EntryType.LINK
    return EntryType.FILE if stat.S_ISREG(status.st_mode) else EntryType.GONE


def take(path: bytes, upper_path: SafePath, replaces: Version | None) -> Snapshot:
    """Take the snapshot of a name. Reads the whole file, and blocks. If a process writes it meanwhile, the result may
    mix old and new bytes, with the old ctime. Raises OSError."""
    status = upper_path.lstat()
    shape = entry_type_of(upper_path, status)
    if stat.S_ISDIR(status.st_mode):
        status = as_given(status, upper_path)
    content, sums, extras = b"", [], b""
    if shape is EntryType.LINK:
        content = upper_path.readlink()
    elif shape is EntryType.FILE:
        fd = upper_path.open(os.O_RDONLY | os.O_NONBLOCK)
        try:
            status = seen_at_rest(fd)
            if MARKS.single_owner and is_whiteout(status):
                raise FileNotFoundError(errno.ENOENT, "removed just now", repr(upper_path))
            if status.st_size <= SMALL_BYTES_MAX:
                content = os.pread(fd, SMALL_BYTES_MAX, 0)
            else:
                sums = block_sums(fd, status.st_size)
            extras = raw_extras(fd)
        finally:
            os.close(fd)
    return Snapshot(
        *(path, shape, status.st_ino, status.st_ctime_ns, status.st_mtime_ns),
        size_bytes=status.st_size if sums else len(content),
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        replaces=replaces,
        content=content,
        sums=sums,
        extras=extras,
    )


def block_sums(fd: int, size_bytes: int) -> list[int]:
    """Return the xxh3 checksums of a file's blocks."""
    starts = range(0, size_bytes, BLOCK_SIZE_BYTES)
    return [
        xxhash.xxh3_64_intdigest(os.pread(fd, min(BLOCK_SIZE_BYTES, size_bytes - start), start))
        for start in starts
    ]
