"""Tries again what may work later, until the caller's deadline: capped exponential pauses with jitter, one circuit
for all calls.

Only errors that say `retryable`. A listing that breaks off is begun anew; what was handed out comes once.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from msgspec import structs

from headrace.base.deadline import Deadline
from headrace.base.errors import ConflictError, DeadlineExceededError, HeadraceError, PathNotFoundError
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.circuit import Circuit
from headrace.origin.origin import Condition, ListPage, Origin, PutSource

PAUSE_S = 0.05
PAUSE_S_MAX = 1.0
PATIENCE_S = 1.5
"""Of callers that try again by themselves, or have something else to answer with."""

Result = TypeVar("Result")
WishedPause = Callable[[str, HeadraceError], Awaitable[float]]
"""After a call about a key failed: for how many seconds the origin asked not to be asked; 0: it did not say."""


async def no_wish(key: str, error: HeadraceError) -> float:
    return 0.0


class RetryOrigin:
    """An Origin around an Origin. circuit: of that origin; shared with those that wait outside (`read_range`)."""

    def __init__(
        self, inner: Origin, circuit: Circuit | None = None, wished_pause: WishedPause = no_wish
    ) -> None:
        self._inner = inner
        self._circuit = Circuit(inner.url) if circuit is None else circuit
        self._wished_pause = wished_pause

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def writable(self) -> bool:
        return self._inner.writable

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        return await self._again(key, lambda: self._inner.head(key, deadline=deadline), deadline)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        """As every Origin's, but that it does not wait while the circuit is open: who reads holds a place among the
        reads in flight, gives it back, and waits without it (`Circuit.admitted`)."""
        return await self._again(
            key,
            lambda: self._inner.read_range(key, start, end, version=version, deadline=deadline),
            deadline,
            waits=False,
        )

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """Of what was handed out 8 bytes a name are kept, for the case that it must begin anew."""
        told: array[int] = array("q")
        attempts = Attempts(self._circuit, key, deadline, wished_pause=self._wished_pause)
        while True:
            before = frozenset(told)
            await attempts.begin()
            try:
                async for page in self._inner.list_directory(key, deadline=deadline):
                    fresh = _without(page, before)
                    if fresh.objects or fresh.directories:
                        attempts.progressed()
                    told.extend(hash(f"{name}/") for name in fresh.directories)
                    told.extend(hash(info.key) for info in fresh.objects)
                    yield fresh
            except HeadraceError as error:
                await attempts.failed(error)
            else:
                self._circuit.succeeded()
                return

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """An attempt whose answer was lost may have taken place: so before the next one, and when that one meets a
        conflict, the object is asked for its put_id. Of an origin that keeps no attributes a lost put whose
        condition was met comes out as a conflict."""
        marked = structs.replace(attributes, put_id=attributes.put_id or secrets.token_hex(8))
        lost = False

        async def attempt() -> ObjectInfo:
            nonlocal lost
            own = await self._own(key, marked, deadline) if lost else None
            if own is not None:
                return own
            try:
                return await self._inner.put(
                    key, source, condition=condition, attributes=marked, deadline=deadline
                )
            except ConflictError:
                if not lost:
                    raise
                found = await self._own(key, marked, deadline)
                if found is None:
                    raise
                return found
            except HeadraceError as error:
                lost = lost or error.retryable
                raise

        return await self._again(key, attempt, deadline)

    async def _own(self, key: str, marked: Attributes, deadline: Deadline) -> ObjectInfo | None:
        """What is there, when an earlier attempt of this put made it."""
        try:
            found = await self._inner.head(key, deadline=deadline)
        except PathNotFoundError:
            return None
        ours = found.attributes is not None and found.attributes.put_id == marked.put_id
        return found if ours else None

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """An object that is gone after an attempt whose answer was lost was removed by that one."""
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

        await self._again(key, attempt, deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._again(key, lambda: self._inner.make_directory(key, deadline=deadline), deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._again(key, lambda: self._inner.remove_directory(key, deadline=deadline), deadline)

    async def close(self) -> None:
        await self._inner.close()

    async def _again(
        self, key: str, call: Callable[[], Awaitable[Result]], deadline: Deadline, *, waits: bool = True
    ) -> Result:
        attempts = Attempts(self._circuit, key, deadline, waits=waits, wished_pause=self._wished_pause)
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
    """Those of one call. waits: also while the circuit is open; else the call fails then."""

    def __init__(
        self,
        circuit: Circuit,
        key: str,
        deadline: Deadline,
        *,
        wished_pause: WishedPause,
        waits: bool = True,
    ) -> None:
        self._circuit = circuit
        self._key = key
        self._deadline = deadline
        self._waits = waits
        self._wished_pause = wished_pause
        self._failures = 0
        self._limit: Deadline | None = None  # once it had to wait
        self._began_s = 0.0
        self._cause: HeadraceError | None = None

    async def begin(self) -> None:
        """Before each one. OriginUnavailableError: the origin is away for too long."""
        if self._waits and not self._circuit.closed:
            await self._circuit.admitted(self._key, self._limited())
        self._began_s = time.monotonic()

    def progressed(self) -> None:
        """The origin answers, though the call is not over."""
        self._circuit.succeeded()
        self._failures, self._limit = 0, None

    async def failed(self, error: HeadraceError) -> None:
        """After one that raised this. Waits before the next; raises the error when there is none to come."""
        took_s = time.monotonic() - self._began_s
        wait_s = await self._wished_pause(self._key, error)
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
        """Until when it is tried again: of now on, the first time that this is asked."""
        if self._limit is None:
            until_s = min(self._deadline.at_s, time.monotonic() + self._deadline.patience_s)
            self._limit = Deadline(until_s)
        return self._limit


def _without(page: ListPage, told: frozenset[int]) -> ListPage:
    if not told:
        return page
    return ListPage(
        tuple(info for info in page.objects if hash(info.key) not in told),
        tuple(name for name in page.directories if hash(f"{name}/") not in told),
    )
