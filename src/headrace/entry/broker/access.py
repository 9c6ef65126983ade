"""Who asks, by the kernel's word, and what the permission bits of a file let that user do. Pure but for `user_of`.

The same as `default_permissions` of fuse(4) says of the mount: owner, group or others, the first that fits. There are
no access control lists in a mount.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import struct
from typing import NamedTuple

from headrace.base.libc import c_library, last_errno
from headrace.base.peer_process import peer_of

READ, ENTER = 4, 1
_SO_PEERGROUPS = 59  # include/uapi/asm-generic/socket.h; Python does not name it
_GROUPS_AT_ONCE = 256
_GROUPS_MAX = 65536  # NGROUPS_MAX


class User(NamedTuple):
    """groups: all of them, that of the process among them."""

    uid: int
    groups: frozenset[int]


class Modes(NamedTuple):
    """Of a file or directory, as the mount shows it."""

    mode: int
    uid: int
    gid: int


def may(user: User, modes: Modes, wanted: int) -> bool:
    """wanted: READ, ENTER, or both."""
    if user.uid == 0:
        return True  # but to run a plain file, which nobody asks for here
    if user.uid == modes.uid:
        granted = modes.mode >> 6
    elif modes.gid in user.groups:
        granted = modes.mode >> 3
    else:
        granted = modes.mode
    return granted & wanted == wanted


def user_of(connection: socket.socket) -> User:
    """Whoever connected, as of then. OSError where the kernel does not say all groups of it."""
    _, uid, gid = peer_of(connection)
    return User(uid, frozenset((gid, *_groups_of(connection))))


def _groups_of(connection: socket.socket) -> tuple[int, ...]:
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _GROUPS_AT_ONCE)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        found = _many_groups_of(connection)
    return struct.unpack(f"@{len(found) // 4}I", found)


def _many_groups_of(connection: socket.socket) -> bytes:
    """Python hands out 1 KiB at most."""
    buffer = ctypes.create_string_buffer(4 * _GROUPS_MAX)
    length = ctypes.c_uint32(len(buffer))
    if c_library().getsockopt(
        connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, buffer, ctypes.byref(length)
    ):
        number = last_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]


def modes_of(found: os.stat_result) -> Modes:
    return Modes(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)
