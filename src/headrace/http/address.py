"""Where a door listens: HOST:PORT of a setting, and whether others reach it."""

from __future__ import annotations

import ipaddress
import socket

from headrace.base.errors import UsageError

BACKLOG = 1024


def split_address(address: str, setting: str) -> tuple[str, int]:
    """HOST:PORT, [HOST]:PORT. UsageError."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if (
        not colon
        or not host
        or not (port.isascii() and port.isdigit() and len(port) <= 5)
        or int(port) > 65535
    ):
        raise UsageError(
            f"setting {setting} = {address!r}", why="not HOST:PORT", hint="for example 127.0.0.1:9000"
        )
    return host, int(port)


def is_loopback(host: str, setting: str) -> bool:
    """UsageError for a name that nobody knows."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"setting {setting}: host {host!r}", why=error.strerror or str(error)) from error
    return all(ipaddress.ip_address(str(one[4][0]).partition("%")[0]).is_loopback for one in found)


def listen(address: str, setting: str) -> socket.socket:
    """port 0: any. UsageError when that can't be listened at."""
    host, port = split_address(address, setting)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"setting {setting} = {address}",
            why=error.strerror or str(error),
            hint=f"choose by {setting} = HOST:PORT",
        ) from error
    listening.setblocking(False)
    return listening


def bound_to(listening: socket.socket) -> str:
    """HOST:PORT, as `split_address` takes it."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
