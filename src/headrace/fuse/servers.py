"""Which processes serve a mount: each holds a lock of the run folder, and the kernel says who.

Any user may start a process with any command line, so none is believed. Only the node's user can open the run folder
(`base/private_folder.py`); a lock of fcntl(2) goes with the process that took it, and tells its pid. Each process has a
byte of its own, so that one that was killed and can't end hides nobody.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from enum import IntEnum

_PID_BITS = 22
"""PID_MAX_LIMIT of the kernel."""
_MOUNT_BITS = 39
_FLOCK = struct.Struct("@hhqqi4x")
"""struct flock of fcntl(2)."""


class Role(IntEnum):
    HOLDER = 0
    SESSION = 1


class Servers:
    """The locks of one mount. fd: of the run folder; -1: nobody looks after this mount. A process that has entered
    neither closes it nor lists the run folder: to close any descriptor of a file gives a process's locks of it up."""

    def __init__(self, fd: int, mountpoint: str) -> None:
        self.fd = fd
        digest = hashlib.blake2b(os.fsencode(mountpoint), digest_size=8).digest()
        self._base = int.from_bytes(digest, "little") % (1 << _MOUNT_BITS) << (_PID_BITS + 1)

    @classmethod
    def open(cls, run_folder: str, mountpoint: str) -> Servers:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return cls(os.open(run_folder, flags), mountpoint)

    def enter(self, role: Role) -> None:
        """This process is known as that until it ends; over an exec, too."""
        if self.fd >= 0:
            fcntl.lockf(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, self._begin(role) + os.getpid())

    def pids(self, role: Role) -> list[int]:
        """Of the others that are known as that; not of those that have ended but for a thread."""
        start, end = self._begin(role), self._begin(role) + (1 << _PID_BITS)
        found: list[int] = []
        while self.fd >= 0 and start < end:
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            kind, _, at, _, pid = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, asked))
            if kind == fcntl.F_UNLCK:
                break
            start = at + 1
            if pid > 0 and not is_zombie(pid):
                found.append(pid)
        return found

    def any(self) -> bool:
        return any(self.pids(role) for role in Role)

    def pidfd(self, role: Role, pid: int) -> int:
        """Of a process that is known as that, and can be no other; -1: it has ended."""
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return -1
        if pid in self.pids(role):
            return fd
        os.close(fd)
        return -1

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _begin(self, role: Role) -> int:
        return self._base + (role << _PID_BITS)


def is_zombie(pid: int) -> bool:
    """Whether the main thread of a process has ended, and others perhaps have not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return False
