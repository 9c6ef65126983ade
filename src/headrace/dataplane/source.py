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
from headrace.namespace.mounts import Mount
from headrace.origin.circuit import Circuit
from headrace.origin.origin import Origin


class ByteSource(Protocol):
    """Provide the bytes of one version of one file."""

    def read(self, start: int, end: int, intent: ReadIntent) -> AbstractAsyncContextManager[Arrived]:
        """Read exactly the bytes start..end, with the attributes of the object that came with them. Raise the errors
        of Origin.read_range."""
        ...


@dataclass(frozen=True, slots=True)
class OriginSource:
    """Read one version of an object. timeout_s: limit of a read with its retries and its wait for the origin, without
    the wait at the gate."""

    origin: Origin
    circuit: Circuit
    key: str
    version: Version
    gate: Gate
    timeout_s: float

    @asynccontextmanager
    async def read(self, start: int, end: int, intent: ReadIntent) -> AsyncIterator[Arrived]:
        """Read the bytes, or wait while the origin is unavailable. That wait holds no place at the gate, because other
        origins need it."""
        left_s = self.timeout_s
        while True:
            deadline = Deadline.after(left_s)
            is_probe = await self.circuit.admitted(self.key, deadline)
            left_s = deadline.left_s()
            async with self.gate.enter(end - start, background=intent.background):
                if not is_probe and not self.circuit.closed:
                    continue
                deadline, began_s = Deadline.after(left_s), monotonic_s()
                try:
                    arrived = await self.origin.read_range(
                        self.key, start, end, version=self.version, deadline=deadline
                    )
                except OriginUnavailableError:
                    left_s = deadline.left_s()
                    if self.circuit.closed or not left_s:
                        raise
                    continue
                self.gate.window.record(bytes_read=end - start, seconds=monotonic_s() - began_s)
                yield structs.replace(arrived, from_origin=True)
                return


class SourceFactory:
    """Build the sources of files. gate: limits reads from origins. segment_bytes: size of the parts that have owners of
    their own; 0 if a file has only one source."""

    segment_bytes = 0

    def __init__(self, gate: Gate, *, timeout_s: float) -> None:
        self._gate = gate
        self._timeout_s = timeout_s

    def of(self, mount: Mount, key: str, entry: Entry, path: bytes) -> ByteSource:
        """Return the source of a file. key: at the mount's origin; path: in the namespace."""
        return self.origin_of(mount, key, entry)

    def statistics(self) -> dict[str, int]:
        """Return the counts of reads from peers."""
        return {}

    def in_flight_max(self) -> float:
        """Return the number of reads in flight that are useful now."""
        return self._gate.window.limit

    def origin_of(self, mount: Mount, key: str, entry: Entry) -> OriginSource:
        return OriginSource(mount.origin, mount.circuit, key, entry.version, self._gate, self._timeout_s)

    def owns(self, path: bytes) -> bool:
        """Return whether this node is an owner of the file's first segment."""
        return True

    def comes_from_origin(self, path: bytes, version: Version, start: int, end: int) -> bool:
        """Return whether a read of all these bytes is in flight at the origin."""
        return False
