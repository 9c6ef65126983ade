"""Refuses what a web page sends to a gateway that asks nobody for credentials.

A page that somebody looks at on a host can have the browser send requests to the host's loopback. Browsers say so by
`Origin` and `Sec-Fetch-Site`, but for a name that the page's owner lets lead to loopback (DNS rebinding): such requests
bear that name as their Host.
"""

from __future__ import annotations

import functools
import ipaddress

from headrace.http.messages import Request

_OF_PAGES = ("cross-site", "same-site")


def trouble_with_sender(request: Request, domains: tuple[str, ...], *, loopback: bool) -> str:
    """Return why a request is to be refused; "" for one that no page sent. domains: names of the gateway. loopback: it
    listens there only, so that a Host names loopback or one of the domains."""
    headers = request.headers
    if "origin" in headers:
        return "requests of web pages are refused (Origin)"
    if headers.get("sec-fetch-site", "") in _OF_PAGES:
        return "requests of web pages are refused (Sec-Fetch-Site)"
    host = headers.get("host", "")
    if loopback and host and not _is_own(host, domains):
        return f"this host has no name {host[:80]!r}"
    return ""


@functools.lru_cache(maxsize=1024)
def _is_own(host: str, domains: tuple[str, ...]) -> bool:
    name = host.lower()
    if not name.endswith("]"):
        name = name.rpartition(":")[0] or name
    if any(name == own or name.endswith("." + own) for own in ("localhost", *domains)):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
