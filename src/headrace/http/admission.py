"""Limit the connections that a server keeps and the memory that they use: for the gateways and for the peers' port.

A connection that has not authenticated has proven nothing. Such connections have limits of their own, in all and for
each address, and are displaced by newer ones: the server closes the oldest connection of the address that has most.
An honest client authenticates at once, so it is hardly ever the oldest; an address that only opens connections
displaces its own. Beyond a rate that no honest client reaches, an address's connections are closed before they cost
anything.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

CONNECTIONS_MAX = 8192
"""Most connections of a server."""
ADDRESS_CONNECTIONS_MAX = 2048
"""Most connections of one address. A host has many workers with many connections each. Behind a proxy all clients have
one address."""
UNAUTHENTICATED_MAX = 1024
"""Most connections that have not authenticated."""
ARRIVALS_MAX = ADDRESS_CONNECTIONS_MAX
"""Most new connections of an address in WINDOW_S that do not authenticate: as many as it may have open."""
WINDOW_S = 1.0
BUFFERED_BYTES_MAX = 16 << 20
"""Most bytes of incomplete requests that a server buffers."""
WHOLE_BODIES_BYTES_MAX = 32 << 20
"""Most bytes of bodies that a process holds until they are complete."""
_RESET = struct.pack("ii", 1, 0)


class CountedConnection(Protocol):
    """Is a connection that Admission counts. address: the result of `count_address`."""

    address: str


Connection = TypeVar("Connection", bound=CountedConnection)


def count_address(host: str) -> str:
    """Return the address by which a host's connections are counted. For IPv6 it is the /64 network, which one host
    owns."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)


class Admission(Generic[Connection]):
    """Decides which connections are kept. Thread-safe. displace: closes a displaced connection; called without a
    lock held."""

    def __init__(
        self,
        displace: Callable[[Connection], None],
        *,
        connections_max: int = CONNECTIONS_MAX,
        address_max: int = ADDRESS_CONNECTIONS_MAX,
        unauthenticated_max: int = UNAUTHENTICATED_MAX,
        arrivals_max: int = ARRIVALS_MAX,
    ) -> None:
        self._displace = displace
        self._connections_max = connections_max
        self._address_max = address_max
        self._unauthenticated_max = unauthenticated_max
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._connections: set[Connection] = set()
        self._unauthenticated: dict[str, dict[Connection, None]] = {}
        self._unauthenticated_count = 0
        self._arrivals_max = arrivals_max
        self._arrivals: dict[str, int] = {}
        self._window_until_s = 0.0

    def __len__(self) -> int:
        return len(self._connections)

    def weight(self, connection: Connection) -> int:
        """Return the number of unauthenticated connections of the connection's address. Fewer are served first."""
        return len(self._unauthenticated.get(connection.address, ()))

    def arrive(self, host: str) -> bool:
        """Return False for a connection that must be closed at once, because its address opens too many."""
        address, now_s = count_address(host), time.monotonic()
        with self._lock:
            if now_s >= self._window_until_s:
                self._window_until_s = now_s + WINDOW_S
                self._arrivals.clear()
            count = self._arrivals.get(address, 0)
            if count >= self._arrivals_max:
                return False
            self._arrivals[address] = count + 1
            return True

    def enter(self, connection: Connection) -> bool:
        """Add a connection, displacing another one when a limit is reached. Return False when no connection can be
        displaced."""
        victim: Connection | None = None
        with self._lock:
            if self._counts.get(connection.address, 0) >= self._address_max:
                victim = self._oldest(connection.address)
            elif (
                len(self._connections) >= self._connections_max
                or self._unauthenticated_count >= self._unauthenticated_max
            ):
                victim = self._oldest(self._heaviest())
            else:
                self._add(connection)
                return True
            if victim is None:
                return False
            self._remove(victim)
            self._add(connection)
        self._displace(victim)
        return True

    def mark_authenticated(self, connection: Connection) -> None:
        """Record that a connection authenticated. It is not displaced any more."""
        with self._lock:
            self._forget_unauthenticated(connection)
            if self._arrivals.get(connection.address):
                self._arrivals[connection.address] -= 1

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended. A second call does nothing."""
        with self._lock:
            self._remove(connection)

    def _heaviest(self) -> str:
        return max(self._unauthenticated, key=lambda address: len(self._unauthenticated[address]), default="")

    def _oldest(self, address: str) -> Connection | None:
        return next(iter(self._unauthenticated.get(address, ())), None)

    def _add(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._counts[connection.address] = self._counts.get(connection.address, 0) + 1
        self._unauthenticated.setdefault(connection.address, {})[connection] = None
        self._unauthenticated_count += 1

    def _remove(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._counts[connection.address] -= 1
        if not self._counts[connection.address]:
            del self._counts[connection.address]
        self._forget_unauthenticated(connection)

    def _forget_unauthenticated(self, connection: Connection) -> None:
        connections = self._unauthenticated.get(connection.address)
        if connections is None or connection not in connections:
            return
        del connections[connection]
        self._unauthenticated_count -= 1
        if not connections:
            del self._unauthenticated[connection.address]


class Buffered(Generic[Connection]):
    """Counts the bytes of incomplete requests over all connections. Thread-safe."""

    def __init__(self, bytes_max: int = BUFFERED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._sizes_bytes: dict[Connection, int] = {}
        self._bytes = 0

    def hold(self, connection: Connection, size_bytes: int) -> list[Connection]:
        """Record the bytes that a connection buffers now. Return the connections to close, those that began to
        buffer first."""
        with self._lock:
            old_size_bytes = self._sizes_bytes.get(connection, 0)
            self._bytes += size_bytes - old_size_bytes
            if size_bytes:
                self._sizes_bytes[connection] = size_bytes
            elif old_size_bytes:
                del self._sizes_bytes[connection]
            victims = []
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._sizes_bytes))
                self._bytes -= self._sizes_bytes.pop(oldest)
                victims.append(oldest)
            return victims


class Memory:
    """Limits the memory for request bodies that must be complete before they are parsed. Thread-safe."""

    def __init__(self, bytes_max: int = WHOLE_BODIES_BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._left_bytes = bytes_max

    def reserve(self, size_bytes: int) -> bool:
        """Reserve memory; return False if less is left."""
        with self._lock:
            if size_bytes > self._left_bytes:
                return False
            self._left_bytes -= size_bytes
            return True

    def release(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes += size_bytes


WHOLE_BODIES = Memory()
"""Memory for such bodies in this process."""


def reset(sock: socket.socket) -> None:
    """Close a connection at once: discard unsent bytes and leave no state in the kernel."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
