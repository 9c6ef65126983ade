"""Convert HTTP/1.1 without a socket: a request's head to a value, an answer to bytes.

Each head has a new parser of httptools (llhttp). `body.py` decodes bodies.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol
from urllib.parse import unquote_plus, unquote_to_bytes

import httptools
import msgspec

from headrace.http.errors import BadRequestError, HttpFault

HEAD_BYTES_MAX = 64 << 10
"""S3 itself accepts 8 KiB of headers; presigned URLs and percent-encoded keys of 1 KiB are added to that."""
KEPT_CHARACTERS_MAX = 256
"""Longest text of a request that is cached: any client can send requests, so the cache must not grow by them."""
FIELDS_MAX = 1000
"""Most headers, and most parameters of the query. Without it, a head of small ones kept the thread that serves all hits
busy for a tenth of a second. S3's metadata, the longest list that clients send, has hardly more."""
HEAD_END = b"\r\n\r\n"
_NUMBER = re.compile(r"[0-9]{1,18}")
_REASONS = {status.value: status.phrase for status in HTTPStatus}


class Request(msgspec.Struct):
    """Describes a request.

    path: percent-decoded. headers: names in lower case; repeated values are joined with commas. secure: the request
    came over TLS. address: the client's address. certificate: the name in the client's certificate, "" without one.
    takes_chunks: the answer may be chunked. who, call: see `authenticate`.
    """

    method: str
    target: bytes
    path: bytes
    query: list[tuple[str, str]]
    headers: dict[str, str]
    keep_alive: bool
    secure: bool = False
    address: str = ""
    certificate: str = ""
    takes_chunks: bool = True
    who: str = ""
    call: object = None
    arguments: dict[str, str] = {}
    """Parameters of the query, with the first value of each name."""

    def __post_init__(self) -> None:
        if self.query:
            self.arguments = dict(reversed(self.query))

    def authenticate(self, who: str, call: object = None) -> None:
        """Record the credential that the application accepted, and the call that it parsed, so that no later step
        verifies or parses the request again."""
        self.who, self.call = who, call

    def argument(self, name: str, default: str = "") -> str:
        """Return the first value of that name in the query."""
        return self.arguments.get(name, default)

    def has(self, name: str) -> bool:
        return name in self.arguments

    def header(self, name: str, default: str = "") -> str:
        return self.headers.get(name, default)


class SendableContent(Protocol):
    """Gives access to the bytes of a file (`vfs/streams.py`). fd: a descriptor with all bytes; -1 if some may be
    missing."""

    fd: int

    @property
    def is_versioned(self) -> bool:
        """Return whether the answer's head names a version of a file that a program may write in place meanwhile."""

    def check_unchanged(self) -> None:
        """Raise VersionChangedError if the file was written since that version."""

    def wait(self, start: int, end: int) -> int:
        """Wait for these bytes; return a descriptor to read them from."""

    def is_in_memory(self) -> bool:
        """Return whether a read most likely needs no disk."""

    def read_now(self, start: int, end: int) -> bytearray | None:
        """Return these bytes if a read needs no wait. Return None otherwise, or if the file is shorter."""

    def close(self) -> None: ...


class Response(msgspec.Struct):
    """Describes an answer: body, or bytes start..end of content, or pieces, each of which is sent as a chunk once it
    exists. The sender closes content. An error in pieces ends the connection. bodiless: only the head is sent, with
    length_bytes (HEAD). request_id: set if the body has the id of the request."""

    status: int
    headers: list[tuple[str, str]] = []
    body: bytes = b""
    content: SendableContent | None = None
    pieces: Iterator[bytes] | None = None
    start: int = 0
    end: int = 0
    bodiless: bool = False
    length_bytes: int | None = None
    close: bool = False
    request_id: str = ""

    @property
    def body_bytes(self) -> int:
        """Return the length of the body."""
        if self.bodiless:
            return 0
        return len(self.body) if self.content is None else self.end - self.start

    def omit_body(self) -> None:
        """Make this the answer to HEAD: the same head, and nothing after it."""
        if self.length_bytes is None and self.content is None:
            self.length_bytes = len(self.body)
        self.bodiless = True

    def release(self) -> None:
        if self.content is not None:
            self.content.close()
            self.content = None
        self.pieces = None


class _Head:
    """Collects the parser's callbacks."""

    __slots__ = ("count", "headers", "target")

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.count = 0

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count += 1
        if self.count > FIELDS_MAX:
            raise BadRequestError(HttpFault.HEAD_TOO_LARGE, f"there are more than {FIELDS_MAX} headers")
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "surrogateescape").strip()
        if key in self.headers:
            if key == "host":
                raise BadRequestError(HttpFault.NO_REQUEST, "there are two Host headers")
            text = f"{self.headers[key]},{text}"
        self.headers[key] = text


def parse_head(head: bytes) -> Request:
    """Return the request of a head, which includes its empty line. Raise BadRequestError for an invalid one."""
    parts = _Head()
    parser = httptools.HttpRequestParser(parts)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # an offer to speak another protocol, which a server may ignore (RFC 9110, 7.8); the head is complete
    except httptools.HttpParserError as error:
        if isinstance(error.__context__, BadRequestError):
            raise error.__context__ from None
        raise BadRequestError(HttpFault.NO_REQUEST, f"not a request of HTTP/1.1: {error}") from error
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise BadRequestError(HttpFault.NO_REQUEST, f"HTTP/{version} is not supported")
    if b"#" in parts.target:
        raise BadRequestError(HttpFault.NO_REQUEST, "the request's target has a fragment")
    if "host" not in parts.headers and version != "1.0":
        raise BadRequestError(HttpFault.NO_REQUEST, "the Host header is missing")
    path, _, query = parts.target.partition(b"?")
    if not path.startswith(b"/"):
        path = _path_of_url(path)
    return Request(
        parser.get_method().decode("latin-1"),
        parts.target,
        unquote_to_bytes(path) if b"%" in path else path,
        parse_query(query.decode("utf-8", "surrogateescape")) if query else [],
        parts.headers,
        _keeps_alive(parts.headers.get("connection", "").lower(), version),
        takes_chunks=version != "1.0",
    )


def _keeps_alive(connection: str, version: str) -> bool:
    """Return whether the connection stays open. The parser can answer that only while it parses."""
    return "close" not in connection and (version != "1.0" or "keep-alive" in connection)


def _path_of_url(target: bytes) -> bytes:
    """Return the path of an absolute target, as proxies receive them. Raise BadRequestError for other targets, such
    as `*`."""
    scheme, colon, rest = target.partition(b"://")
    if not colon or scheme.lower() not in (b"http", b"https"):
        raise BadRequestError(HttpFault.NO_REQUEST, "the request names no path")
    return b"/" + rest.partition(b"/")[2]


def is_number(text: str) -> bool:
    """Return whether the text is digits that `int` accepts, and not too many."""
    return _NUMBER.fullmatch(text) is not None


def parse_query(text: str) -> list[tuple[str, str]]:
    """Return names and values in the order of the query; a name without `=` has the value "". Raise BadRequestError for
    too many."""
    if text.count("&") >= FIELDS_MAX:
        raise BadRequestError(HttpFault.NO_REQUEST, f"there are more than {FIELDS_MAX} parameters")
    return [_pair_of(part) for part in text.split("&") if part]


def _pair_of(part: str) -> tuple[str, str]:
    if "%" not in part and "+" not in part:
        name, _, value = part.partition("=")
        return name, value
    return _decoded_pair(part) if len(part) <= KEPT_CHARACTERS_MAX else _decoded_pair.__wrapped__(part)


@functools.lru_cache(maxsize=1024)
def _decoded_pair(part: str) -> tuple[str, str]:
    """Return the decoded name and value. Cached, because signed requests and listings repeat the same pairs."""
    name, _, value = part.partition("=")
    return _decoded(name), _decoded(value)


def _decoded(text: str) -> str:
    return unquote_plus(text, errors="surrogateescape") if "%" in text or "+" in text else text


def render_head(response: Response, common_headers: list[tuple[str, str]], *, keep_alive: bool) -> bytes:
    """Return the head of an answer, up to its empty line. common_headers: the headers of every answer of the
    application."""
    length = response.length_bytes
    if length is None:
        length = len(response.body) if response.content is None else response.end - response.start
    lines = [
        f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Unknown')}",
        f"Date: {http_date_now()}",
        "Server: headrace",
    ]
    lines += [f"{name}: {_clean(value)}" for name, value in (*common_headers, *response.headers)]
    if response.pieces is not None:
        lines.append("Transfer-Encoding: chunked")
    elif response.status not in (204, 304):
        lines.append(f"Content-Length: {length}")
    if not keep_alive:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def _clean(value: str) -> str:
    """Replace line breaks in a value that came from a client, so that it can't end its line."""
    return value.replace("\r", " ").replace("\n", " ") if "\n" in value or "\r" in value else value


def http_date(mtime_ns: int) -> str:
    return _date_of(mtime_ns // 1_000_000_000)


@functools.lru_cache(maxsize=4096)
def _date_of(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def _once_a_second(make: Callable[[int], str]) -> Callable[[], str]:
    last = (0, "")

    def now() -> str:
        nonlocal last
        second = int(time.time())
        if last[0] != second:
            last = (second, make(second))
        return last[1]

    return now


http_date_now = _once_a_second(lambda second: formatdate(second, usegmt=True))
