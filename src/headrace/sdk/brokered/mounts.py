"""Where a node of another user is mounted on this host: read from /proc and from the mounts themselves."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from headrace.base.trusted_owner import chosen_by_root, is_trusted
from headrace.config.schema import broker_socket_of

SOCKET_ATTRIBUTE = "user.headrace.socket"
"""Of what is in a mount of Headrace's: where the node listens that the mount asks."""
_KIND = b"fuse.headrace"


def mount_of(broker_socket: str) -> bytes | None:
    """The mountpoint of the node that hands out descriptors there; None: no mount that this user may enter."""
    for mount in believed_mounts(chosen_by_root(os.path.dirname(broker_socket))):
        try:
            socket = os.fsdecode(os.getxattr(mount.path, SOCKET_ATTRIBUTE))
        except OSError:
            continue
        if broker_socket_of(socket) == broker_socket:
            return mount.path
    return None


class NodeMount(NamedTuple):
    """device: "major:minor"."""

    path: bytes
    device: str


def believed_mounts(chosen: int | None = None) -> list[NodeMount]:
    """Mounts of Headrace's that root or this user made, and serves, or the user `chosen`: anybody may mount a file
    system of his own by FUSE, and a node without rights serves a mount of root's."""
    found = []
    makers = {b"user_id=%d" % user for user in (0, os.geteuid())}
    with open("/proc/self/mountinfo", "rb") as rows:
        for row in rows:
            left, _, right = row.partition(b" - ")
            kind, source, options = right.split()[:3]
            if kind == _KIND and makers & set(options.split(b",")) and _is_served_by(source, chosen):
                words = left.split()
                found.append(NodeMount(_plain(words[4]), words[2].decode()))
    return found


def _is_served_by(source: bytes, chosen: int | None) -> bool:
    """Whether who serves a mount is believed. source: of the table, which who made the mount wrote."""
    _, at, user = source.partition(b"@")
    return not at or (user.isdigit() and (is_trusted(int(user)) or int(user) == chosen))


def _plain(word: bytes) -> bytes:
    """As it was before the kernel escaped spaces and their like."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), word)
