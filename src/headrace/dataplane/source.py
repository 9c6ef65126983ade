"""Read bytes of a file at its origin. `cluster_source.py` asks peers first.

A read is a context. Until it ends the body is valid, and the read keeps its place among those in flight. Bodies
therefore don't pile up in memory before a disk that is slower than the network.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from msgspec import structs

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import OriginUnavailableError
from headrace.base.model import Arrived, Entry, Version
from headrace.dataplane.concurrency import Gate
from headrace.dataplane.intent import ReadIntent
from headrace.dataplane.read_queue import NO_TENANT, ReadClass
from headrace.namespace.mounts import Mount


class ByteSource(Protocol):
    """Provide the bytes of one version of one file."""

    def read(self, start: int, end: int, intent: ReadIntent) -> AbstractAsyncContextManager[Arrived]:
        """Read exactly the bytes start..end, with the attributes of the object that came with them. Raise the errors
        of Origin.read_range."""
        ...


class ReadAccounts(Protocol):
    """Says for whom a file is read from its origin, and counts what arrives."""

    def class_of(self, path: bytes) -> ReadClass: ...

    def charge(self, mount: Mount, path: bytes, size_bytes: int, job: str) -> None:
        """Count a read of a file. job: as in ReadIntent."""
        ...

    async def admit(self, mount: Mount, size_bytes: int, job: str) -> None:
        """Wait until background work may read so much. Raise OriginBudgetSpentError."""
        ...

    def has_debt(self, mount: Mount) -> bool:
        """Return whether background work at an origin would wait now."""
        ...


class NoAccounts:
    """Counts nothing, and knows no tenants."""

    def class_of(self, path: bytes) -> ReadClass:
        return NO_TENANT

    def charge(self, mount: Mount, path: bytes, size_bytes: int, job: str) -> None:
        pass

    async def admit(self, mount: Mount, size_bytes: int, job: str) -> None:
        pass

    def has_debt(self, mount: Mount) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class OriginSource:
    """Read one version of an object. timeout_s: limit of a read with its retries and its wait for the origin, without
    the wait at the gate. path: of the file in the namespace."""

    mount: Mount
    key: str
    path: bytes
    version: Version
    gate: Gate
    timeout_s: float
    accounts: ReadAccounts

    @asynccontextmanager
    async def read(self, start: int, end: int, intent: ReadIntent) -> AsyncIterator[Arrived]:
        """Read the bytes, or wait while the origin is unavailable. That wait holds no place at the gate, because other
        origins need it."""
        left_s, circuit = self.timeout_s, self.mount.circuit
        read_class = self.accounts.class_of(self.path)
        while True:
            deadline = Deadline.after(left_s)
            is_probe = await circuit.admitted(self.key, deadline)
            left_s = deadline.left_s()
            async with self.gate.enter(
                end - start,
                background=intent.background,
                read_class=read_class,
                promotion=intent.promotion,
            ):
                if not is_probe and not circuit.closed:
                    continue
                deadline, began_s = Deadline.after(left_s), monotonic_s()
                try:
                    arrived = await self.mount.origin.read_range(
                        self.key, start, end, version=self.version, deadline=deadline
                    )
                except OriginUnavailableError:
                    left_s = deadline.left_s()
                    if circuit.closed or not left_s:
                        raise
                    continue
                self.gate.record(bytes_read=end - start, seconds=monotonic_s() - began_s)
                self.accounts.charge(self.mount, self.path, end - start, intent.job)
                yield structs.replace(arrived, from_origin=True)
                return


class SourceFactory:
    """Build the sources of files. gate: limits reads from origins. segment_bytes: size of the parts that have owners of
    their own; 0 if a file has only one source. accounts: of the reads from origins."""

    segment_bytes = 0

    def __init__(self, gate: Gate, *, timeout_s: float, accounts: ReadAccounts | None = None) -> None:
        self.gate = gate
        self._timeout_s = timeout_s
        self.accounts: ReadAccounts = accounts or NoAccounts()

    def of(self, mount: Mount, key: str, entry: Entry, path: bytes) -> ByteSource:
        """Return the source of a file. key: at the mount's origin; path: in the namespace."""
        return self.origin_of(mount, key, entry, path)

    def statistics(self) -> dict[str, int]:
        """Return the counts of reads from peers."""
        return {}

    def in_flight_max(self) -> float:
        """Return the number of reads in flight that are useful now."""
        return self.gate.window.limit

    @property
    def has_spare(self) -> bool:
        """Return whether a further read in the background delays no other."""
        return self.gate.has_spare

    def origin_of(self, mount: Mount, key: str, entry: Entry, path: bytes) -> OriginSource:
        return OriginSource(mount, key, path, entry.version, self.gate, self._timeout_s, self.accounts)

    def owns(self, path: bytes) -> bool:
        """Return whether this node is an owner of the file's first segment."""
        return True

    def comes_from_origin(self, path: bytes, version: Version, start: int, end: int) -> bool:
        """Return whether a read of all these bytes is in flight at the origin."""
        return False
