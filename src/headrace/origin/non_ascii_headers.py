"""Read objects with headers beyond ASCII, which obstore can't read at all, through a signed URL and Python's own HTTP
client.

S3 itself encodes such metadata by RFC 2047. A Content-Disposition, and any metadata of some other stores, come as the
bytes that were put. This path is rare: it uses one connection for each request, the system's certificates, and no
proxy from the mount's options.
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
from headrace.origin.cloud import AS_STORED
from headrace.origin.metadata import HEADERS, extras_of
from headrace.origin.object_calls import can_match, translated, within

if TYPE_CHECKING:
    from obstore.store import ObjectStore

SIGNED_FOR = timedelta(minutes=15)
TIMEOUT_S = 60.0
PREFIXES = ("x-amz-meta-", "x-goog-meta-", "x-ms-meta-")
_CANONICAL = {name.lower(): name for name in HEADERS}


async def read_non_ascii(
    store: ObjectStore, path: str, target: str, start: int, end: int, *, version: Version, deadline: Deadline
) -> Arrived | None:
    """Read as Origin.read_range does. Return None if the store supports no signed URLs."""
    if not isinstance(store, S3Store | GCSStore | AzureStore):
        return None
    async with within(deadline, target):
        with translated(target):
            url = await obstore.sign_async(store, "GET", path, SIGNED_FOR)
        headers = {"Range": f"bytes={start}-{end - 1}"}
        if isinstance(store, GCSStore):
            headers |= AS_STORED
        if can_match(version.token):
            headers["If-Match"] = version.token
        request = urllib.request.Request(url, headers=headers)
        return await asyncio.to_thread(_read, request, target, start, end, version)


def _read(request: urllib.request.Request, target: str, start: int, end: int, version: Version) -> Arrived:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            if response.headers.get("Content-Range") != f"bytes {start}-{end - 1}/{version.size_bytes}" or (
                version.token and response.headers.get("ETag") != version.token
            ):
                raise VersionChangedError(target, why="the origin has another version")
            body: bytes = response.read(end - start)
            if len(body) != end - start:
                raise OriginUnavailableError(target, why=f"received {len(body)} of {end - start} bytes")
            return Arrived(body, extras_of(_metadata(response.headers)))
    except HeadraceError:  # some of them are OSErrors as well
        raise
    except urllib.error.HTTPError as error:
        error.close()
        raise _of_status(error.code, target) from None
    except (OSError, http.client.HTTPException) as error:
        raise OriginUnavailableError(target, why=str(getattr(error, "reason", error))) from None


def _of_status(status: int, target: str) -> HeadraceError:
    """Return the error of an HTTP status: not chained, and without the store's text, because the URL is signed."""
    if status in (404, 412, 416):
        return VersionChangedError(target, why="the origin has another version")
    if status in (401, 403):
        return OriginDeniedError(target, why=f"status {status}")
    if status in (408, 429) or status >= 500:
        return OriginUnavailableError(target, why=f"status {status}")
    return OriginError(target, why=f"status {status}")


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata as obstore does for other objects."""
    metadata: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        prefix = next((known for known in PREFIXES if lower.startswith(known)), "")
        if prefix:
            metadata[lower.removeprefix(prefix)] = _text(value)
        elif lower in _CANONICAL:
            metadata[_CANONICAL[lower]] = _text(value)
    return metadata


def _text(value: str) -> str:
    """Decode a header value. http.client decodes bytes as Latin-1, but most programs that put other characters mean
    UTF-8."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
