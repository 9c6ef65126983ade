"""Identify the process at the other end of a unix socket, as the kernel reports it (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("@iII")


class PeerProcess(NamedTuple):
    """A process as it was when it connected, or began to listen."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> PeerProcess:
    """Return the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerProcess(*_CREDENTIALS.unpack(credentials))
