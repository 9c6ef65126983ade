"""The body of a request is delimited by its length, by chunks, and after "100 Continue"."""

from __future__ import annotations

import socket

import pytest

from headrace.http.body import GATHER_BYTES, BodyFraming, framing_of
from headrace.http.connection import HttpServerConnection
from headrace.http.errors import BadRequestError
from headrace.http.messages import parse_head


def framing(*headers: str) -> BodyFraming:
    lines = "".join(f"{header}\r\n" for header in headers)
    return framing_of(parse_head(f"PUT /b/k HTTP/1.1\r\nHost: h\r\n{lines}\r\n".encode()))


def test_a_request_without_a_body_is_plain() -> None:
    for plain in (framing(), framing("Content-Length: 0")):
        assert plain.is_plain and not plain.has_body and plain.is_whole(bytearray())
    assert not framing("Connection: close").is_plain


def test_a_body_of_a_length_waits_for_its_beginning() -> None:
    short, long = framing("Content-Length: 10"), framing(f"Content-Length: {10 * GATHER_BYTES}")
    assert short.needs_more(bytearray(9)) and not short.needs_more(bytearray(10))
    assert not short.is_whole(bytearray(9)) and short.is_whole(bytearray(10))
    assert long.needs_more(bytearray(GATHER_BYTES - 1)) and not long.needs_more(bytearray(GATHER_BYTES))
    assert not long.is_whole(bytearray(GATHER_BYTES))


def test_chunks_end_with_an_empty_line_and_nothing_follows_them() -> None:
    chunked = framing("Transfer-Encoding: chunked")
    assert chunked.needs_more(bytearray(b"1\r\nx\r\n")) and not chunked.needs_more(bytearray(b"0\r\n\r\n"))
    assert chunked.has_body and not chunked.is_reusable and not chunked.is_whole(bytearray(b"0\r\n\r\n"))


def test_who_waits_for_a_continue_is_not_waited_for() -> None:
    expecting = framing("Content-Length: 10", "Expect: 100-continue")
    assert not expecting.needs_more(bytearray()) and not expecting.is_whole(bytearray(10))
    assert not expecting.is_plain


@pytest.mark.parametrize(
    "header", ["Content-Length: 1234567890123456789", "Transfer-Encoding: gzip, chunked"]
)
def test_a_body_without_a_known_end_is_never_skipped(header: str) -> None:
    """The request before it had none: what it left behind says nothing of this one."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = HttpServerConnection(ours)
        connection.buffer += b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
        assert connection.next_request() is not None and connection.skip_body()
        connection.buffer += f"PUT / HTTP/1.1\r\nHost: h\r\n{header}\r\n\r\n".encode()
        with pytest.raises(BadRequestError):
            connection.next_request()
        assert not connection.skip_body()
