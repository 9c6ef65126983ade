"""Throttle the calls to an origin: requests and bytes per second, and concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.base.token_bucket import (
    TokenBucket,
    longest_wait_at_best_s,
    wait_for_turn,
    wait_for_turn_in_thread,
)
from headrace.origin.origin import Body, Condition, ListPage, Origin, PutSource
from headrace.origin.pace import Charges, OriginPace
from headrace.origin.wrapper import CallName, Result, WrapperOrigin

PAID_AT_ONCE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class OriginLimits:
    """Holds the limits of an origin; 0 means no limit."""

    requests_per_s: float = 0.0
    bytes_per_s: float = 0.0
    concurrency_max: int = 0


class _PacedSource:
    """Reserves the parts of a source in the thread that reads them: their bytes, and a request for each. pace: as in
    ThrottleOrigin."""

    def __init__(
        self,
        inner: PutSource,
        buckets: list[TokenBucket],
        pace: OriginPace | None,
        *,
        url: str,
        deadline: Deadline,
    ) -> None:
        self._inner = inner
        self._buckets = buckets
        self._pace = pace
        self._url = url
        self._deadline = deadline

    @property
    def size_bytes(self) -> int:
        return self._inner.size_bytes

    def pread(self, start: int, end: int) -> Body:
        if self._pace is not None:
            self._pace.charge_requests(1)
        reservations = [bucket.reserve(end - start, monotonic_s()) for bucket in self._buckets]
        wait_s = longest_wait_at_best_s(reservations)
        if wait_s > 0 and wait_s >= self._deadline.left_s():
            for reservation in reservations:
                reservation.cancel()
            raise self._late("would delay")
        if not wait_for_turn_in_thread(reservations, timeout_s=self._deadline.left_s()):
            raise self._late("delayed")
        return self._inner.pread(start, end)

    def _late(self, verb: str) -> DeadlineExceededError:
        why = f"the throttle (bytes_limit_per_s, or a budget of the policy) {verb} it past the deadline"
        return DeadlineExceededError(self._url, why=why)


class ThrottleOrigin(WrapperOrigin):
    """Wraps an Origin, and limits its calls. A wait that would pass the deadline is refused at once and takes
    nothing. So does one that passes it because the rate fell. pace: a budget of the policy; None: there is none."""

    def __init__(self, inner: Origin, limits: OriginLimits, pace: OriginPace | None = None) -> None:
        super().__init__(inner)
        self._pace = pace
        self._requests = TokenBucket(limits.requests_per_s, monotonic_s()) if limits.requests_per_s else None
        self._bytes = TokenBucket(limits.bytes_per_s, monotonic_s()) if limits.bytes_per_s else None
        self._slots = asyncio.Semaphore(limits.concurrency_max) if limits.concurrency_max else None

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        return await self._limited(
            end - start,
            deadline,
            lambda: self._inner.read_range(key, start, end, version=version, deadline=deadline),
        )

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """List a directory. Holds no slot, because a listing's consumer may pause long between two pages."""
        await self._pay(0, deadline)
        async for page in self._inner.list_directory(key, deadline=deadline):
            yield page
            await self._pay(0, deadline)

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """Put an object. A large one is paid part by part, as it is read: its bytes, and by a budget of the policy
        its requests."""
        buckets = [] if self._bytes is None else [self._bytes]
        if self._pace is not None and self._pace.bytes is not None:
            buckets.append(self._pace.bytes)
        is_free = not buckets and self._pace is None
        is_paid_at_once = is_free or source.size_bytes <= PAID_AT_ONCE_BYTES
        size_bytes = source.size_bytes if is_paid_at_once else 0
        if not is_paid_at_once:
            source = _PacedSource(source, buckets, self._pace, url=self.url, deadline=deadline)
        return await self._limited(
            size_bytes,
            deadline,
            lambda: self._inner.put(
                key, source, condition=condition, attributes=attributes, deadline=deadline
            ),
        )

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        return await self._limited(0, deadline, call)

    async def _limited(
        self, size_bytes: int, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Wait for a slot, and for the turn of a call of that size, then make it."""
        if self._slots is None:
            await self._pay(size_bytes, deadline)
            return await call()
        try:
            async with asyncio.timeout(deadline.timeout_s()):
                await self._slots.acquire()
        except TimeoutError:
            raise DeadlineExceededError(
                self.url, why="no slot became free before the deadline (concurrency_max)"
            ) from None
        try:
            await self._pay(size_bytes, deadline)
            return await call()
        finally:
            self._slots.release()

    async def _pay(self, size_bytes: int, deadline: Deadline) -> None:
        """Reserve one request of that size, and wait. A call that is refused or cancelled reserves nothing."""
        charges = [(self._requests, 1), (self._bytes, size_bytes)]
        payments: Charges = [(bucket, amount) for bucket, amount in charges if bucket is not None]
        if self._pace is not None:
            payments += self._pace.charges(size_bytes)
        if not payments:
            return  # as on most nodes, for each of thousands of requests a second
        now_s = monotonic_s()
        reservations = [bucket.reserve(amount, now_s) for bucket, amount in payments]
        wait_s = longest_wait_at_best_s(reservations)
        if wait_s > 0 and wait_s >= deadline.left_s():
            for reservation in reservations:
                reservation.cancel()
            raise self._late("would delay")
        try:
            async with asyncio.timeout(deadline.timeout_s()):
                await wait_for_turn(reservations)
        except TimeoutError:  # the rate fell, or did not rise as expected
            raise self._late("delayed") from None

    def _late(self, verb: str) -> DeadlineExceededError:
        why = (
            "the throttle (request_limit_per_s, bytes_limit_per_s, or a budget of the policy) "
            f"{verb} it past the deadline"
        )
        return DeadlineExceededError(self.url, why=why)
