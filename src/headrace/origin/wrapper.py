"""Forward the calls to an origin, so that a wrapper overrides only its own concern."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, TypeVar

from headrace.base.deadline import Deadline
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.origin import Condition, ListPage, Origin, PutSource

Result = TypeVar("Result")
CallName = Literal["head", "list", "read", "put", "remove", "directory"]
CALLS: tuple[CallName, ...] = ("head", "list", "read", "put", "remove", "directory")
"""Kinds of calls; "directory" makes or removes a directory."""


class WrapperOrigin:
    """Wraps an Origin. All calls but `list_directory` pass through `_forward`."""

    def __init__(self, inner: Origin) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def writable(self) -> bool:
        return self._inner.writable

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        """Make the call. A wrapper overrides this for the work that it does with every call."""
        return await call()

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        return await self._forward("head", key, deadline, lambda: self._inner.head(key, deadline=deadline))

    def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        return self._inner.list_directory(key, deadline=deadline)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        return await self._forward(
            "read",
            key,
            deadline,
            lambda: self._inner.read_range(key, start, end, version=version, deadline=deadline),
        )

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        return await self._forward(
            "put",
            key,
            deadline,
            lambda: self._inner.put(
                key, source, condition=condition, attributes=attributes, deadline=deadline
            ),
        )

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        await self._forward(
            "remove", key, deadline, lambda: self._inner.remove(key, condition=condition, deadline=deadline)
        )

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._forward(
            "directory", key, deadline, lambda: self._inner.make_directory(key, deadline=deadline)
        )

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._forward(
            "directory", key, deadline, lambda: self._inner.remove_directory(key, deadline=deadline)
        )

    async def close(self) -> None:
        await self._inner.close()
