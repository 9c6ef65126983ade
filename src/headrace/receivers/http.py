"""Send requests to the services of queues: with a limit for the time and for the size of an answer, and no redirects,
since those would take credentials elsewhere."""

from __future__ import annotations

import asyncio
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.base.decoding import decode_json
from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError
from headrace.base.missing_extras import needs_extra

if TYPE_CHECKING:
    from aiohttp import ClientSession

ANSWER_BYTES_MAX = 32 << 20
"""The largest answer of a queue: 10 messages of SQS, 1 MiB each, of which JSON may double characters."""
CONNECT_LIMIT_S = 10.0
EXTRA = "events"
HOSTS_OF_AWS = ("amazonaws.com", "amazonaws.com.cn", "api.aws")
HOSTS_OF_AZURE = ("windows.net", "usgovcloudapi.net", "chinacloudapi.cn", "azure.net")
HOSTS_OF_GOOGLE = ("googleapis.com",)


class QueueHttp:
    """Sends requests to one service. name: of the queue, for messages; it has no secret. forget: called after a denial,
    so that the next request finds other credentials, if there are some by then."""

    def __init__(self, name: str, forget: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self._forget = forget
        self._session: ClientSession | None = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        limit_s: float,
    ) -> bytes:
        """Send a request and return the body of the answer. Raise OriginDeniedError, OriginUnavailableError or
        OriginError, without any part of the answer but the code of its error. Raise MissingExtraError without
        aiohttp."""
        with needs_extra(self.name, extra=EXTRA):
            import aiohttp
        session = self._open_session()
        try:
            async with asyncio.timeout(limit_s):
                async with session.request(
                    method,
                    url,
                    headers=dict(headers),
                    data=body or None,
                    allow_redirects=False,
                    proxy=_proxy_of(url),
                ) as response:
                    answer = await _read(response.content)
                    status = response.status
        except TimeoutError:
            raise OriginUnavailableError(self.name, why=f"no answer within {limit_s:g} s") from None
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise OriginUnavailableError(self.name, why=f"no connection: {type(error).__name__}") from error
        if answer is None:
            raise OriginError(self.name, why=f"an answer has more than {ANSWER_BYTES_MAX} bytes")
        if status in (401, 403):
            self._forget()
            raise OriginDeniedError(
                self.name, why=f"status {status}{code_of(answer)}", hint="check the credentials of the mount"
            )
        if status in (408, 429) or status >= 500:
            raise OriginUnavailableError(self.name, why=f"status {status}{code_of(answer)}")
        if not 200 <= status < 300:
            raise OriginError(self.name, why=f"status {status}{code_of(answer)}")
        return answer

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open_session(self) -> ClientSession:
        if self._session is None:
            import aiohttp

            limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_LIMIT_S)
            self._session = aiohttp.ClientSession(
                timeout=limits, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
            )
        return self._session


def _proxy_of(url: str) -> str | None:
    """Return the proxy that the environment names for a URL. With trust_env, aiohttp would also send passwords of
    ~/.netrc."""
    from urllib.request import getproxies, proxy_bypass

    parts = urllib.parse.urlsplit(url)
    return None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)


async def _read(content: Any) -> bytes | None:
    """Return the whole body, or None if it is too long."""
    parts, size = [], 0
    async for part in content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            return None
        parts.append(part)
    return b"".join(parts)


_CODE = re.compile(r"[A-Za-z0-9_.]{1,64}")


class ServiceError(msgspec.Struct, frozen=True):
    """An error of a service. AWS has the code at the top, Google below `error`."""

    kind: str = msgspec.field(name="__type", default="")
    error: dict[str, Any] = {}


def code_of(answer: bytes) -> str:
    """Return a comma and the code of an error, if it is a short plain word. Its text may quote what was sent."""
    try:
        error = decode_json(answer[:65536], ServiceError)
    except msgspec.DecodeError:
        return ""
    code = error.kind.rpartition("#")[2] or error.error.get("status", "")
    return f", {code}" if isinstance(code, str) and _CODE.fullmatch(code) else ""


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL."""
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_at(url: str, domains: Sequence[str]) -> bool:
    """Return whether the host of a URL belongs to one of the domains, in any case and with a dot at the end."""
    host = (urllib.parse.urlsplit(url).hostname or "").rstrip(".")
    return f".{host}".endswith(tuple(f".{domain}" for domain in domains))
