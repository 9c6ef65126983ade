"""Which process is at the other end of a unix socket, by the kernel's word (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("@iII")


class PeerProcess(NamedTuple):
    """As it was when it connected, or began to listen."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> PeerProcess:
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return PeerProcess(*_CREDENTIALS.unpack(found))
