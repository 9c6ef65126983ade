"""Where a node of another user is mounted on this host: read from /proc and from the mounts themselves."""

from __future__ import annotations

import os
import re

SOCKET_ATTRIBUTE = "user.headrace.socket"
"""Of what is in a mount of Headrace's: where the node listens that the mount asks."""
_KIND = "fuse.headrace"


def mount_of(broker_socket: str) -> bytes | None:
    """The mountpoint of the node that hands out descriptors there; None: no mount that this user may enter."""
    from headrace.config.schema import broker_socket_of

    for mountpoint in believed_mounts():
        try:
            socket = os.fsdecode(os.getxattr(mountpoint, SOCKET_ATTRIBUTE))
        except OSError:
            continue
        if broker_socket_of(socket) == broker_socket:
            return mountpoint
    return None


def believed_mounts() -> list[bytes]:
    """Mountpoints of Headrace's that root or this user made: anybody may mount a file system of his own by FUSE."""
    found = []
    with open("/proc/self/mountinfo", "rb") as rows:
        for row in rows:
            left, _, right = row.partition(b" - ")
            kind, _, options = right.split()[:3]
            makers = [b"user_id=%d" % user for user in (0, os.geteuid())]
            if kind == _KIND.encode() and any(maker in options.split(b",") for maker in makers):
                found.append(_plain(left.split()[4]))
    return found


def _plain(word: bytes) -> bytes:
    """As it was before the kernel escaped spaces and their like."""
    return re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), word)
