"""The examples of the Amazon S3 API Reference, "Authenticating Requests (AWS Signature Version 4)", each by its
published signature, and what must not pass."""

from __future__ import annotations

import pytest

from headrace.http.messages import Request, parse_head
from headrace.s3 import signature
from headrace.s3.body import Payload
from headrace.s3.errors import S3Error

ACCESS = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SCOPE = f"{ACCESS}/20130524/us-east-1/s3/aws4_request"
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
HOST = "examplebucket.s3.amazonaws.com"

HEADER_EXAMPLES = {
    "get an object": (
        "GET /test.txt",
        {"host": HOST, "range": "bytes=0-9", "x-amz-content-sha256": EMPTY, "x-amz-date": "20130524T000000Z"},
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    ),
    "put an object": (
        "PUT /test$file.text",
        {
            "date": "Fri, 24 May 2013 00:00:00 GMT",
            "host": HOST,
            "x-amz-content-sha256": "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
            "x-amz-date": "20130524T000000Z",
            "x-amz-storage-class": "REDUCED_REDUNDANCY",
        },
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
    ),
    "a subresource": (
        "GET /?lifecycle",
        {"host": HOST, "x-amz-content-sha256": EMPTY, "x-amz-date": "20130524T000000Z"},
        "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
    ),
    "a listing": (
        "GET /?max-keys=2&prefix=J",
        {"host": HOST, "x-amz-content-sha256": EMPTY, "x-amz-date": "20130524T000000Z"},
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
    ),
}
PRESIGNED = (
    "GET /test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3"
    "%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
    "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
)
NOON_S = 1369353600
"""When the examples were signed."""

SIGNED_CHUNKS = (
    {
        "content-encoding": "aws-chunked",
        "content-length": "66824",
        "host": "s3.amazonaws.com",
        "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        "x-amz-date": "20130524T000000Z",
        "x-amz-decoded-content-length": "66560",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    },
    "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
    (
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ),
    "",
)
SIGNED_TRAILERS = (
    {
        "content-encoding": "aws-chunked",
        "host": "s3.amazonaws.com",
        "x-amz-content-sha256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
        "x-amz-date": "20130524T000000Z",
        "x-amz-decoded-content-length": "66560",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
        "x-amz-trailer": "x-amz-checksum-crc32c",
    },
    "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e",
    (
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ),
    "x-amz-checksum-crc32c:sOO8/Q==\r\n"
    "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n",
)


def request_of(first: str, headers: dict[str, str]) -> Request:
    lines = [f"{first} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return parse_head("\r\n".join(lines).encode())


def signed(first: str, headers: dict[str, str], value: str) -> Request:
    names = ";".join(sorted(headers))
    text = f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders={names},Signature={value}"
    return request_of(first, {**headers, "Authorization": text})


def passes(request: Request, secret: str = SECRET) -> bool:
    claim = signature.claim_of(request)
    assert claim is not None
    return signature.matches(request, claim, secret, signature.payload_hash_of(request, claim))


@pytest.mark.parametrize("name", HEADER_EXAMPLES)
def test_signed_by_a_header(name: str) -> None:
    first, headers, value = HEADER_EXAMPLES[name]
    assert passes(signed(first, headers, value))
    assert not passes(signed(first, headers, value), "another secret")
    assert not passes(signed(first.replace("/", "/x", 1), headers, value))
    assert not passes(signed(first, headers | {"host": "other.s3.amazonaws.com"}, value))


def test_presigned_and_for_how_long() -> None:
    request = request_of(PRESIGNED, {"host": HOST})
    claim = signature.claim_of(request)
    assert claim is not None
    assert claim.expires_s == 86400
    assert passes(request)
    assert not passes(request_of(PRESIGNED.replace("Expires=86400", "Expires=86401"), {"host": HOST}))
    signature.check_time(claim, NOON_S + 86400)
    for now_s in (NOON_S + 86401, NOON_S - 901):
        with pytest.raises(S3Error) as raised:
            signature.check_time(claim, now_s)
        assert raised.value.code == "AccessDenied"


def test_a_request_of_another_time() -> None:
    claim = signature.claim_of(signed(*HEADER_EXAMPLES["get an object"]))
    assert claim is not None
    signature.check_time(claim, NOON_S + 900)
    with pytest.raises(S3Error) as raised:
        signature.check_time(claim, NOON_S + 901)
    assert raised.value.code == "RequestTimeTooSkewed"


def read_chunks(example: tuple[dict[str, str], str, tuple[str, ...], str], data: bytes, cut: int) -> bytes:
    """The example's body with this data in its chunks, as it comes in pieces of `cut` bytes."""
    headers, seed, chunks, trailer = example
    request = signed("PUT /examplebucket/chunkObject.txt", headers, seed)
    assert passes(request)
    claim = signature.claim_of(request)
    assert claim is not None
    body = b""
    for part, value in zip((data[:65536], data[65536:], b""), chunks, strict=True):
        body += b"%x;chunk-signature=%s\r\n" % (len(part), value.encode()) + part + (b"\r\n" if part else b"")
    body += trailer.encode() + b"\r\n"
    if "content-length" in headers:
        assert len(body) == int(headers["content-length"])
    pieces = (body[offset : offset + cut] for offset in range(0, len(body), cut))
    word = headers["x-amz-content-sha256"]
    return b"".join(Payload(request, pieces, word, signature.ChunkSigner(claim, SECRET)))


@pytest.mark.parametrize("example", [SIGNED_CHUNKS, SIGNED_TRAILERS], ids=["chunks", "trailers"])
@pytest.mark.parametrize("cut", [100_000, 1000, 7])
def test_signed_chunk_by_chunk(example: tuple[dict[str, str], str, tuple[str, ...], str], cut: int) -> None:
    data = b"a" * 66560
    assert read_chunks(example, data, cut) == data
    for wrong in (b"b" + data[1:], data[:-1] + b"b"):
        with pytest.raises(S3Error) as raised:
            read_chunks(example, wrong, 100_000)
        assert raised.value.code == "SignatureDoesNotMatch"


def test_a_trailer_that_was_changed() -> None:
    headers, seed, chunks, trailer = SIGNED_TRAILERS
    for wrong in (trailer.replace("sOO8", "sOO9"), trailer.replace("d81f", "d81e")):
        with pytest.raises(S3Error) as raised:
            read_chunks((headers, seed, chunks, wrong), b"a" * 66560, 100_000)
        assert raised.value.code == "SignatureDoesNotMatch"


def test_what_is_no_signature_of_ours() -> None:
    headers = HEADER_EXAMPLES["get an object"][1]
    wrong = {
        "AWS AKID:abc": "InvalidRequest",
        "AWS4-HMAC-SHA256 Credential=a": "AuthorizationHeaderMalformed",
        f"AWS4-HMAC-SHA256 Credential={ACCESS}/20130524/x/ec2/aws4_request, SignedHeaders=host, Signature=a": (
            "AuthorizationHeaderMalformed"
        ),
        f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders=x-amz-date, Signature=a": (
            "AuthorizationHeaderMalformed"
        ),
    }
    for text, code in wrong.items():
        with pytest.raises(S3Error) as raised:
            signature.claim_of(request_of("GET /x", {**headers, "Authorization": text}))
        assert raised.value.code == code, text
    assert signature.claim_of(request_of("GET /x", headers)) is None


def test_headers_that_somebody_added() -> None:
    first, headers, value = HEADER_EXAMPLES["get an object"]
    request = signed(first, headers, value)
    claim = signature.claim_of(request)
    assert claim is not None
    signature.check_headers(request, claim)
    request.headers["x-amz-copy-source"] = "/other/secret"
    with pytest.raises(S3Error) as raised:
        signature.check_headers(request, claim)
    assert raised.value.code == "AccessDenied"


def test_a_header_counts_once_in_the_text_that_is_signed() -> None:
    """A head of 64 KiB that named one long header thousands of times made a text of hundreds of MiB."""
    _, headers, value = HEADER_EXAMPLES["get an object"]
    repeated = ";".join(["host", "x-a", *["x-a"] * 1000])
    text = f"AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders={repeated}, Signature={value}"
    with pytest.raises(S3Error) as raised:
        signature.claim_of(request_of("GET /x", {**headers, "x-a": "a" * 1000, "Authorization": text}))
    assert raised.value.code == "AuthorizationHeaderMalformed"


def test_no_cache_keeps_long_texts_of_strangers() -> None:
    _, headers, value = HEADER_EXAMPLES["get an object"]
    kept = signature.seconds_of.cache_info().currsize
    for date, region in (("20130524T000000Z" + "0" * 10_000, "x"), ("20130524T000000Z", "x" * 65)):
        credential = f"{ACCESS}/20130524/{region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature={value}"
        with pytest.raises(S3Error) as raised:
            signature.claim_of(request_of("GET /x", {**headers, "x-amz-date": date, "Authorization": text}))
        assert raised.value.code in ("AccessDenied", "AuthorizationHeaderMalformed")
    assert signature.seconds_of.cache_info().currsize == kept
