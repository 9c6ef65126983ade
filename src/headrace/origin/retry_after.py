"""Query the pause that an overloaded store requests.

obstore exposes no headers of a failed response. The store is therefore queried once more through a signed URL and
Python's own HTTP client (as in `non_ascii_headers.py`), at most once a second.
"""

from __future__ import annotations

import asyncio
import email.utils
import http.client
import re
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.origin.pace import is_overload

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LONGEST_S = 30.0
"""Longest pause, in seconds. A wrong header or clock must not keep requests from an origin that has recovered."""
QUERY_INTERVAL_S = 1.0
TIMEOUT_S = 2.0
SIGNED_FOR = timedelta(minutes=5)
_SECONDS = re.compile(r"[0-9]{1,9}")


def parse_retry_after(text: str, now: datetime) -> float:
    """Return the seconds of the header's value, which is a number of them or an HTTP date (RFC 9110, 10.2.3): at most
    LONGEST_S, and 0 for an invalid value or a past date."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return min(LONGEST_S, float(text))
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(LONGEST_S, max(0.0, (date - now).total_seconds()))


class RetryAfter:
    """Queries a store for its requested pause. Only a store that can sign URLs is queried."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._queried_s = float("-inf")
        self._query: asyncio.Future[float] | None = None

    async def requested_s(self, path: str, error: HeadraceError) -> float:
        """Return the requested pause after a call about that object failed; 0 if the store says nothing within
        TIMEOUT_S, or was queried just before. One thread at a time waits for the store."""
        if not is_overload(error):
            return 0.0
        now_s = monotonic_s()
        is_querying = self._query is not None and not self._query.done()
        if (
            is_querying
            or now_s - self._queried_s < QUERY_INTERVAL_S
            or not isinstance(self._store, S3Store | GCSStore | AzureStore)
        ):
            return 0.0
        self._queried_s = now_s
        try:
            async with asyncio.timeout(TIMEOUT_S):
                url = await obstore.sign_async(self._store, "HEAD", path, SIGNED_FOR)
        except Exception:  # noqa: BLE001 - obstore's own; without a signature there is no request
            return 0.0
        request = urllib.request.Request(url, method="HEAD")
        query = self._query = asyncio.get_running_loop().run_in_executor(None, _ask, request)
        # the timeout of a socket limits neither the lookup of a name nor a response that comes byte by byte
        await asyncio.wait({query}, timeout=TIMEOUT_S)
        return query.result() if query.done() else 0.0


def _ask(request: urllib.request.Request) -> float:
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S):
            return 0.0
    except urllib.error.HTTPError as error:
        error.close()
        if error.code not in (429, 503):
            return 0.0
        return parse_retry_after(error.headers.get("Retry-After") or "", datetime.now(UTC))
    except (OSError, http.client.HTTPException):
        return 0.0
