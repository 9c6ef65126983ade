"""Objects with headers beyond ASCII, which obstore can't read at all: by a signed URL and Python's own HTTP client.

S3 itself tells such metadata as RFC 2047 writes it; a Content-Disposition, and any metadata of some other stores, come
as the bytes that were put. A rare way: a connection for each request, the system's certificates, and no proxy that only
the mount's options name.
"""

from __future__ import annotations

import asyncio
import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    HeadraceError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    VersionChangedError,
)
from headrace.base.model import Arrived, Version
from headrace.origin.metadata import HEADERS, extras_of
from headrace.origin.object_calls import can_match, translated, within

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SIGNED_FOR = timedelta(minutes=15)
TIMEOUT_S = 60.0
PREFIXES = ("x-amz-meta-", "x-goog-meta-", "x-ms-meta-")
_CANONICAL = {name.lower(): name for name in HEADERS}


async def read_odd(
    store: ObjectStore, path: str, what: str, start: int, end: int, *, version: Version, deadline: Deadline
) -> Arrived | None:
    """As Origin.read_range. None: nothing can be signed for such a store."""
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return None
    async with within(deadline, what):
        with translated(what):
            url = await obstore.sign_async(store, "GET", path, SIGNED_FOR)
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if can_match(version.token):
            headers["If-Match"] = version.token
        request = urllib.request.Request(url, headers=headers)
        return await asyncio.to_thread(_read, request, what, start, end, version)


def _read(request: urllib.request.Request, what: str, start: int, end: int, version: Version) -> Arrived:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            if answer.headers.get("Content-Range") != f"bytes {start}-{end - 1}/{version.size_bytes}" or (
                version.token and answer.headers.get("ETag") != version.token
            ):
                raise VersionChangedError(what, why="it is not the version that was asked for")
            body: bytes = answer.read(end - start)
            if len(body) != end - start:
                raise OriginUnavailableError(what, why=f"{len(body)} of {end - start} bytes came")
            return Arrived(body, extras_of(_metadata(answer.headers)))
    except HeadraceError:  # some are OSErrors, too
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise _of_status(error.code, what) from None
    except (OSError, http.client.HTTPException) as error:
        raise OriginUnavailableError(what, why=str(getattr(error, "reason", error))) from None


def _of_status(status: int, what: str) -> HeadraceError:
    """Not chained, and without what the store says: the URL is signed."""
    if status in (404, 412, 416):
        return VersionChangedError(what, why="it is not the version that was asked for")
    if status in (401, 403):
        return OriginDeniedError(what, why=f"status {status}")
    if status in (408, 429) or status >= 500:
        return OriginUnavailableError(what, why=f"status {status}")
    return OriginError(what, why=f"status {status}")


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """As obstore tells it of other objects."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        low = name.lower()
        prefix = next((one for one in PREFIXES if low.startswith(one)), "")
        if prefix:
            found[low.removeprefix(prefix)] = _text(value)
        elif low in _CANONICAL:
            found[_CANONICAL[low]] = _text(value)
    return found


def _text(value: str) -> str:
    """http.client takes bytes for Latin-1, and most who put others than ASCII mean UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
