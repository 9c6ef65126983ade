"""Heads of requests and answers, and bodies by HTTP's own framing: what needs no socket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.http.body import Stream, http_chunks
from headrace.http.errors import BadRequestError, HttpFault
from headrace.http.messages import FIELDS_MAX, Response, parse_head, render_head
from headrace.http.sender import sender_refusal

DATA = bytes(range(256)) * 40


def cut(data: bytes, size: int = 100) -> Iterator[bytes]:
    return (data[offset : offset + size] for offset in range(0, len(data), size))


def framed(data: bytes, size: int = 1000) -> bytes:
    chunks = [data[offset : offset + size] for offset in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n"


@pytest.mark.parametrize(
    "head",
    [b"nonsense\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost h\r\n\r\n"],
)
def test_what_is_no_request(head: bytes) -> None:
    with pytest.raises(BadRequestError) as raised:
        parse_head(head)
    assert raised.value.fault == HttpFault.NO_REQUEST


def test_a_head_has_so_many_headers_and_parameters() -> None:
    headers = b"".join(b"a%d: b\r\n" % number for number in range(FIELDS_MAX - 1))
    query = b"&".join([b"a"] * FIELDS_MAX)
    request = parse_head(b"GET /?" + query + b" HTTP/1.1\r\nHost: h\r\n" + headers + b"\r\n")
    assert (len(request.query), len(request.headers)) == (FIELDS_MAX, FIELDS_MAX)
    for head, fault in (
        (b"GET / HTTP/1.1\r\nHost: h\r\nb: c\r\n" + headers + b"\r\n", HttpFault.HEAD_TOO_LARGE),
        (b"GET /?" + query + b"&a HTTP/1.1\r\nHost: h\r\n\r\n", HttpFault.NO_REQUEST),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:\r\n" * FIELDS_MAX + b"\r\n", HttpFault.HEAD_TOO_LARGE),
    ):
        with pytest.raises(BadRequestError) as raised:
            parse_head(head)
        assert raised.value.fault == fault


def test_a_host_that_is_too_long_for_a_name_is_none_of_this_host() -> None:
    request = parse_head(b"GET / HTTP/1.1\r\nHost: " + b"a." * 200 + b"localhost\r\n\r\n")
    assert sender_refusal(request, (), loopback=True)
    assert not sender_refusal(
        parse_head(b"GET / HTTP/1.1\r\nHost: a.localhost:9000\r\n\r\n"), (), loopback=True
    )


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_an_offer_of_another_protocol_is_ignored(method: str) -> None:
    """Java's client and `curl --http2` offer HTTP/2 with the first request of a plain connection."""
    request = parse_head(
        f"{method} /b/k?x=1 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: 3\r\n"
        "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nX-Last: 1\r\n\r\n".encode()
    )
    assert (request.method, request.path, request.argument("x")) == (method, b"/b/k", "1")
    assert (request.header("x-last"), request.keep_alive) == ("1", True)
    with pytest.raises(BadRequestError):
        parse_head(b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n")


def test_repeated_headers_and_names_that_are_not_utf8() -> None:
    request = parse_head(b"GET /b/%ff?a=%fe HTTP/1.1\r\nHost: h\r\nX-One: a\r\nx-one:  b \r\n\r\n")
    assert request.headers["x-one"] == "a,b"
    assert request.path == b"/b/\xff"
    assert request.argument("a").encode("utf-8", "surrogateescape") == b"\xfe"


def test_whether_a_connection_stays() -> None:
    assert parse_head(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n").keep_alive
    assert not parse_head(b"GET /b/k HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").keep_alive
    assert not parse_head(b"GET /b/k HTTP/1.0\r\n\r\n").keep_alive


def test_a_value_does_not_end_its_line() -> None:
    head = render_head(Response(200, [("X", "a\r\nSet-Cookie: b")]), [("Y", "1")], keep_alive=True)
    assert b"\r\nSet-Cookie" not in head
    assert b"\r\nY: 1\r\n" in head


@pytest.mark.parametrize("size", [1, 3, 100_000])
def test_chunks_of_http(size: int) -> None:
    assert b"".join(http_chunks(Stream(cut(framed(DATA) + b"\r\n", size)))) == DATA


class Copied(bytes):
    """Counts the bytes that are cut from a piece."""

    cut_bytes = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        Copied.cut_bytes += len(part)
        return Copied(part)

    def __radd__(self, before: bytes) -> Copied:
        return Copied(b"".join((before, self)))


def test_small_chunks_are_not_moved_in_memory_again_and_again() -> None:
    body = framed(DATA, 1) + b"\r\n"
    Copied.cut_bytes = 0
    assert b"".join(http_chunks(Stream(iter([Copied(body)])))) == DATA
    assert Copied.cut_bytes <= len(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5\r\nabc",
        b"zz\r\nabc\r\n",
        b"-3\r\nabc\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"fffffffff\r\n",
        b"0x3\r\nabc\r\n",
        b"1_0\r\n",
    ],
)
def test_chunks_that_are_none(body: bytes) -> None:
    with pytest.raises(BadRequestError):
        b"".join(http_chunks(Stream(cut(body))))
