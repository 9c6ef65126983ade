"""Room that the node keeps for itself on a disk that others fill.

Whoever writes through a mount writes to the disk without us, and so do other programs, until it is full. The node must
still be able to start then, to persist and to drop files, and all of that is written down: in the index, in the table
of what the origins have. So those have blocks ahead of what they use (`allocate`), and for all else there are spares:
files of allocated blocks, of which one is removed when something fails for want of room (`spend`), and made again when
there is some (`refill`). A spare gives back an inode, too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from headrace.base.errors import NoSpaceError
from headrace.overlay.syscalls import fallocate

SPARES = 4
FULL = (errno.ENOSPC, errno.EDQUOT)
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_KEEP_SIZE = 1
_DISK_SHARE = 64
_AHEAD_BYTES_MIN, _AHEAD_BYTES_MAX = 1 << 20, 16 << 20

Result = TypeVar("Result")


class Reserve:
    """volume_folder: of the first volume, where the index and the upper layer are."""

    def __init__(self, volume_folder: str) -> None:
        self._volume_folder = volume_folder
        self._folder = f"{volume_folder}/reserve"

    @property
    def ahead_bytes(self) -> int:
        """How much a table has beyond what it uses."""
        disk = os.statvfs(self._volume_folder)
        return min(_AHEAD_BYTES_MAX, max(_AHEAD_BYTES_MIN, disk.f_blocks * disk.f_frsize // _DISK_SHARE))

    def spend(self, work: Callable[[], Result]) -> Result:
        """Does the work; again with a spare less, as long as there is one, where the disk is full."""
        while True:
            try:
                return work()
            except OSError as error:
                if not is_full(error) or not self._drop_spare():
                    raise

    def allocate(self, fd: int, length: int) -> bool:
        """The first bytes of a file have blocks on return, whatever its length is. False: the disk is full. A file
        system that can't do it keeps no room for anybody."""
        try:
            self.spend(lambda: fallocate(fd, _KEEP_SIZE, 0, length))
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return True
            if error.errno in FULL:
                return False
            raise
        return True

    def refill(self, room_bytes: int) -> None:
        """Makes what is missing of the spares, as far as so many bytes reach. OSError."""
        size_bytes = self.ahead_bytes // 2
        try:
            there = set(os.listdir(self._folder))
        except FileNotFoundError:
            os.mkdir(self._folder, mode=0o700)
            there = set()
        for name in map(str, range(SPARES)):
            if name not in there and room_bytes >= size_bytes:
                self._make_spare(f"{self._folder}/{name}", size_bytes)
                room_bytes -= size_bytes

    def _make_spare(self, path: str, size_bytes: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fallocate(fd, 0, 0, size_bytes)
        except OSError as error:
            if error.errno in FULL:  # somebody was faster
                os.unlink(path)
            elif error.errno not in _UNSUPPORTED:
                raise
        finally:
            os.close(fd)

    def _drop_spare(self) -> bool:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return False
        if not names:
            return False
        os.unlink(f"{self._folder}/{max(names)}")
        return True


def is_full(error: OSError) -> bool:
    return isinstance(error, NoSpaceError) or error.errno in FULL
