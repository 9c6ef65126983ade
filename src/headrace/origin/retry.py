"""Retry failed calls until the caller's deadline, with capped exponential pauses and jitter, and one circuit for all
calls.

Only `retryable` errors are retried. A listing that breaks off starts again; names that were already yielded are not
yielded again.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable

from msgspec import structs

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    DeadlineExceededError,
    HeadraceError,
    OriginUnavailableError,
    PathNotFoundError,
)
from headrace.base.model import Attributes, ObjectInfo
from headrace.origin.circuit import Circuit
from headrace.origin.origin import NO_CREDENTIALS, Condition, ListPage, Origin, PutSource
from headrace.origin.wrapper import CallName, Result, WrapperOrigin

PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
PATIENCE_S = 1.5
"""Seconds of patience of callers that retry by themselves, or can answer in another way."""

RequestedPause = Callable[[str, HeadraceError], Awaitable[float]]
"""Returns the seconds for which the origin requested a pause, after a call about a key failed; 0 for none."""


async def no_pause(key: str, error: HeadraceError) -> float:
    return 0.0


class RetryOrigin(WrapperOrigin):
    """Wraps an Origin, and retries its calls. `circuit` is the origin's circuit, shared with callers that wait outside
    (`read_range`)."""

    def __init__(
        self, inner: Origin, circuit: Circuit | None = None, requested_pause: RequestedPause = no_pause
    ) -> None:
        super().__init__(inner)
        self._circuit = Circuit(inner.url) if circuit is None else circuit
        self._requested_pause = requested_pause

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """List a directory. 8 bytes for each yielded name are kept, in case the listing must start again."""
        yielded: array[int] = array("q")
        attempts = Attempts(self._circuit, key, deadline, requested_pause=self._requested_pause)
        while True:
            before = frozenset(yielded)
            await attempts.begin()
            try:
                async for page in self._inner.list_directory(key, deadline=deadline):
                    fresh = _without(page, before)
                    if fresh.objects or fresh.directories:
                        attempts.progressed()
                    yielded.extend(hash(f"{name}/") for name in fresh.directories)
                    yielded.extend(hash(info.key) for info in fresh.objects)
                    yield fresh
            except HeadraceError as error:
                await attempts.failed(error)
            else:
                self._circuit.succeeded()
                return

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """Put an object. An attempt whose answer was lost may have taken place. Before the next attempt, and when
        that meets a conflict, the object's put_id is therefore compared. At an origin that keeps no attributes, a
        lost put whose condition held is reported as a conflict."""
        marked = structs.replace(attributes, put_id=attributes.put_id or secrets.token_hex(8))
        lost = False

        async def attempt() -> ObjectInfo:
            nonlocal lost
            own = await self._find_own(key, marked, deadline) if lost else None
            if own is not None:
                return own
            try:
                return await self._inner.put(
                    key, source, condition=condition, attributes=marked, deadline=deadline
                )
            except ConflictError:
                if not lost:
                    raise
                own = await self._find_own(key, marked, deadline)
                if own is None:
                    raise
                return own
            except HeadraceError as error:
                lost = lost or error.retryable
                raise

        return await self._forward("put", key, deadline, attempt)

    async def _find_own(self, key: str, marked: Attributes, deadline: Deadline) -> ObjectInfo | None:
        """Return the object at the origin if an earlier attempt of this put made it, else None."""
        try:
            info = await self._inner.head(key, deadline=deadline)
        except PathNotFoundError:
            return None
        is_own = info.attributes is not None and info.attributes.put_id == marked.put_id
        return info if is_own else None

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """Remove an object. If it is missing after an attempt whose answer was lost, that attempt removed it."""
        lost = False

        async def attempt() -> None:
            nonlocal lost
            try:
                await self._inner.remove(key, condition=condition, deadline=deadline)
            except PathNotFoundError:
                if not lost:
                    raise
            except HeadraceError as error:
                lost = lost or error.retryable
                raise

        await self._forward("remove", key, deadline, attempt)

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Make the call again until it succeeds. A read doesn't wait while the circuit is open: a reader occupies one
        of the reads in flight; it releases that place and waits without it (`Circuit.admitted`)."""
        waits = name != "read"
        attempts = Attempts(self._circuit, key, deadline, waits=waits, requested_pause=self._requested_pause)
        while True:
            await attempts.begin()
            try:
                result = await call()
            except HeadraceError as error:
                await attempts.failed(error)
            else:
                self._circuit.succeeded()
                return result


class Attempts:
    """Paces the attempts of one call. With `waits` they wait while the circuit is open; otherwise the call fails."""

    def __init__(
        self,
        circuit: Circuit,
        key: str,
        deadline: Deadline,
        *,
        requested_pause: RequestedPause,
        waits: bool = True,
    ) -> None:
        self._circuit = circuit
        self._key = key
        self._deadline = deadline
        self._waits = waits
        self._requested_pause = requested_pause
        self._failures = 0
        self._limit: Deadline | None = None  # set once the call had to wait
        self._began_s = 0.0
        self._cause: HeadraceError | None = None

    async def begin(self) -> None:
        """Prepare an attempt. Raise OriginUnavailableError if the origin stays unavailable for too long."""
        if self._waits and not self._circuit.closed:
            await self._circuit.admitted(self._key, self._limited())
        self._began_s = monotonic_s()

    def progressed(self) -> None:
        """Record that the origin answers, though the call is not complete."""
        self._circuit.succeeded()
        self._failures, self._limit = 0, None

    async def failed(self, error: HeadraceError) -> None:
        """Record a failed attempt and wait before the next one. Raise the error if there is no next one."""
        took_s = monotonic_s() - self._began_s
        if error.why == NO_CREDENTIALS and self._circuit.has_answered:
            error = OriginUnavailableError(error.what, why="its credentials can't be renewed now")
        wait_s = await self._requested_pause(self._key, error)
        self._circuit.failed(self, self._key, error, took_s=took_s, wait_s=wait_s)
        if not error.retryable:
            raise error
        if isinstance(error, DeadlineExceededError):
            raise self._cause or error
        self._cause = error
        longest_s = min(PAUSE_S_MAX, PAUSE_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, 16)
        pause_s = max(random.uniform(longest_s / 2, longest_s), wait_s)
        if pause_s >= self._limited().left_s():
            raise error
        if self._circuit.closed:
            with self._circuit.pausing():
                await asyncio.sleep(pause_s)
        if not self._waits and not self._circuit.closed:
            raise error

    def _limited(self) -> Deadline:
        """Return the deadline of the attempts. The caller's patience starts with the first use."""
        if self._limit is None:
            until_s = min(self._deadline.at_s, monotonic_s() + self._deadline.patience_s)
            self._limit = Deadline(until_s)
        return self._limit


def _without(page: ListPage, yielded: frozenset[int]) -> ListPage:
    if not yielded:
        return page
    return ListPage(
        tuple(info for info in page.objects if hash(info.key) not in yielded),
        tuple(name for name in page.directories if hash(f"{name}/") not in yielded),
    )
