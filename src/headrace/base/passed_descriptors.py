"""Descriptors that one process hands to another over a unix socket."""

from __future__ import annotations

import array
import socket


def received_descriptors(rights: list[tuple[int, int, bytes]]) -> list[int]:
    """Return the descriptors that came beside a message of a unix socket, as `recvmsg` gives them (unix(7),
    SCM_RIGHTS). The caller closes them."""
    fds = array.array("i")
    for level, kind, data in rights:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)
