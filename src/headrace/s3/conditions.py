"""Evaluate ranges and conditions of requests, without I/O (RFC 9110, 13 and 14; S3's own for copies)."""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

from headrace.http.messages import Request
from headrace.s3.errors import S3Error

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})$")

_CONDITIONS = {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"}


def range_of(header: str, size_bytes: int) -> tuple[int, int] | None:
    """Return start and end (exclusive); None for the whole object, also where S3 ignores the header. Raises
    InvalidRange."""
    match = _RANGE.match(header.replace(" ", ""))
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size_bytes - int(last)), size_bytes
    else:
        start, end = int(first), min(size_bytes, int(last) + 1) if last else size_bytes
        if last and int(last) < int(first):
            return None
    if start >= size_bytes:
        raise S3Error(
            "InvalidRange",
            "The requested range is not satisfiable",
            headers=(("Content-Range", f"bytes */{size_bytes}"),),
        )
    return start, end


def range_to_send(request: Request, size_bytes: int) -> tuple[int, int] | None:
    """Return the range to send as the head decides it; None where a condition or an invalid range may prevent it."""
    if not _CONDITIONS.isdisjoint(request.headers):
        return None
    try:
        return range_of(request.header("range"), size_bytes) or (0, size_bytes)
    except S3Error:
        return None


def check_read(request: Request, etag: str, mtime_ns: int, *, prefix: str = "") -> None:
    """Check the conditions of a read. Raises PreconditionFailed or NotModified. `prefix` is "x-amz-copy-source-" for a
    copy, where each failure is PreconditionFailed."""
    headers = request.headers
    if not prefix and _CONDITIONS.isdisjoint(headers):
        return
    seconds = mtime_ns // 1_000_000_000
    match, unmodified = headers.get(f"{prefix}if-match"), headers.get(f"{prefix}if-unmodified-since")
    if match is not None:
        if not has_tag(match, etag):
            raise _failed("If-Match")
    elif unmodified is not None and (since := _seconds(unmodified)) is not None and seconds > since:
        raise _failed("If-Unmodified-Since")
    none_match, modified = headers.get(f"{prefix}if-none-match"), headers.get(f"{prefix}if-modified-since")
    if none_match is not None:
        if has_tag(none_match, etag):
            raise _failed("If-None-Match") if prefix else _not_modified(etag)
    elif modified is not None and (since := _seconds(modified)) is not None and seconds <= since:
        raise _failed("If-Modified-Since") if prefix else _not_modified(etag)


def check_write(request: Request, etag: str | None) -> None:
    """Check the conditions of a write; `etag` is None without an object. Raises PreconditionFailed, or
    NoSuchKey for If-Match without an object."""
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if match is not None:
        if etag is None:
            raise S3Error("NoSuchKey", "The specified key does not exist.")
        if not has_tag(match, etag):
            raise _failed("If-Match")
    if none_match is not None and etag is not None and has_tag(none_match, etag):
        raise _failed("If-None-Match")


def has_tag(header: str, etag: str) -> bool:
    """Return whether a list of entity tags, or *, has this one. Compares weakly, with or without quotes, as S3 does."""
    tag = _bare(etag)
    return any(item.strip() == "*" or _bare(item) == tag for item in header.split(","))


def _bare(etag: str) -> str:
    return etag.strip().removeprefix("W/").strip('"')


def _seconds(text: str) -> float | None:
    """Return the time of a date in one of HTTP's three forms, all of which are in GMT; None for other texts."""
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _failed(condition: str) -> S3Error:
    return S3Error(
        "PreconditionFailed", f"At least one of the pre-conditions you specified did not hold: {condition}"
    )


def _not_modified(etag: str) -> S3Error:
    return S3Error("NotModified", "Not Modified", headers=(("ETag", etag),))
