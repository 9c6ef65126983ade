"""Registering files for passthrough, which the kernel lets only a process with CAP_SYS_ADMIN do.

A session that has it asks the kernel. One that runs as an unprivileged user asks its holder, which keeps the right for
it: by a packet with a descriptor. Who has taken over that session gains nothing: a file that its user owns, on a mount
that nobody writes to, is one that it may read and could answer READ with.
"""

from __future__ import annotations

import array
import errno
import logging
import os
import socket
import stat
import struct
import threading
from typing import Protocol

from headrace.base.passed_descriptors import received_descriptors
from headrace.fuse import device
from headrace.fuse.handover_state import SLOTS

log = logging.getLogger(__name__)

_NUMBER = struct.Struct("<i")
"""A question: 0 to register the descriptor beside it, or the id to be given back, which is not answered. An answer: the
id, or an errno, negative."""
_FD_BYTES = array.array("i").itemsize
_RIGHTS_BYTES = socket.CMSG_SPACE(_FD_BYTES)


class Backings(Protocol):
    def open(self, fd: int) -> int:
        """The backing id of a file. OSError where the kernel, or the holder, won't."""

    def close(self, backing_id: int) -> None: ...


class OwnBackings:
    """fuse_fd: of the mount."""

    def __init__(self, fuse_fd: int) -> None:
        self._fuse_fd = fuse_fd

    def open(self, fd: int) -> int:
        return device.backing_open(self._fuse_fd, fd)

    def close(self, backing_id: int) -> None:
        device.backing_close(self._fuse_fd, backing_id)


class AskedBackings:
    """The session's end of a pair of SOCK_SEQPACKET sockets. Thread-safe."""

    def __init__(self, holder: socket.socket) -> None:
        self._holder = holder
        self._lock = threading.Lock()

    def open(self, fd: int) -> int:
        with self._lock:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            self._holder.sendmsg([_NUMBER.pack(0)], rights, socket.MSG_NOSIGNAL)
            answer = self._holder.recv(_NUMBER.size)
        if len(answer) != _NUMBER.size:
            raise OSError(errno.EPERM, "the holder has ended")
        number = int(_NUMBER.unpack(answer)[0])
        if number <= 0:
            raise OSError(-number, os.strerror(-number))
        return number

    def close(self, backing_id: int) -> None:
        try:
            with self._lock:
                self._holder.send(_NUMBER.pack(backing_id), socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the holder has ended: the session does, too


class BackingsKeeper:
    """The holder's end, one for each session. Does nothing else for a session than what is written here, however it
    asks, and never waits for it."""

    def __init__(self, fuse_fd: int) -> None:
        self._own = OwnBackings(fuse_fd)
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._registered: set[int] = set()

    def fileno(self) -> int:
        return self.socket.fileno()

    def answer(self) -> bool:
        """One question, when the socket is readable. False: the session has closed its end."""
        try:
            body, rights, _, _ = self.socket.recvmsg(
                _NUMBER.size + 1, _RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
            )
        except OSError:
            return False
        fds = received_descriptors(rights)
        try:
            if not body:
                return False
            number = _NUMBER.unpack(body)[0] if len(body) == _NUMBER.size else -1
            if number > 0:
                self._registered.discard(number)
                self._own.close(number)
            else:
                self._say(self._register(fds[0]) if number == 0 and len(fds) == 1 else -errno.EINVAL)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _register(self, fd: int) -> int:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            log.warning("a session asked to register what is no file of its user mode=%o", found.st_mode)
            return -errno.EPERM
        if len(self._registered) >= SLOTS:
            return -errno.ENFILE
        try:
            backing_id = self._own.open(fd)
        except OSError as error:
            return -(error.errno or errno.EIO)
        self._registered.add(backing_id)
        return backing_id

    def _say(self, number: int) -> None:
        try:
            self.socket.send(_NUMBER.pack(number), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass  # it takes no answers, or has ended

    def close(self) -> None:
        self.socket.close()
        self.theirs.close()
