"""System calls that Python's os lacks: fallocate(2) with its modes, sync_file_range(2); and what takes more than
one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time

from headrace.base.beneath import rename_at
from headrace.base.libc import address_of, c_library, last_errno
from headrace.overlay.given_mode import as_given

CTIME_TICK_NS = 20_000_000
"""Two changes within a tick of the kernel's clock may have one ctime, where it has no finer one."""
_AT_FDCWD = -100
_JOURNALS = (0xEF53, 0x58465342)
"""ext2 to ext4, XFS."""
STATFS_BYTES = 256
"""More than the kernel's struct has, of which the first word is the file system's number."""
_WAIT_BEFORE, _WRITE, _WAIT_AFTER = 1, 2, 4


def rename(source: str, target: str, flags: int) -> None:
    """By paths that nobody else changes. flags: as of `SafePath.rename`."""
    rename_at(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags)


def fallocate(fd: int, mode: int, start: int, length: int) -> None:
    if c_library().fallocate(fd, mode, start, length) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def write_back(fd: int) -> None:
    """Dirty pages are written to the disk and are write-protected: whoever then stores into a mapping of the file
    faults, which sets its ctime. No flush of the disk and no commit: that is fsync."""
    _sync_range(fd, _WAIT_BEFORE | _WRITE | _WAIT_AFTER)


def flush_file_system(fd: int) -> None:
    """Make durable what anybody changed before in names and attributes of the file's file system, and all bytes that
    `write_back` was called for. fd: of a file or directory whose times nobody needs. ext4 and XFS commit their journal
    in order, so an fsync of what was changed last is enough; others are synced whole. Blocks. OSError."""
    if _file_system(fd) in _JOURNALS:
        os.utime(fd)
        os.fsync(fd)
    elif c_library().syncfs(fd) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def _file_system(fd: int) -> int:
    """Its number in the kernel (linux/magic.h)."""
    statistics = bytearray(STATFS_BYTES)
    if c_library().fstatfs(fd, address_of(memoryview(statistics))) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))
    return int.from_bytes(statistics[:8], sys.byteorder)


def sync_folder(path: str) -> None:
    """Make the names in a directory durable. Blocks for the disk. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def begin_write_back(fd: int) -> None:
    """Dirty pages go to the disk's queue, but for those that are under way already."""
    _sync_range(fd, _WRITE)


def _sync_range(fd: int, flags: int) -> None:
    if c_library().sync_file_range(fd, 0, 0, flags) != 0:
        number = last_errno()
        raise OSError(number, os.strerror(number))


def seen_at_rest(fd: int) -> os.stat_result:
    """As fstat, when all writes that the ctime tells of have ended: a write(2) sets the times first and then copies its
    bytes, of which a reader would see a part under the ctime of all. A later write has another ctime, where the
    kernel's clock has ticked since. Blocks while a write goes on, but for one with O_DIRECT. Moves the offset of fd.
    docs/decisions/0022-a-write-sets-its-time-first.md"""
    found = os.fstat(fd)
    with contextlib.suppress(OSError):
        os.lseek(fd, 0, os.SEEK_DATA)  # waits for the lock that a write holds: ext4, tmpfs, btrfs
    os.pread(fd, 1, 0)  # the same of XFS
    again = os.fstat(fd)
    return as_given(again if again.st_ctime_ns == found.st_ctime_ns else found, fd)


def tick_left_s(found: os.stat_result) -> float:
    """How long a change may still have the ctime of the last one; 0 also where the clock was set back."""
    age_ns = time.time_ns() - found.st_ctime_ns
    return (CTIME_TICK_NS - age_ns) / 1e9 if 0 <= age_ns < CTIME_TICK_NS else 0.0


def may_be_written(fd: int) -> bool:
    """Whether anybody has the file open for writing, or mapped so; True where that can't be told. fd: open for reading
    only. By a lease (fcntl(2)), held for a moment: who opens the file meanwhile would get this process a SIGIO, so the
    caller keeps others from that."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False
