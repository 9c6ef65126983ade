"""Refuse requests that web pages send to a gateway without credentials.

A page that a user of the host views can make the browser send requests to the host's loopback address. Browsers mark
such requests with `Origin` and `Sec-Fetch-Site`, unless a name of the page's owner resolves to loopback (DNS
rebinding). The Host header of those requests has that name.
"""

from __future__ import annotations

import functools
import ipaddress

from headrace.http.messages import Request

HOST_CHARACTERS_MAX = 253 + len(":65535")
"""Longest name and port. A longer text is not looked up, because any client can send it, and the result is kept."""
_OF_PAGES = ("cross-site", "same-site")


def sender_refusal(request: Request, domains: tuple[str, ...], *, loopback: bool) -> str:
    """Return why a request must be refused, or "" when no page sent it. domains: names of the gateway. loopback: the
    gateway listens on loopback only, so Host must name loopback or one of the domains."""
    headers = request.headers
    if "origin" in headers:
        return "requests of web pages are refused (Origin)"
    if headers.get("sec-fetch-site", "") in _OF_PAGES:
        return "requests of web pages are refused (Sec-Fetch-Site)"
    host = headers.get("host", "")
    if loopback and host and (len(host) > HOST_CHARACTERS_MAX or not _is_own(host, domains)):
        return f"this host has no name {host[:80]!r}"
    return ""


@functools.lru_cache(maxsize=1024)
def _is_own(host: str, domains: tuple[str, ...]) -> bool:
    name = host.lower()
    if not name.endswith("]"):
        name = name.rpartition(":")[0] or name
    if any(name == own_name or name.endswith("." + own_name) for own_name in ("localhost", *domains)):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
