"""Identify the user of a connection by the kernel's credentials, and decide what a file's permission bits allow that
user. Everything but `user_of` is pure.

The rules are those of `default_permissions` in fuse(4), which apply in the mount: the first class that matches
decides, of owner, group and others. A mount has no access control lists.
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
    """Identifies a user. groups: all groups, including the process's own."""

    uid: int
    groups: frozenset[int]


class Modes(NamedTuple):
    """Holds the permission bits, owner and group of a file or directory, as the mount shows them."""

    mode: int
    uid: int
    gid: int


def may(user: User, modes: Modes, access: int) -> bool:
    """Return whether the user has that access. access: READ, ENTER, or both."""
    if user.uid == 0:
        return True  # root may do everything but execute a plain file, which is never requested here
    if user.uid == modes.uid:
        granted = modes.mode >> 6
    elif modes.gid in user.groups:
        granted = modes.mode >> 3
    else:
        granted = modes.mode
    return granted & access == access


def user_of(connection: socket.socket) -> User:
    """Return the user who connected, as of the time of connecting. Raise OSError when the kernel does not report all
    groups."""
    _, uid, gid = peer_of(connection)
    return User(uid, frozenset((gid, *_groups_of(connection))))


def _groups_of(connection: socket.socket) -> tuple[int, ...]:
    try:
        packed = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _GROUPS_AT_ONCE)
    except OSError as error:
        if error.errno != errno.ERANGE:
            raise
        packed = _many_groups_of(connection)
    return struct.unpack(f"@{len(packed) // 4}I", packed)


def _many_groups_of(connection: socket.socket) -> bytes:
    """Return all groups, packed. Python's getsockopt returns 1 KiB at most."""
    buffer = ctypes.create_string_buffer(4 * _GROUPS_MAX)
    length = ctypes.c_uint32(len(buffer))
    if c_library().getsockopt(
        connection.fileno(), socket.SOL_SOCKET, _SO_PEERGROUPS, buffer, ctypes.byref(length)
    ):
        number = last_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[: length.value]


def modes_of(status: os.stat_result) -> Modes:
    return Modes(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid)
