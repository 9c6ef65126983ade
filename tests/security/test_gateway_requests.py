"""Requests that mean one thing to a proxy and another to a gateway, or cost more than they weigh (15, 16, 24, 33)."""

from __future__ import annotations

import socket
import time
import tracemalloc

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


LONG = "u" * 100_000
EXPANDING = {
    "attributes of a namespace": f"<Delete xmlns:a='{LONG}' " + " ".join(f"a:b{n}=''" for n in range(2000)),
    "elements of a namespace": f'<Delete xmlns="{LONG}">' + "<a/>" * 50_000,
    "a long prefix": f"<Delete xmlns:{'p' * 80}='{LONG}'>" + "<a/>" * 50_000,
    "white space": f"<Delete xmlns:a {' ' * 80} = {' ' * 80}'{LONG}'>" + "<a/>" * 50_000,
    "many attributes": "<Delete " + " ".join(f"b{n}=''" for n in range(700_000)),
    "many small tags": "<Delete>" + ("<a " + " ".join(f"b{n}=''" for n in range(500)) + "/>") * 1000,
}


@pytest.mark.parametrize("kind", EXPANDING)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_body_takes_little_more_memory_than_its_bytes(kind: str, encoding: str) -> None:
    """A body of 1 MiB took 6.7 GiB and 9 s: each name with a prefix gets the address of its namespace."""
    ending = "</Delete>" if EXPANDING[kind].endswith("/>") else "/>"
    declared = f'<?xml version="1.0" encoding="{encoding}"?>'
    body = f"{declared}{EXPANDING[kind]}{ending}".encode(encoding)
    begun_s = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(S3Error, match="not well-formed"):
            xml.read_delete(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20 and time.process_time() - begun_s < 5


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "cp037", "cp1252"])
def test_no_encoding_hides_what_a_body_declares(encoding: str) -> None:
    """The checks look at bytes. cp1252 is refused for its letter only: its `<` is that of UTF-8."""
    text = f'<?xml version="1.0" encoding="{encoding}"?><Delete><Object><Key>\u00e9</Key></Object></Delete>'
    with pytest.raises(S3Error, match="not well-formed"):
        xml.read_delete(text.encode(encoding))


def test_bodies_of_clients_are_taken() -> None:
    address = f'xmlns="{xml.NAMESPACE}" xmlns:xsi = "http://www.w3.org/2001/XMLSchema-instance"'
    key = "k" * 4000 + "&#10;" * 95 + "xmlns='a'"
    keys, _ = xml.read_delete(
        f"<Delete {address} xsi:type='x'><Object><Key>{key}</Key></Object></Delete>".encode()
    )
    assert keys == [(key.replace("&#10;", "\n").encode(), "")]
    parts = "".join(
        f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;e&quot;</ETag></Part>" for n in range(1, 10_001)
    )
    assert (
        len(
            xml.read_complete(
                f"<CompleteMultipartUpload {address}>{parts}</CompleteMultipartUpload>".encode()
            )
        )
        == 10_000
    )


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
