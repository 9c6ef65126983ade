"""Build the origin that a URL names, ready for use: measured, throttled, retrying.

Libraries are imported when their scheme is first used: obstore and fsspec are slow to import.
"""

from __future__ import annotations

import os
import re
import urllib.parse

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.missing_extras import needs_extra
from headrace.origin.circuit import Circuit
from headrace.origin.hedge import HedgeOrigin
from headrace.origin.measure import MeasureOrigin
from headrace.origin.object_check import check_origin
from headrace.origin.options import OriginOptions, parse_options, split_common
from headrace.origin.origin import Origin
from headrace.origin.pace import OriginPace
from headrace.origin.retry import RequestedPause, RetryOrigin, no_pause
from headrace.origin.throttle import OriginLimits, ThrottleOrigin

BUCKET_SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
}
FAR_CLUSTER = "headrace"
OBJECT_STORES = ("s3", "gs", "az", "http", "https")
_BUCKET = re.compile(r"[^\s/?#:%\\\[\]]+")
"""Matches bucket names. A name becomes a part of a host's name or of a path, and must add nothing else to a URL."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?")
_SIGNED = re.compile(r"[?&](sig|signature|x-amz-signature|x-goog-signature)=", re.IGNORECASE)
KNOWN = "s3, gs, az (abfs), http, https, headrace, file, memory, synthetic"


def parse_origin(text: str) -> str:
    """Return the URL in its canonical form: one scheme for each kind, no trailing slash, hosts of web servers in lower
    case without the default port, plain paths as file:// URLs (absolute, not percent-encoded). Raise UsageError for an
    invalid URL, or for one that holds a password."""
    if "\0" in text:
        raise UsageError(ascii(text), why="the URL of an origin contains a NUL byte")
    scheme, separator, rest = text.partition("://")
    if not separator:
        if not text:
            raise UsageError("an origin needs a URL or a directory", hint=f"supported schemes are {KNOWN}")
        return f"file://{os.path.abspath(os.path.expanduser(text))}"
    scheme = scheme.lower()
    if scheme == "file":
        return _parse_file(text, rest)
    if scheme in BUCKET_SCHEMES:
        return _parse_bucket(BUCKET_SCHEMES[scheme], rest)
    if scheme in ("http", "https"):
        return _parse_web(scheme, rest)
    if scheme == FAR_CLUSTER:
        from headrace.origin.far_cluster import parse_far_url

        nodes, path = parse_far_url(rest)
        return f"{FAR_CLUSTER}://{','.join(nodes)}{path}"
    if scheme == "memory":
        return f"memory://{rest.strip('/')}"
    if scheme == "synthetic":
        from headrace.origin.synthetic import parse_shape

        parse_shape(text)
        return f"synthetic://{rest}"
    _known_to_fsspec(scheme)
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise UsageError(f"{scheme}://…", why="the URL holds a password", hint="give it as an option")
    return f"{scheme}://{rest.rstrip('/')}"


def build_origin(url: str, options: dict[str, str], pace: OriginPace | None = None) -> MeasureOrigin:
    """Build an origin. pace: a budget of the policy. Raise UsageError for an invalid URL or option. Sends no request;
    `check_origin` does."""
    url = parse_origin(url)
    raw, parsed = _raw(url, options)
    circuit = Circuit(url)
    hedging = HedgeOrigin(raw) if url.partition("://")[0] in OBJECT_STORES else None
    requested_pause: RequestedPause = getattr(raw, "requested_pause_s", no_pause)
    if pace is not None:
        requested_pause = _counted(pace, requested_pause)
    retrying = RetryOrigin(hedging or raw, circuit, requested_pause)
    limits = parsed.limits()
    is_free = limits == OriginLimits() and pace is None
    throttled = retrying if is_free else ThrottleOrigin(retrying, limits, pace)
    return MeasureOrigin(throttled, circuit, hedging)


def _counted(pace: OriginPace, requested_pause: RequestedPause) -> RequestedPause:
    """Return the pause after a failed attempt, and have the budget count the next one."""

    async def pause_s(key: str, error: HeadraceError) -> float:
        pace.note_failure(error)
        return await requested_pause(key, error)

    return pause_s


def _raw(url: str, options: dict[str, str]) -> tuple[Origin, OriginOptions]:
    scheme = url.partition("://")[0]
    if scheme not in (*OBJECT_STORES, FAR_CLUSTER, "file", "memory", "synthetic"):
        return _build_fsspec(url, options)
    parsed = parse_options(url, options)
    if scheme in ("s3", "gs", "az"):
        return _build_bucket(url, scheme, parsed), parsed
    if scheme in ("http", "https"):
        return _build_web(url, parsed), parsed
    if scheme == FAR_CLUSTER:
        from headrace.origin.far_cluster import build_far_cluster

        return build_far_cluster(url, parsed), parsed
    return _build_own(url, scheme, parsed), parsed


def _build_own(url: str, scheme: str, options: OriginOptions) -> Origin:
    rest = url.partition("://")[2]
    if scheme == "file":
        from headrace.origin.local import LocalOrigin

        return LocalOrigin(rest, unsafe_links=options.unsafe_links)
    if scheme == "memory":
        from headrace.origin.memory import MemoryOrigin

        return MemoryOrigin.shared(rest)
    from headrace.origin.synthetic import SyntheticOrigin

    return SyntheticOrigin(url)


def _build_bucket(url: str, scheme: str, options: OriginOptions) -> Origin:
    from headrace.origin import cloud
    from headrace.origin.object_store import ObjectStoreOrigin

    bucket, _, prefix = url.partition("://")[2].partition("/")
    make = {"s3": cloud.s3_stores, "gs": cloud.gcs_stores, "az": cloud.azure_stores}[scheme]
    return ObjectStoreOrigin(url, make(url, bucket, options), prefix)


def _build_web(url: str, options: OriginOptions) -> Origin:
    from headrace.origin import cloud
    from headrace.origin.web import WebOrigin

    parts = urllib.parse.urlsplit(url)
    server = f"{parts.scheme}://{parts.netloc}"
    prefix = urllib.parse.unquote(parts.path).strip("/")
    return WebOrigin(url, cloud.web_stores(url, server, options), prefix)


def _build_fsspec(url: str, options: dict[str, str]) -> tuple[Origin, OriginOptions]:
    from headrace.origin.fsspec_adapter import FsspecOrigin, check_driver, open_file_system

    parsed, rest = split_common(url, options)
    check_driver(url)
    return FsspecOrigin(url, lambda: open_file_system(url, rest), hidden=rest.values()), parsed


def _parse_file(text: str, rest: str) -> str:
    if not rest.startswith("/"):
        raise UsageError(text, why="a file URL needs an absolute path", hint="write file:///directory")
    return f"file://{os.path.normpath(rest)}"


def _parse_bucket(scheme: str, rest: str) -> str:
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket) or (scheme != "az" and "@" in bucket):
        raise UsageError(
            f"{scheme}://…",
            why="the bucket name is missing or invalid",
            hint=f"write {scheme}://bucket/prefix",
        )
    if "@" in bucket:
        raise UsageError(
            f"{scheme}://…",
            why="the URL contains an account",
            hint="write az://container and set the option account_name",
        )
    if _SIGNED.search(rest):
        raise UsageError(
            f"{scheme}://{bucket}/…", why="the URL contains a signature", hint="give credentials as options"
        )
    prefix = prefix.strip("/")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise UsageError(f"{scheme}://{rest}", why="the prefix has an empty, . or .. component")
    return f"{scheme}://{bucket}/{prefix}".rstrip("/")


def _parse_web(scheme: str, rest: str) -> str:
    host, _, path = rest.partition("/")
    if not host or "@" in host:
        raise UsageError(
            f"{scheme}://…", why="the URL has no host, or holds a password", hint="give a token as an option"
        )
    if "?" in rest or "#" in rest:
        raise UsageError(
            f"{scheme}://{host}/…", why="a URL with ? or # names no file or directory of a web server"
        )
    match = _HOST.fullmatch(host.lower())
    if match is None or int(match[2] or 1) > 65535:
        raise UsageError(f"{scheme}://{host}/…", why="the URL has no host, or no port from 0 to 65535")
    port = int(match[2] or _DEFAULT_PORTS[scheme])
    shown_port = "" if port == _DEFAULT_PORTS[scheme] else f":{port}"
    return f"{scheme}://{match[1]}{shown_port}/{path}".rstrip("/")


def _known_to_fsspec(scheme: str) -> None:
    with needs_extra(f"{scheme}:// is none of {KNOWN}, and other schemes need fsspec"):
        from fsspec.registry import known_implementations, registry
    if scheme not in known_implementations and scheme not in registry:
        raise UsageError(f"{scheme}://", why=f"unknown scheme; supported are {KNOWN}, and those of fsspec")


__all__ = ["build_origin", "check_origin", "parse_origin"]
