"""Measure the calls to an origin as callers see them: retries and throttling count in the latency."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    DirectoryNotEmptyError,
    HeadraceError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    PathExistsError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.circuit import Circuit
from headrace.origin.hedge import HedgeOrigin
from headrace.origin.origin import Condition, ListPage, Origin, PutSource
from headrace.origin.wrapper import CALLS, CallName, Result, WrapperOrigin

_ANSWERS = (
    PathNotFoundError,
    PathExistsError,
    NotADirectoryPathError,
    IsADirectoryPathError,
    DirectoryNotEmptyError,
    ConflictError,
    VersionChangedError,
)
"""Answers about a key that refuse a call. They count as no errors: the origin is well, and whoever watches errors would
be alarmed by each program that looks for a file."""


@dataclass(slots=True)
class _Count:
    requests: int = 0
    errors: int = 0
    latency_s_sum: float = 0.0
    latency_s_max: float = 0.0

    def done(self, begun_s: float, *, failed: bool) -> None:
        took_s = monotonic_s() - begun_s
        self.requests += 1
        self.errors += failed
        self.latency_s_sum += took_s
        self.latency_s_max = max(self.latency_s_max, took_s)


class MeasureOrigin(WrapperOrigin):
    """Wraps an Origin, and counts its calls. A cancelled call does not count as a request. `circuit` is the origin's
    circuit; `hedging` is the layer that hedges its reads, if there is one."""

    def __init__(
        self, inner: Origin, circuit: Circuit | None = None, hedging: HedgeOrigin | None = None
    ) -> None:
        super().__init__(inner)
        self._hedging = hedging
        self.circuit = Circuit(inner.url) if circuit is None else circuit
        self._counts = {call: _Count() for call in CALLS}
        self._bytes_read = 0
        self._bytes_written = 0

    def statistics(self) -> dict[str, int | float | str]:
        """Return the circuit's statistics; requests, errors, bytes_read, bytes_written, reads_hedged; and for each of
        head, list (a page), read, put, remove, directory (made or removed): `<call>_requests`, `<call>_errors`,
        `<call>_latency_s_sum`, `<call>_latency_s_max`."""
        statistics: dict[str, int | float | str] = {
            **self.circuit.statistics(),
            "requests": sum(count.requests for count in self._counts.values()),
            "errors": sum(count.errors for count in self._counts.values()),
            "bytes_read": self._bytes_read,
            "bytes_written": self._bytes_written,
            "reads_hedged": 0 if self._hedging is None else self._hedging.reads_hedged,
        }
        for call, count in self._counts.items():
            statistics[f"{call}_requests"] = count.requests
            statistics[f"{call}_errors"] = count.errors
            statistics[f"{call}_latency_s_sum"] = count.latency_s_sum
            statistics[f"{call}_latency_s_max"] = count.latency_s_max
        return statistics

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        begun_s = monotonic_s()
        try:
            result = await call()
        except HeadraceError as error:
            self._counts[name].done(begun_s, failed=not isinstance(error, _ANSWERS))
            raise
        self._counts[name].done(begun_s, failed=False)
        return result

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        arrived = await super().read_range(key, start, end, version=version, deadline=deadline)
        self._bytes_read += len(arrived.body)
        return arrived

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        begun_s = monotonic_s()
        try:
            async for page in self._inner.list_directory(key, deadline=deadline):
                self._counts["list"].done(begun_s, failed=False)
                yield page
                begun_s = monotonic_s()
        except HeadraceError as error:
            self._counts["list"].done(begun_s, failed=not isinstance(error, _ANSWERS))
            raise

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        info = await super().put(key, source, condition=condition, attributes=attributes, deadline=deadline)
        self._bytes_written += info.version.size_bytes
        return info
