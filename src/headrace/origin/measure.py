"""Counts what we ask of an origin, as our callers see it: retries and waits of the throttle are in the latency."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import ObjectInfo, Version
from headrace.origin.origin import Body, ListPage, Origin

CALLS = ("head", "list", "read")


@dataclass(slots=True)
class _Count:
    requests: int = 0
    errors: int = 0
    latency_s_sum: float = 0.0
    latency_s_max: float = 0.0

    def done(self, begun_s: float, *, failed: bool) -> None:
        took_s = time.monotonic() - begun_s
        self.requests += 1
        self.errors += failed
        self.latency_s_sum += took_s
        self.latency_s_max = max(self.latency_s_max, took_s)


class MeasureOrigin:
    """An Origin around an Origin, with statistics(). A cancelled call counts as no request."""

    def __init__(self, inner: Origin) -> None:
        self._inner = inner
        self._counts = {call: _Count() for call in CALLS}
        self._bytes_read = 0

    @property
    def url(self) -> str:
        return self._inner.url

    def statistics(self) -> dict[str, int | float]:
        """requests, errors, bytes_read; and for each of head, list (a page), read: `<call>_requests`,
        `<call>_errors`, `<call>_latency_s_sum`, `<call>_latency_s_max`."""
        found: dict[str, int | float] = {
            "requests": sum(count.requests for count in self._counts.values()),
            "errors": sum(count.errors for count in self._counts.values()),
            "bytes_read": self._bytes_read,
        }
        for call, count in self._counts.items():
            found[f"{call}_requests"] = count.requests
            found[f"{call}_errors"] = count.errors
            found[f"{call}_latency_s_sum"] = count.latency_s_sum
            found[f"{call}_latency_s_max"] = count.latency_s_max
        return found

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        begun_s = time.monotonic()
        try:
            found = await self._inner.head(key, deadline=deadline)
        except HeadraceError:
            self._counts["head"].done(begun_s, failed=True)
            raise
        self._counts["head"].done(begun_s, failed=False)
        return found

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Body:
        begun_s = time.monotonic()
        try:
            body = await self._inner.read_range(key, start, end, version=version, deadline=deadline)
        except HeadraceError:
            self._counts["read"].done(begun_s, failed=True)
            raise
        self._counts["read"].done(begun_s, failed=False)
        self._bytes_read += len(body)
        return body

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        begun_s = time.monotonic()
        try:
            async for page in self._inner.list_directory(key, deadline=deadline):
                self._counts["list"].done(begun_s, failed=False)
                yield page
                begun_s = time.monotonic()
        except HeadraceError:
            self._counts["list"].done(begun_s, failed=True)
            raise

    async def close(self) -> None:
        await self._inner.close()
