"""Bodies of requests: framing, checksums, and what is wrong with them."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

import pytest

from headrace.http.messages import Request
from headrace.s3.body import Payload
from headrace.s3.checksums import ALGORITHMS, Checksum, make_checksum
from headrace.s3.errors import S3Error

DATA = bytes(range(256)) * 40
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def request_with(**headers: str) -> Request:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request("PUT", b"/b/k", b"/b/k", [], fields, True)


def cut(data: bytes, size: int = 100) -> Iterator[bytes]:
    return (data[offset : offset + size] for offset in range(0, len(data), size))


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def framed(data: bytes, size: int = 1000) -> bytes:
    chunks = [data[offset : offset + size] for offset in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n"


def code_of(payload: Payload) -> str:
    with pytest.raises(S3Error) as raised:
        b"".join(payload)
    return raised.value.code


@pytest.mark.parametrize("name", ALGORITHMS)
def test_checksums_in_headers_and_trailers(name: str) -> None:
    hashed = make_checksum(name)
    hashed.update(DATA)
    right, wrong = base64_of(hashed.digest()), base64_of(bytes(len(hashed.digest())))
    for value, code in ((right, ""), (wrong, "BadDigest")):
        header = Payload(request_with(**{f"x_amz_checksum_{name}": value}), cut(DATA), "", None)
        body = framed(DATA) + f"x-amz-checksum-{name}:{value}\r\n\r\n".encode()
        trailing = request_with(
            x_amz_trailer=f"x-amz-checksum-{name}", x_amz_decoded_content_length=str(len(DATA))
        )
        for payload in (header, Payload(trailing, cut(body), UNSIGNED_TRAILER, None)):
            if code:
                assert code_of(payload) == code
            else:
                assert b"".join(payload) == DATA
                assert payload.checksums() == [Checksum(name, right)]


def test_checksums_are_those_of_the_standards() -> None:
    """The check values of 123456789 (CRC RevEng catalogue)."""
    wanted = {"crc32": 0xCBF43926, "crc32c": 0xE3069283, "crc64nvme": 0xAE8B14860A799888}
    for name, value in wanted.items():
        hashed = make_checksum(name)
        for piece in (b"1234", b"56789"):
            hashed.update(piece)
        assert int.from_bytes(hashed.digest(), "big") == value, name


def test_what_is_said_of_the_body_is_held_against_it() -> None:
    sha256, md5 = hashlib.sha256(DATA).hexdigest(), base64_of(hashlib.md5(DATA).digest())
    assert b"".join(Payload(request_with(content_md5=md5), cut(DATA), sha256, None)) == DATA
    assert code_of(Payload(request_with(content_md5=md5), cut(DATA[1:]), "", None)) == "BadDigest"
    assert code_of(Payload(request_with(), cut(DATA[1:]), sha256, None)) == "XAmzContentSHA256Mismatch"
    declared = request_with(x_amz_decoded_content_length=str(len(DATA) + 1))
    assert code_of(Payload(declared, cut(DATA), "", None)) == "IncompleteBody"
    silent = request_with(x_amz_trailer="x-amz-checksum-crc32")
    assert code_of(Payload(silent, cut(framed(DATA) + b"\r\n"), UNSIGNED_TRAILER, None)) == "InvalidRequest"
    with pytest.raises(S3Error) as raised:
        Payload(request_with(content_md5="nonsense"), cut(DATA), "", None)
    assert raised.value.code == "InvalidDigest"


def test_a_body_that_is_read_whole_has_a_limit() -> None:
    assert Payload(request_with(), cut(DATA), "", None).read_all(len(DATA)) == DATA
    with pytest.raises(S3Error) as raised:
        Payload(request_with(), cut(DATA), "", None).read_all(len(DATA) - 1)
    assert raised.value.code == "EntityTooLarge"
