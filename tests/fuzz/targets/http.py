"""HTTP/1.1: heads of requests, and the framing of bodies."""

from __future__ import annotations

from headrace.http.body import Stream, http_chunks
from headrace.http.errors import BadRequestError, HttpFault
from headrace.http.messages import HEAD_END, Request, Response, parse_head, render_head
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text

HEAD_WORDS = [
    b"GET ", b"POST ", b"PUT ", b"HEAD ", b"\r\n", b"\n", b"\r", b": ", b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9",
    b"Host: a\r\n", b"Content-Length: 5\r\n", b"Content-Length: +5\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\n",
    b"Expect: 100-continue\r\n", b"Range: bytes=0-5\r\n", b"%2e%2e", b"%2f", b"%00", b"%", b"?", b"&", b"=", b"#",
    b"http://a/b", b"*", b"\0", b"\x80", b"\t", b" HTTP/1.1\r\n", b"Upgrade: h2c\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]  # fmt: skip
HEADS = [
    b"GET /bucket/key?list-type=2&prefix=a%20b HTTP/1.1\r\nHost: localhost:9000\r\nAccept: */*\r\n\r\n",
    b"PUT /a%2Fb/../c HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nExpect: 100-continue\r\n\r\n",
    b"POST http://proxy/path HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
]


def _head(data: bytes) -> None:
    request = parse_head(data + HEAD_END)
    assert request.path.startswith(b"/")
    assert b"#" not in request.target
    for name, value in request.headers.items():
        assert name == name.lower() and value == value.strip()
        assert "\r" not in name + value and "\n" not in name + value and "\0" not in name + value
    for name, value in request.query:
        assert isinstance(name, str) and isinstance(value, str)
    _answer_stays_one(request)


def _answer_stays_one(request: Request) -> None:
    """Check that what a client sent begins no other line when an answer repeats it."""
    headers = [("X-Told", request.argument(name)) for name in request.arguments]
    head = render_head(Response(200, headers), [], keep_alive=request.keep_alive)
    assert head.count(b"\r\n") == 5 + len(headers) + (not request.keep_alive)


def _body(data: bytes) -> None:
    """However the bytes come in pieces, they are the same body."""
    whole, why = _taken([data])
    step = 1 + len(data) % 7
    pieces, why_pieces = _taken([data[place : place + step] for place in range(0, len(data), step)])
    assert (pieces, why_pieces) == (whole, why)
    assert len(whole) <= len(data)
    if why:
        raise BadRequestError(*why)


def _taken(pieces: list[bytes]) -> tuple[bytes, tuple[HttpFault, str] | None]:
    taken = b""
    try:
        for piece in http_chunks(Stream(iter(pieces))):
            taken += piece
    except BadRequestError as error:
        return taken, (error.fault, error.message)
    return taken, None


FUZZERS = [
    Fuzzer(
        "http-heads",
        "heads of requests to any gateway (http/messages.py)",
        _head,
        (BadRequestError,),
        [head.removesuffix(HEAD_END) for head in HEADS],
        words=HEAD_WORDS,
        mutate=mutate_text,
        input_bytes_max=20_000,
    ),
    Fuzzer(
        "http-bodies",
        "Transfer-Encoding: chunked (http/body.py)",
        _body,
        (BadRequestError,),
        [b"5\r\nhello\r\n0\r\n\r\n", b"a;x=y\r\n0123456789\r\n00\r\nX-Sum: 1\r\n\r\n"],
        words=[b"\r\n", b"0\r\n\r\n", b"ffffffffffffffff", b"40000000", b"-1", b"0x5", b";", b" 5 "],
        mutate=mutate_text,
        input_bytes_max=512,
    ),
]
