"""What every call to an obstore store needs: clients, time limits, errors, versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, HeadraceError
from headrace.base.model import Version
from headrace.origin.obstore_errors import FOREIGN, translate

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


class WithHeaders(Protocol):
    def __call__(self, headers: dict[str, str], *, retries: bool) -> ObjectStore: ...


@dataclass(frozen=True, slots=True)
class Stores:
    """Clients of the same place. objects: without retries. listings: with some. puts: without retries, with time for
    a large body. parts: likewise, with retries, as an upload in parts can't be resumed from outside. conditional:
    makes one like parts that sends some headers, too, with every request; None where that can't work."""

    objects: ObjectStore
    listings: ObjectStore
    puts: ObjectStore
    parts: ObjectStore
    conditional: WithHeaders | None = None


def version_of(meta: ObjectMeta) -> Version:
    """mtime in whole seconds: HEAD (an HTTP date) knows no more, and must equal what a listing says. Azure quotes
    the ETag in its header and not in its listings; here it always has its quotes."""
    token = meta["e_tag"] or ""
    if token and not token.endswith('"'):
        token = f'"{token}"'
    return Version(meta["size"], (meta["last_modified"] - _EPOCH) // _SECOND * 10**9, token)


def can_match(token: str) -> bool:
    """If-Match compares strongly: a weak ETag never matches (RFC 9110, 13.1.1)."""
    return bool(token) and not token.startswith("W/")


@contextlib.asynccontextmanager
async def within(deadline: Deadline, what: str) -> AsyncIterator[None]:
    """DeadlineExceededError when the body isn't done by then."""
    deadline.check(what)
    left_s = deadline.left_s()
    try:
        async with asyncio.timeout(None if left_s == float("inf") else left_s):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineExceededError):
            raise
        raise DeadlineExceededError(what, why="no answer within the time allowed") from None


@contextlib.contextmanager
def translated(
    what: str, translator: Callable[[BaseException, str], HeadraceError] = translate
) -> Iterator[None]:
    """obstore's exceptions as ours. Not chained: their text may hold a signed URL."""
    try:
        yield
    except TimeoutError:
        raise
    except FOREIGN as error:
        if isinstance(error, HeadraceError):
            raise
        raise translator(error, what) from None
