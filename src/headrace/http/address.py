"""Parse the address HOST:PORT that a gateway listens on, and decide whether other hosts can reach it."""

from __future__ import annotations

import ipaddress
import socket

from headrace.base.errors import UsageError

BACKLOG = 1024
"""Most connections that the kernel completes before the server accepts them."""


def split_address(address: str, setting: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT or [HOST]:PORT. Raise UsageError for another text, which names `setting`."""
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    if (
        not colon
        or not host
        or not (port.isascii() and port.isdigit() and len(port) <= 5)
        or int(port) > 65535
    ):
        raise UsageError(
            f"setting {setting} = {address!r}", why="it is not HOST:PORT", hint="for example 127.0.0.1:9000"
        )
    return host, int(port)


def is_loopback(host: str, setting: str) -> bool:
    """Return whether a host resolves to loopback addresses only. Raise UsageError for a name that does not resolve."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"setting {setting}: host {host!r}", why=error.strerror or str(error)) from error
    return all(
        ipaddress.ip_address(str(address[4][0]).partition("%")[0]).is_loopback for address in addresses
    )


def listen(address: str, setting: str) -> socket.socket:
    """Return a listening socket. port 0: any free port. Raise UsageError when the address can't be used."""
    host, port = split_address(address, setting)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"setting {setting} = {address}",
            why=error.strerror or str(error),
            hint=f"set {setting} = HOST:PORT",
        ) from error
    listener.setblocking(False)
    return listener


def bound_to(listener: socket.socket) -> str:
    """Return HOST:PORT of a listening socket, as `split_address` accepts it."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
