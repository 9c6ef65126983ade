"""Hide the directory `.headrace`, in which Headrace keeps records of its own at an origin, from the namespace.

The name is reserved at any depth, because the root of one mount may lie within another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError, PathNotFoundError
from headrace.origin.measure import MeasureOrigin
from headrace.origin.origin import ListPage, Origin
from headrace.origin.wrapper import CallName, Result, WrapperOrigin

RESERVED = ".headrace"


class NamespaceOrigin(WrapperOrigin):
    """An Origin without what is reserved. whole: the same origin with it."""

    def __init__(self, whole: MeasureOrigin) -> None:
        super().__init__(whole)
        self.whole = whole

    def statistics(self) -> dict[str, int | float | str]:
        return self.whole.statistics()

    async def _forward(
        self, name: CallName, key: str, deadline: Deadline, call: Callable[[], Awaitable[Result]]
    ) -> Result:
        if is_reserved(key):
            raise _refusal(name, f"{self.url}/{key}")
        return await call()

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        if is_reserved(key):
            return
        async for page in self._inner.list_directory(key, deadline=deadline):
            yield without_reserved(page)


def is_reserved(key: str) -> bool:
    return RESERVED in key and RESERVED in key.split("/")


def without_reserved(page: ListPage) -> ListPage:
    """Return a page without the reserved name. Most pages are returned as they are."""
    objects, directories = page.objects, page.directories
    if RESERVED in directories:
        directories = tuple(name for name in directories if name != RESERVED)
    if any(info.key.endswith(RESERVED) and is_reserved(info.key) for info in objects):
        objects = tuple(info for info in objects if not is_reserved(info.key))
    return (
        page
        if directories is page.directories and objects is page.objects
        else ListPage(objects, directories)
    )


def whole_origin(origin: Origin) -> Origin:
    """Return an origin of a mount with what is reserved in it."""
    return origin.whole if isinstance(origin, NamespaceOrigin) else origin


def _refusal(name: CallName, target: str) -> PathNotFoundError | NotSupportedError:
    if name in ("head", "read", "remove"):
        return PathNotFoundError(target, why="no such object")
    return NotSupportedError(target, why=f"the name {RESERVED} is reserved for Headrace")
