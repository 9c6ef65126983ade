"""Reserve disk space for the node on a disk that other programs fill.

Sessions write to the disk without the node, and so do other programs, until it is full. Even then the node must be able
to start, to persist files and to evict them. All of that needs writes to the index and to the sync journal, so these
have blocks allocated ahead of their use (`allocate`).

For everything else there are spares, files of allocated blocks. `spend` deletes one when a call fails because the disk
is full, and `refill` creates it again when there is space. Deleting a spare also frees an inode.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from headrace.base.errors import NoSpaceError
from headrace.overlay.syscalls import fallocate

SPARES = 4
"""Number of spare files."""
DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk, or of a used-up quota."""
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_KEEP_SIZE = 1
_DISK_SHARE = 64
"""A table's reserve is the disk's size over this number, within _AHEAD_BYTES_MIN and _AHEAD_BYTES_MAX."""
_AHEAD_BYTES_MIN, _AHEAD_BYTES_MAX = 1 << 20, 16 << 20

Result = TypeVar("Result")


class Reserve:
    """Hold the reserve of one node. volume_folder: directory of the first volume, which has the index and the upper
    layer."""

    def __init__(self, volume_folder: str) -> None:
        self._volume_folder = volume_folder
        self._folder = f"{volume_folder}/reserve"

    @property
    def ahead_bytes(self) -> int:
        """Return the bytes that are allocated for a table beyond its use: a share of the disk, within bounds."""
        disk = os.statvfs(self._volume_folder)
        return min(_AHEAD_BYTES_MAX, max(_AHEAD_BYTES_MIN, disk.f_blocks * disk.f_frsize // _DISK_SHARE))

    def spend(self, work: Callable[[], Result]) -> Result:
        """Call `work`. While it fails because the disk is full, delete a spare and call it again. Raises its error when
        no spare is left."""
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error) or not self._drop_spare():
                    raise

    def allocate(self, fd: int, length: int) -> bool:
        """Allocate blocks for the first bytes of a file, whatever its length is. Return False if the disk is full. Does
        nothing on a file system that can't allocate ahead."""
        try:
            self.spend(lambda: fallocate(fd, _KEEP_SIZE, 0, length))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return True
            if error.errno in DISK_FULL_ERRORS:
                return False
            raise
        return True

    def refill(self, free_bytes: int) -> None:
        """Create missing spares, as far as the free bytes suffice. Raises OSError."""
        size_bytes = self.ahead_bytes // 2
        try:
            existing = set(os.listdir(self._folder))
        except FileNotFoundError:
            os.mkdir(self._folder, mode=0o700)
            existing = set()
        for name in map(str, range(SPARES)):
            if name not in existing and free_bytes >= size_bytes:
                self._make_spare(f"{self._folder}/{name}", size_bytes)
                free_bytes -= size_bytes

    def _make_spare(self, path: str, size_bytes: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fallocate(fd, 0, 0, size_bytes)
        except OSError as error:
            if error.errno in DISK_FULL_ERRORS:  # another program took the space
                os.unlink(path)
            elif error.errno not in _UNSUPPORTED:
                raise
        finally:
            os.close(fd)

    def _drop_spare(self) -> bool:
        """Delete a spare. Return False if none is left."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return False
        if not names:
            return False
        os.unlink(f"{self._folder}/{max(names)}")
        return True


def is_full(error: OSError) -> bool:
    """Return whether an error means that the disk is full."""
    return isinstance(error, NoSpaceError) or error.errno in DISK_FULL_ERRORS
