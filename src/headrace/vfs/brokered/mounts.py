"""Finds where a node of another user is mounted on this host, from /proc and from the mounts themselves."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from headrace.base.trusted_owner import chosen_by_root, is_trusted
from headrace.config.schema import broker_socket_of

SOCKET_ATTRIBUTE = "user.headrace.socket"
"""An attribute of each file in a mount of Headrace: the socket of the node behind the mount."""
_KIND = b"fuse.headrace"


def mount_of(broker_socket: str) -> bytes | None:
    """Return the mountpoint of the node with that broker socket. None: this user may enter no such mount."""
    for mount in believed_mounts(chosen_by_root(os.path.dirname(broker_socket))):
        try:
            socket = os.fsdecode(os.getxattr(mount.path, SOCKET_ATTRIBUTE))
        except OSError:
            continue
        if broker_socket_of(socket) == broker_socket:
            return mount.path
    return None


class NodeMount(NamedTuple):
    """Describes a mount. device: "major:minor"."""

    path: bytes
    device: str


def believed_mounts(chosen: int | None = None) -> list[NodeMount]:
    """List the trusted mounts of Headrace: root, this user or the user `chosen` made and serves them. Anybody may
    mount a file system by FUSE, and a node without rights serves a mount that root made."""
    mounts = []
    makers = {b"user_id=%d" % user for user in (0, os.geteuid())}
    with open("/proc/self/mountinfo", "rb") as rows:
        for row in rows:
            left, _, right = row.partition(b" - ")
            kind, source, options = right.split()[:3]
            if kind == _KIND and makers & set(options.split(b",")) and _is_served_by(source, chosen):
                words = left.split()
                mounts.append(NodeMount(_plain(words[4]), words[2].decode()))
    return mounts


def _is_served_by(source: bytes, chosen: int | None) -> bool:
    """Return whether the server of a mount is trusted. source: the mount's source, written by the user who mounted
    it."""
    _, separator, user = source.partition(b"@")
    return not separator or (user.isdigit() and (is_trusted(int(user)) or int(user) == chosen))


def _plain(word: bytes) -> bytes:
    """Undo the kernel's escapes of spaces and similar characters."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), word)
