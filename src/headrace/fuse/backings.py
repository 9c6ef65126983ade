"""Register files for passthrough, for which the kernel requires CAP_SYS_ADMIN.

A session with CAP_SYS_ADMIN registers files itself. A session of an unprivileged user sends the descriptor to its FD
store, which keeps the capability. An attacker who controls such a session gains nothing. The FD store registers only
files of the session's user on a read-only mount, and that user can read those files anyway.
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
"""The format of requests and replies. A request is 0 to register the descriptor that comes with it, or a backing id
to release, which gets no reply. A reply is the backing id, or a negative errno."""
_FD_BYTES = array.array("i").itemsize
_RIGHTS_BYTES = socket.CMSG_SPACE(_FD_BYTES)


class Backings(Protocol):
    """Registers files for passthrough in the kernel, and releases their backing ids."""

    def open(self, fd: int) -> int:
        """Register a file and return its backing id. Raises OSError when the kernel or the FD store refuses."""

    def close(self, backing_id: int) -> None: ...


class OwnBackings:
    """Registers files with the CAP_SYS_ADMIN of this process. `fuse_fd` is the mount's /dev/fuse."""

    def __init__(self, fuse_fd: int) -> None:
        self._fuse_fd = fuse_fd

    def open(self, fd: int) -> int:
        return device.backing_open(self._fuse_fd, fd)

    def close(self, backing_id: int) -> None:
        device.backing_close(self._fuse_fd, backing_id)


class FdStoreBackings:
    """Registers files through the FD store, over the session's end of a SOCK_SEQPACKET pair. Thread-safe."""

    def __init__(self, fd_store: socket.socket) -> None:
        self._fd_store = fd_store
        self._lock = threading.Lock()

    def open(self, fd: int) -> int:
        with self._lock:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            self._fd_store.sendmsg([_NUMBER.pack(0)], rights, socket.MSG_NOSIGNAL)
            reply = self._fd_store.recv(_NUMBER.size)
        if len(reply) != _NUMBER.size:
            raise OSError(errno.EPERM, "the FD store has ended")
        number = int(_NUMBER.unpack(reply)[0])
        if number <= 0:
            raise OSError(-number, os.strerror(-number))
        return number

    def close(self, backing_id: int) -> None:
        try:
            with self._lock:
                self._fd_store.send(_NUMBER.pack(backing_id), socket.MSG_NOSIGNAL)
        except OSError:
            pass  # the FD store has ended; the session ends too


class BackingsKeeper:
    """Registers and releases files for one session, at the FD store's end of the socket pair. The session is not
    trusted: it can only register files of its user and release its own, and nothing here blocks on it. On a mount that
    is not `read_only` it registers nothing, because the kernel would open the file for writing without a check."""

    def __init__(self, fuse_fd: int, *, read_only: bool) -> None:
        self._own = OwnBackings(fuse_fd)
        self._read_only = read_only
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._registered: set[int] = set()

    def fileno(self) -> int:
        return self.socket.fileno()

    def answer(self) -> bool:
        """Serve one request, when the socket is readable. Return False when the session has closed its end."""
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
                self._reply(self._register(fds[0]) if number == 0 and len(fds) == 1 else -errno.EINVAL)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _register(self, fd: int) -> int:
        if not self._read_only:
            return -errno.EPERM
        file_stat = os.fstat(fd)
        if not stat.S_ISREG(file_stat.st_mode) or file_stat.st_uid != os.geteuid():
            log.warning(
                "registration refused, not a regular file of the session's user mode=%o", file_stat.st_mode
            )
            return -errno.EPERM
        if len(self._registered) >= SLOTS:
            return -errno.ENFILE
        try:
            backing_id = self._own.open(fd)
        except OSError as error:
            return -(error.errno or errno.EIO)
        self._registered.add(backing_id)
        return backing_id

    def _reply(self, number: int) -> None:
        try:
            self.socket.send(_NUMBER.pack(number), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass  # the session doesn't read its replies, or has ended

    def close(self) -> None:
        self.socket.close()
        self.theirs.close()
