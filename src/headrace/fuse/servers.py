"""Record which processes serve a mount: each holds a lock in the run directory, and the kernel reports its owner.

Any user may start a process with any command line, so a command line proves nothing. Only the node's user can open
the run directory (`base/private_folder.py`). A lock of fcntl(2) ends with the process that took it, and the kernel
reports its pid. Each process locks its own byte, so that one that was killed and can't end hides no other.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import struct
from enum import IntEnum

from headrace.base.proc_stat import state_of

_PID_BITS = 22
"""Bits of a pid: PID_MAX_LIMIT of the kernel."""
_MOUNT_BITS = 39
"""Bits of the hash of a mountpoint, so that each mount has its own range of bytes to lock."""
_FLOCK = struct.Struct("@hhqqi4x")
"""Layout of struct flock of fcntl(2)."""


class Role(IntEnum):
    """Names what a process does for a mount: FD_STORE is the FD store."""

    FD_STORE = 0
    SESSION = 1


class Servers:
    """Takes and reads the locks of one mount. `fd` is the run directory; -1 when nobody supervises this mount. A
    process that has entered neither closes it nor lists the run directory: closing any descriptor of a file releases
    all locks that the process has on it."""

    def __init__(self, fd: int, mountpoint: str) -> None:
        self.fd = fd
        digest = hashlib.blake2b(os.fsencode(mountpoint), digest_size=8).digest()
        self._base = int.from_bytes(digest, "little") % (1 << _MOUNT_BITS) << (_PID_BITS + 1)

    @classmethod
    def open(cls, run_folder: str, mountpoint: str) -> Servers:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return cls(os.open(run_folder, flags), mountpoint)

    def enter(self, role: Role) -> None:
        """Lock this process's byte for a role, until the process ends; an exec keeps the lock."""
        if self.fd >= 0:
            fcntl.lockf(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, self._begin(role) + os.getpid())

    def pids(self, role: Role) -> list[int]:
        """Return the pids of other processes with a lock for the role, whose main thread has not ended."""
        start, end = self._begin(role), self._begin(role) + (1 << _PID_BITS)
        pids: list[int] = []
        while self.fd >= 0 and start < end:
            request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            kind, _, locked, _, pid = _FLOCK.unpack(fcntl.fcntl(self.fd, fcntl.F_GETLK, request))
            if kind == fcntl.F_UNLCK:
                break
            start = locked + 1
            if pid > 0 and not is_zombie(pid):
                pids.append(pid)
        return pids

    def any(self) -> bool:
        return any(self.pids(role) for role in Role)

    def pidfd(self, role: Role, pid: int) -> int:
        """Return a pidfd of a process that holds a lock for the role, and of no other; -1 when it has ended."""
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
    """Return whether the main thread of a process has ended, while others may still run."""
    return state_of(pid) == "Z"


def has_ended(control: socket.socket) -> bool:
    """Return whether the process at the other end of a control socket has ended. It has sent nothing so far."""
    try:
        return not control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
