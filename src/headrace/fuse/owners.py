"""Decide who owns what a request creates."""

from __future__ import annotations

import errno
import os

from headrace.fuse import abi
from headrace.overlay.merged_tree import Owner


def owner_of(request: bytearray) -> Owner:
    uid, gid = abi.IN_HEADER.unpack_from(request)[4:6]
    return Owner(uid, gid)


def single_owner_of(request: bytearray) -> Owner:
    """Return the owner of a new file in a layer whose files all belong to this process's user. Raises EPERM for a
    request of another user, whose file would have the wrong owner. Root may create files: they are squashed."""
    uid = abi.IN_HEADER.unpack_from(request)[4]
    if uid not in (0, os.geteuid()):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))
    return Owner(os.geteuid(), os.getegid())
