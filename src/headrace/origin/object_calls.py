"""Support every call to an obstore store: clients, time limits, errors, versions."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import obstore

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError, HeadraceError, OriginError, OriginUnavailableError
from headrace.base.file_times import stored_ns
from headrace.base.model import Version
from headrace.origin.obstore_errors import FOREIGN, translate

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta
    from obstore.store import ObjectStore

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_PANIC = "RustPanic"
"""The class for a panic in obstore's runtime, for example for a URL of 64 KiB. No module has it."""
_SIZE_MAX = (1 << 63) - 1
"""Largest file that the kernel, other nodes and the index take."""
_NO_LENGTH = re.compile(r"Content-Length Header missing")


class WithHeaders(Protocol):
    def __call__(self, headers: dict[str, str], *, retries: bool) -> ObjectStore: ...


@dataclass(frozen=True, slots=True)
class Stores:
    """Holds the clients of one store.

    - `objects`: without retries, for objects alone.
    - `listings`: with a few retries.
    - `puts`: without retries, with time for a large body.
    - `parts`: the same with retries, because a multipart upload can't be resumed from outside.
    - `conditional`: makes a client like `parts` that also sends certain headers with every request; None where that
      can't work.
    """

    objects: ObjectStore
    listings: ObjectStore
    puts: ObjectStore
    parts: ObjectStore
    conditional: WithHeaders | None = None


async def head_object(store: ObjectStore, path: str) -> GetResult:
    """Return the answer to a HEAD, as obstore's `get`. Some name no size of the object: GCS sends large ones with
    Content-Encoding: gzip without a length. A range of one byte is answered with it. Raise the errors of obstore."""
    try:
        return await obstore.get_async(store, path, options={"head": True})
    except FOREIGN as error:
        if not _NO_LENGTH.search(str(error)):
            raise
    result = await obstore.get_async(store, path, options={"range": (0, 1)})
    await result.bytes_async()  # which leaves the connection to the next request
    return result


def version_of(meta: ObjectMeta) -> Version:
    """Return the version of an object. mtime is in whole seconds, because HEAD (an HTTP date) has no more and must
    equal a listing. Azure quotes the ETag in its header but not in its listings; here it always has quotes."""
    token = meta["e_tag"] or ""
    if token and not token.endswith('"'):
        token = f'"{token}"'
    mtime_ns = (meta["last_modified"] - _EPOCH) // _SECOND * 10**9
    return Version(min(meta["size"], _SIZE_MAX), stored_ns(mtime_ns), token)


def stored_version(meta: ObjectMeta, target: str) -> Version:
    """Return the version of an object in the answer to a HEAD. Raise OriginUnavailableError if the answer names none:
    each object store does, and the page of a proxy before it does not."""
    version = version_of(meta)
    if not version.token and not version.mtime_ns:
        raise OriginUnavailableError(target, why="the answer is not that of an object store")
    return version


def can_match(token: str) -> bool:
    """Return whether If-Match can match this token: it compares strongly, so a weak ETag never matches (RFC 9110,
    13.1.1)."""
    return bool(token) and not token.startswith("W/")


@contextlib.asynccontextmanager
async def within(deadline: Deadline, target: str) -> AsyncIterator[None]:
    """Raise DeadlineExceededError if the body does not complete before the deadline."""
    deadline.check(target)
    try:
        async with asyncio.timeout(deadline.timeout_s()):
            yield
    except TimeoutError as error:
        if isinstance(error, DeadlineExceededError):
            raise
        raise DeadlineExceededError(target, why="no answer before the deadline") from None


@contextlib.contextmanager
def translated(
    target: str, translator: Callable[[BaseException, str], HeadraceError] = translate
) -> Iterator[None]:
    """Translate obstore's exceptions to Headrace's. They are not chained: their text may hold a signed URL."""
    try:
        yield
    except TimeoutError:
        raise
    except FOREIGN as error:
        if isinstance(error, HeadraceError):
            raise
        raise translator(error, target) from None
    except Exception as error:
        if type(error).__name__ != _PANIC:
            raise
        why = "obstore can't send this request: its key or entity tag fits into no request"
        raise OriginError(target, why=why) from None
