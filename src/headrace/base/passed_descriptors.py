"""Receive descriptors that another process sent over a unix socket."""

from __future__ import annotations

import array
import socket


def received_descriptors(rights: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came with a message of a unix socket, from the ancillary data of `recvmsg` (unix(7),
    SCM_RIGHTS). The caller closes them."""
    fds = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
