"""Find where a node of another user is mounted on this host, from /proc and from the mounts themselves."""

from __future__ import annotations

import os

from headrace.base.mount_table import MountTableRow, mount_table
from headrace.base.trusted_owner import chosen_by_root, is_trusted
from headrace.config.schema import broker_socket_of

SOCKET_ATTRIBUTE = "user.headrace.socket"
"""An attribute of each file in a mount of Headrace: the socket of the node behind the mount."""
_KIND = "fuse.headrace"


def mount_of(broker_socket: str) -> str | None:
    """Return the mountpoint of the node with that broker socket. None: this user may enter no such mount."""
    for mount in believed_mounts(chosen_by_root(os.path.dirname(broker_socket))):
        try:
            socket = os.fsdecode(os.getxattr(mount.mountpoint, SOCKET_ATTRIBUTE))
        except OSError:
            continue
        if broker_socket_of(socket) == broker_socket:
            return mount.mountpoint
    return None


def believed_mounts(chosen: int | None = None) -> list[MountTableRow]:
    """List the trusted mounts of Headrace: root, this user or the user `chosen` made and serves them. Anybody may
    mount a file system by FUSE, and a node without rights serves a mount that root made."""
    makers = {f"user_id={user}" for user in (0, os.geteuid())}
    return [
        row
        for row in mount_table()
        if row.kind == _KIND and makers & set(row.options) and _is_served_by(row.source, chosen)
    ]


def _is_served_by(source: str, chosen: int | None) -> bool:
    """Return whether the server of a mount is trusted. source: the mount's source, written by the user who mounted
    it."""
    _, separator, user = source.partition("@")
    is_number = user.isascii() and user.isdigit()
    return not separator or (is_number and (is_trusted(int(user)) or int(user) == chosen))
