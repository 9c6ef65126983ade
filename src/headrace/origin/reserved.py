"""Hide the directory `.headrace` at the root of a mount, where Headrace stores records of its own.

The root of one mount may be within another one, so `.headrace/seals` is hidden at any depth. Any other file of that
name below the root is the user's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

from headrace.base.deadline import Deadline
from headrace.base.errors import NotSupportedError, PathNotFoundError
from headrace.origin.measure import MeasureOrigin
from headrace.origin.origin import ListPage, Origin
from headrace.origin.wrapper import CallName, Result, WrapperOrigin

RESERVED = ".headrace"
RECORDS = "seals"


class NamespaceOrigin(WrapperOrigin):
    """Wraps an Origin, and hides the reserved names. whole: the wrapped origin."""

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
            yield without_reserved(key, page)


def is_reserved(key: str) -> bool:
    if RESERVED not in key:
        return False
    names = key.split("/")
    return names[0] == RESERVED or (RESERVED, RECORDS) in pairwise(names)


def without_reserved(key: str, page: ListPage) -> ListPage:
    """Return a page of a directory without the reserved names. Most pages are returned as they are."""
    if key == "":
        reserved = RESERVED
    elif key.rpartition("/")[2] == RESERVED:
        reserved = RECORDS
    else:
        return page
    return ListPage(
        tuple(info for info in page.objects if info.key.rpartition("/")[2] != reserved),
        tuple(name for name in page.directories if name != reserved),
    )


def whole_origin(origin: Origin) -> Origin:
    """Return the origin of a mount, with its reserved names."""
    return origin.whole if isinstance(origin, NamespaceOrigin) else origin


def _refusal(name: CallName, target: str) -> PathNotFoundError | NotSupportedError:
    if name in ("head", "read", "remove"):
        return PathNotFoundError(target, why="no such object")
    return NotSupportedError(target, why=f"the name {RESERVED} is reserved for Headrace")
