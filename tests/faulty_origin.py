"""Wrap an origin that fails by plan, as real ones rarely do and tests need at will."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum

from msgspec import structs

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    ConflictError,
    DeadlineExceededError,
    OriginDeniedError,
    OriginUnavailableError,
    VersionChangedError,
)
from headrace.base.model import Arrived
from headrace.origin.origin import ListPage, Origin
from headrace.origin.wrapper import CALLS, CallName, Result, WrapperOrigin


class PlannedFault(Enum):
    """The faults.

    - UNAVAILABLE: status 503.
    - HALF: the response breaks off half-way (a listing: after its first page).
    - HANG: no response until the deadline.
    - DENIED: status 403.
    - CHANGED: the object was replaced.
    - CONFLICT: a put or remove met another version.
    - LOST: a put, remove or directory call took place, and its response was lost.
    - SHORT: half a body is returned as the whole, which no origin may do: it tests callers that must not trust it.
    """

    UNAVAILABLE = "unavailable"
    HALF = "half"
    HANG = "hang"
    DENIED = "denied"
    CHANGED = "changed"
    CONFLICT = "conflict"
    LOST = "lost"
    SHORT = "short"


class FaultyOrigin(WrapperOrigin):
    """An Origin around an Origin that fails by plan. `asked` has each call so far as (call, key), including failed
    ones."""

    def __init__(self, inner: Origin) -> None:
        super().__init__(inner)
        self._plan: dict[tuple[str, int], PlannedFault | Exception] = {}
        self._always: dict[str, PlannedFault | Exception] = {}
        self.asked: list[tuple[str, str]] = []
        self.hanging = 0

    def fail(self, call: str, fault: PlannedFault | Exception, *, numbers: int | range | None = None) -> None:
        """Plan a fault for a call, one of CALLS. `numbers` selects which of these calls fail, the next one being 0;
        None selects all from now on."""
        assert call in CALLS, call
        if numbers is None:
            self._always[call] = fault
            return
        begun = self.count(call)
        for number in [numbers] if isinstance(numbers, int) else numbers:
            self._plan[call, begun + number] = fault

    def mend(self) -> None:
        """End all planned faults."""
        self._plan.clear()
        self._always.clear()

    def count(self, call: str) -> int:
        return sum(name == call for name, _ in self.asked)

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        fault = self._next(name, key)
        if fault is not None and fault not in (PlannedFault.LOST, PlannedFault.SHORT):
            await self._raise(fault, key, deadline)
        result = await call()
        if fault is PlannedFault.SHORT and isinstance(result, Arrived):
            return structs.replace(result, body=result.body[: len(result.body) // 2])
        if fault is not None:
            await self._raise(fault, key, deadline)
        return result

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        fault = self._next("list", key)
        if fault is not None and fault is not PlannedFault.HALF:
            await self._raise(fault, key, deadline)
        async for page in self._inner.list_directory(key, deadline=deadline):
            yield page
            if fault is not None:
                await self._raise(fault, key, deadline)

    def _next(self, call: str, key: str) -> PlannedFault | Exception | None:
        number = self.count(call)
        self.asked.append((call, key))
        return self._plan.get((call, number), self._always.get(call))

    async def _raise(self, fault: PlannedFault | Exception, key: str, deadline: Deadline) -> None:
        target = f"{self.url}/{key}"
        if isinstance(fault, Exception):
            raise fault
        if fault is PlannedFault.HANG:
            await self._hang(deadline)
            raise DeadlineExceededError(target, why="hangs by plan")
        if fault is PlannedFault.DENIED:
            raise OriginDeniedError(target, why="denied by plan")
        if fault is PlannedFault.CHANGED:
            raise VersionChangedError(target, why="changed by plan")
        if fault is PlannedFault.CONFLICT:
            raise ConflictError(target, why="changed by plan")
        raise OriginUnavailableError(target, why=f"{fault.value} by plan")

    async def _hang(self, deadline: Deadline) -> None:
        self.hanging += 1
        left_s = deadline.left_s()
        try:
            async with asyncio.timeout(None if left_s == float("inf") else left_s):
                await asyncio.Event().wait()
        except TimeoutError:
            return
        finally:
            self.hanging -= 1
