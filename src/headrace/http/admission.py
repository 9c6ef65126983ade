"""Which connections an interface keeps, and what they may hold of its memory: for the gateways and the peers' port.

Whoever opens connections has shown nothing yet. So those that were not let in by a credential (`prove`) are bounded by
themselves, in all and for each address, and make room for newer ones: the oldest of the address that has most of them
is closed. An honest client shows its credential at once, and is older than nobody; one that only opens connections
displaces its own. Beyond a rate that no honest client reaches its connections are ended before they cost anything.
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
ADDRESS_CONNECTIONS_MAX = 2048
"""A host has many workers with many connections each; behind a proxy all clients are one address."""
UNPROVEN_MAX = 1024
ARRIVALS_MAX = ADDRESS_CONNECTIONS_MAX
"""Connections of an address in a second, without those that were let in by a credential: as many as it may have."""
WINDOW_S = 1.0
BUFFERED_BYTES_MAX = 16 << 20
WHOLE_BODIES_BYTES_MAX = 32 << 20
_RESET = struct.pack("ii", 1, 0)


class Visitor(Protocol):
    """address: by which connections are counted, of `count_address`."""

    address: str


Connection = TypeVar("Connection", bound=Visitor)


def count_address(host: str) -> str:
    """Return by what connections from a host are counted: of IPv6 its network, as one host has all of it."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False).network_address)


class Admission(Generic[Connection]):
    """Thread-safe. displace: ends a connection that makes room; called without a lock."""

    def __init__(
        self,
        displace: Callable[[Connection], None],
        *,
        connections_max: int = CONNECTIONS_MAX,
        address_max: int = ADDRESS_CONNECTIONS_MAX,
        unproven_max: int = UNPROVEN_MAX,
        arrivals_max: int = ARRIVALS_MAX,
    ) -> None:
        self._displace = displace
        self._connections_max = connections_max
        self._address_max = address_max
        self._unproven_max = unproven_max
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._connections: set[Connection] = set()
        self._unproven: dict[str, dict[Connection, None]] = {}
        self._unproven_count = 0
        self._arrivals_max = arrivals_max
        self._arrivals: dict[str, int] = {}
        self._window_until_s = 0.0

    def __len__(self) -> int:
        return len(self._connections)

    def weight(self, connection: Connection) -> int:
        """How many connections that showed nothing its address has: who has fewer is served first."""
        return len(self._unproven.get(connection.address, ()))

    def arrive(self, host: str) -> bool:
        """Return False for a connection that is to be ended at once: its address makes too many of them."""
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
        """Return False where there is no room that somebody else could make."""
        victim: Connection | None = None
        with self._lock:
            if self._counts.get(connection.address, 0) >= self._address_max:
                victim = self._oldest(connection.address)
            elif (
                len(self._connections) >= self._connections_max or self._unproven_count >= self._unproven_max
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

    def prove(self, connection: Connection) -> None:
        """It was let in by a credential, and makes room for nobody from now on."""
        with self._lock:
            self._forget_unproven(connection)
            if self._arrivals.get(connection.address):
                self._arrivals[connection.address] -= 1

    def leave(self, connection: Connection) -> None:
        """It has ended; once more is no harm."""
        with self._lock:
            self._remove(connection)

    def _heaviest(self) -> str:
        return max(self._unproven, key=lambda address: len(self._unproven[address]), default="")

    def _oldest(self, address: str) -> Connection | None:
        return next(iter(self._unproven.get(address, ())), None)

    def _add(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._counts[connection.address] = self._counts.get(connection.address, 0) + 1
        self._unproven.setdefault(connection.address, {})[connection] = None
        self._unproven_count += 1

    def _remove(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._counts[connection.address] -= 1
        if not self._counts[connection.address]:
            del self._counts[connection.address]
        self._forget_unproven(connection)

    def _forget_unproven(self, connection: Connection) -> None:
        of_address = self._unproven.get(connection.address)
        if of_address is None or connection not in of_address:
            return
        del of_address[connection]
        self._unproven_count -= 1
        if not of_address:
            del self._unproven[connection.address]


class Buffered(Generic[Connection]):
    """Bytes of requests that are not whole yet, of all connections together. Thread-safe."""

    def __init__(self, bytes_max: int = BUFFERED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._held: dict[Connection, int] = {}
        self._bytes = 0

    def hold(self, connection: Connection, size_bytes: int) -> list[Connection]:
        """Note how much a connection holds now. Returns those to end: who has held some for longest goes first."""
        with self._lock:
            before = self._held.get(connection, 0)
            self._bytes += size_bytes - before
            if size_bytes:
                self._held[connection] = size_bytes
            elif before:
                del self._held[connection]
            ended = []
            while self._bytes > self._bytes_max:
                oldest = next(iter(self._held))
                self._bytes -= self._held.pop(oldest)
                ended.append(oldest)
            return ended


class Memory:
    """Bytes of bodies that are read whole before they are understood, of all requests together. Thread-safe."""

    def __init__(self, bytes_max: int = WHOLE_BODIES_BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._left_bytes = bytes_max

    def take(self, size_bytes: int) -> bool:
        with self._lock:
            if size_bytes > self._left_bytes:
                return False
            self._left_bytes -= size_bytes
            return True

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes += size_bytes


WHOLE_BODIES = Memory()
"""Of this process."""


def reset(sock: socket.socket) -> None:
    """Close a connection so that nothing of it is left: no bytes to be sent, and no state in the kernel."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()
