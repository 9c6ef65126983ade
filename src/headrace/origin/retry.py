"""Tries again what may work later: back-off with full jitter, within the deadline, a capped number of times.

Only errors that say `retryable`. A listing is started anew only while none of its pages was handed out: after that
the same names would come twice (its kinds retry single pages themselves).
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from msgspec import structs

from headrace.base.deadline import Deadline
from headrace.base.errors import ConflictError, DeadlineExceededError, HeadraceError, PathNotFoundError
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.origin import Condition, ListPage, Origin, Source

ATTEMPTS_MAX = 6
DELAY_FIRST_S = 0.05
DELAY_MAX_S = 5.0

Result = TypeVar("Result")


class RetryOrigin:
    """An Origin around an Origin. attempts_max: calls in all, the first one included. listings: whether listings are
    tried again too; not for a kind that does so itself, or the attempts would multiply."""

    def __init__(
        self,
        inner: Origin,
        *,
        attempts_max: int = ATTEMPTS_MAX,
        delay_first_s: float = DELAY_FIRST_S,
        listings: bool = True,
    ) -> None:
        self._inner = inner
        self._listings = listings
        self._attempts_max = attempts_max
        self._delay_first_s = delay_first_s

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def writable(self) -> bool:
        return self._inner.writable

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        return await self._again(lambda: self._inner.head(key, deadline=deadline), deadline)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        return await self._again(
            lambda: self._inner.read_range(key, start, end, version=version, deadline=deadline), deadline
        )

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        attempt, begun = 0, False
        while True:
            attempt += 1
            try:
                async for page in self._inner.list_directory(key, deadline=deadline):
                    begun = True
                    yield page
                return
            except HeadraceError as error:
                if begun or not self._listings:
                    raise
                await self._pause_or_raise(error, attempt, deadline)

    async def put(
        self, key: str, source: Source, *, condition: Condition, attributes: Attributes, deadline: Deadline
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

        return await self._again(attempt, deadline)

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

        await self._again(attempt, deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._again(lambda: self._inner.make_directory(key, deadline=deadline), deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._again(lambda: self._inner.remove_directory(key, deadline=deadline), deadline)

    async def close(self) -> None:
        await self._inner.close()

    async def _again(self, call: Callable[[], Awaitable[Result]], deadline: Deadline) -> Result:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await call()
            except HeadraceError as error:
                await self._pause_or_raise(error, attempt, deadline)

    async def _pause_or_raise(self, error: HeadraceError, attempt: int, deadline: Deadline) -> None:
        """Waits before the next attempt; raises the error when there is none to come."""
        if not error.retryable or isinstance(error, DeadlineExceededError) or attempt >= self._attempts_max:
            raise error
        longest_s = min(DELAY_MAX_S, self._delay_first_s * 2.0 ** (attempt - 1))
        delay_s = random.uniform(0.0, longest_s)
        if delay_s >= deadline.left_s():
            raise error
        await asyncio.sleep(delay_s)
