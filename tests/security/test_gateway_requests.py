"""Requests that mean one thing to a proxy and another to a gateway, or cost more than they weigh (15, 16, 24, 33)."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.http.connection import HttpServerConnection
from headrace.http.errors import BadRequestError
from headrace.http.messages import parse_head
from headrace.s3 import xml
from headrace.s3.errors import S3Error
from headrace.s3.routes import route

BOMB = '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaaaaaaaa">{}]><Delete><Object><Key>&{};</Key></Object></Delete>'


def entities() -> str:
    grow = "".join(f'<!ENTITY {n} "{f"&{p};" * 100}">' for p, n in zip("abcd", "bcde", strict=True))
    return BOMB.format(grow, "e")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
        b"GET /#fragment HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/0.9\r\nHost: a\r\n\r\n",
        b"GET / HTTP/2.0\r\nHost: a\r\n\r\n",
    ],
)
def test_a_head_that_two_readers_understand_differently_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_head(head)


@pytest.mark.parametrize("value", [b"", b" ", b"identity", b"chunked, chunked", b"x"])
def test_a_transfer_encoding_beside_a_length_is_refused(value: bytes) -> None:
    """With an empty one, what followed was taken for the next request."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = HttpServerConnection(ours)
        connection.buffer += (
            b"PUT /b/k HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding:" + value
        )
        connection.buffer += b"\r\n\r\nGET /secret HTTP/1.1\r\nHost: h\r\n\r\n"
        with pytest.raises(BadRequestError):
            connection.next_request()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("declared", [False, True])
def test_entities_grow_in_no_encoding(encoding: str, *, declared: bool) -> None:
    text = (f'<?xml version="1.0" encoding="{encoding}"?>' if declared else "") + entities()
    with pytest.raises(S3Error, match="not well-formed"):
        xml.read_delete(text.encode(encoding))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_list_of_keys_or_malformed(body: bytes) -> None:
    for read in (xml.read_delete, xml.read_complete, xml.read_tags):
        try:
            read(body)
        except S3Error as error:
            assert error.code == "MalformedXML"


@pytest.mark.parametrize("bucket", ["..", ".", "../../..", "a/..", "/etc", "a/b", "n" * 256])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD"])
def test_a_host_names_no_bucket_outside_of_the_tree(method: str, bucket: str) -> None:
    request = parse_head(f"{method} /key HTTP/1.1\r\nHost: {bucket}.localhost\r\n\r\n".encode())
    with pytest.raises(S3Error) as raised:
        route(request, ("localhost",))
    assert raised.value.code == "InvalidBucketName"


@pytest.mark.parametrize("path", [b"/..", b"/.", b"/../key", b"/%2e%2e/key", b"/a%2fb%00/key", b"/a%00"])
def test_a_path_names_no_bucket_outside_of_the_tree(path: bytes) -> None:
    request = parse_head(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
    with pytest.raises(S3Error):
        route(request, ())
