"""Call system calls that Python's os lacks, fallocate(2) with its modes, statx(2) and sync_file_range(2), and
combinations of calls."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import time

from headrace.base.beneath import rename_at
from headrace.base.libc import AT_EMPTY_PATH, address_of, c_library, last_errno
from headrace.overlay.given_mode import as_given

CTIME_TICK_NS = 20_000_000
"""Two changes within a tick of the kernel's clock may have one ctime, unless the kernel has a finer clock."""
_AT_FDCWD = -100
_JOURNALS = (0xEF53, 0x58465342)
"""File systems that commit a journal in order: ext2 to ext4, XFS."""
STATFS_BYTES = 256
"""Size of the buffer, larger than the kernel's struct. Its first word is the file system's number."""
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_BIRTH = struct.Struct("=I76xqI")
"""Unpacks struct statx (linux/stat.h): the mask of its valid fields, and seconds and nanoseconds of the birth time."""


def rename(source: str, target: str, flags: int) -> None:
    """Rename by paths that no other process changes. flags: as in `SafePath.rename`."""
    rename_at(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags)


def fallocate(fd: int, mode: int, start: int, length: int) -> None:
    if c_library().fallocate(fd, mode, start, length) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def write_back(fd: int) -> None:
    """Write dirty pages to the disk and write-protect them: a later store into a mapping of the file faults, which sets
    its ctime. It neither flushes the disk nor commits: that is fsync."""
    _sync_range(fd, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)


def flush_file_system(fd: int) -> None:
    """Make durable all earlier changes, by any process, of names and attributes on the file's file system. This
    includes all bytes for which `write_back` was called.

    ext4 and XFS commit their journal in order, so an fsync of the last change is enough; other file systems are synced
    completely. fd: a file or directory whose mtime may change. Blocks. Raises OSError.
    """
    if _file_system(fd) in _JOURNALS:
        os.utime(fd)
        os.fsync(fd)
    elif c_library().syncfs(fd) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def _file_system(fd: int) -> int:
    """Return the file system's number in the kernel (linux/magic.h)."""
    statistics = bytearray(STATFS_BYTES)
    if c_library().fstatfs(fd, address_of(memoryview(statistics))) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))
    return int.from_bytes(statistics[:8], sys.byteorder)


def begin_write_back(fd: int) -> None:
    """Queue dirty pages for the disk, except those that are being written already."""
    _sync_range(fd, _WRITE)


def _sync_range(fd: int, flags: int) -> None:
    if c_library().sync_file_range(fd, 0, 0, flags) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def seen_at_rest(fd: int) -> os.stat_result:
    """Return fstat after all writes have ended that the ctime covers. A write(2) first sets the times and then copies
    its bytes, so a reader could get some of the bytes under the ctime of all. A later write has another ctime if the
    kernel's clock has ticked since. Blocks while a write runs, except one with O_DIRECT. Moves the offset of fd.
    docs/decisions/0022-a-write-sets-its-time-first.md"""
    status = os.fstat(fd)
    with contextlib.suppress(OSError):
        os.lseek(fd, 0, os.SEEK_DATA)  # waits for the lock that a write holds: ext4, tmpfs, btrfs
    os.pread(fd, 1, 0)  # XFS: waits for the same lock
    again = os.fstat(fd)
    return as_given(again if again.st_ctime_ns == status.st_ctime_ns else status, fd)


def birth_ns(fd: int) -> int | None:
    """Return the time at which a file was created; None if its file system or the C library does not tell. A rename
    keeps it, and a new file with the inode number of a removed one has another. fd: may be opened with O_PATH. Raises
    OSError."""
    library, buffer = c_library(), bytearray(_STATX_BYTES)
    if not hasattr(library, "statx"):
        return None
    if library.statx(fd, b"", AT_EMPTY_PATH, _STATX_BTIME, address_of(memoryview(buffer))) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))
    mask, seconds, nanoseconds = _BIRTH.unpack_from(buffer)
    return seconds * 1_000_000_000 + nanoseconds if mask & _STATX_BTIME else None


def tick_left_s(status: os.stat_result) -> float:
    """Return the seconds for which a change may still get the ctime of the last one; also 0 if the clock was set
    back."""
    age_ns = time.time_ns() - status.st_ctime_ns
    return (CTIME_TICK_NS - age_ns) / 1e9 if 0 <= age_ns < CTIME_TICK_NS else 0.0
