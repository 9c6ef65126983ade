"""S3's clients send requests with their signatures, bodies, forms and policies, XML."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator

from headrace.base.namespace_path import check_name, check_path
from headrace.http.body import Stream
from headrace.http.errors import BadRequestError
from headrace.http.messages import HEAD_END, Request, parse_head
from headrace.s3 import (
    buckets,
    checksums,
    conditions,
    forms,
    object_attributes,
    object_metadata,
    parts,
    posts,
    routes,
    signature,
    xml,
)
from headrace.s3.body import OBJECT_BYTES_MAX, AwsChunks, Payload
from headrace.s3.errors import S3Error
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.mutations import mutate_text, mutate_tree
from tests.fuzz.targets.http import HEAD_WORDS

_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
_CREDENTIAL = "AKID/20261123/us-east-1/s3/aws4_request"
_AUTHORIZATION = (
    f"AWS4-HMAC-SHA256 Credential={_CREDENTIAL}, SignedHeaders=host;x-amz-date, Signature={'a' * 64}"
)
_SHA256 = "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"
_HOST = "Host: bucket.s3.local:9000\r\n"
_HEADS = [
    f"GET /key?response-content-type=a%2Fb&partNumber=2 HTTP/1.1\r\n{_HOST}Authorization: {_AUTHORIZATION}\r\n"
    f"x-amz-date: 20261123T120000Z\r\n{_SHA256}Range: bytes=0-99\r\n",
    "GET /bucket/a/b?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKID%2F20261123%2Fus-east-1%2Fs3%2F"
    "aws4_request&X-Amz-Date=20261123T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=ab"
    " HTTP/1.1\r\nHost: localhost\r\n",
    f"PUT /bucket/a%20b/c HTTP/1.1\r\nHost: localhost\r\nAuthorization: {_AUTHORIZATION}\r\n"
    "x-amz-date: 20261123T120000Z\r\nx-amz-meta-a: b\r\nx-amz-meta-mtime: 17.5\r\nx-amz-tagging: a=b&c=d%20e\r\n"
    f"x-amz-checksum-algorithm: CRC32C\r\nContent-Type: text/plain\r\nContent-Encoding: aws-chunked,gzip\r\n{_SHA256}",
    "GET /bucket?list-type=2&prefix=a%2F&delimiter=%2F&max-keys=5&continuation-token=YWJj&encoding-type=url"
    " HTTP/1.1\r\nHost: localhost\r\n",
    "HEAD /bucket/key HTTP/1.1\r\nHost: localhost\r\nIf-Match: \"a\", W/\"b\"\r\nIf-None-Match: *\r\n"
    "If-Modified-Since: Mon, 23 Nov 2026 12:00:00 GMT\r\nIf-Unmodified-Since: Mon, 23 Nov 2026 12:00:00 GMT\r\n",
    "POST /bucket/key?uploadId=0123 HTTP/1.1\r\nHost: localhost\r\nx-amz-checksum-type: COMPOSITE\r\n"
    "x-amz-mp-object-size: 5\r\nx-amz-checksum-sha256: AAAA\r\n",
]  # fmt: skip
_WORDS = [
    b"/\xff/s3/aws4_request", b"\xff",
    b"Authorization: ", b"Credential=", b"SignedHeaders=", b"Signature=", b"AWS4-HMAC-SHA256", b"aws4_request",
    b"x-amz-date: ", b"X-Amz-Expires=604800", b"X-Amz-Signature=", b"x-amz-content-sha256: ", b"bytes=-5", b"bytes=5-",
    b"uploads", b"uploadId=", b"versionId=null", b"tagging", b"partNumber=10000", b"If-Range: ", b"Date: ",
    b"STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", b"20261123T120000Z", b"99991231T235959Z", b"-0001", b"+0000",
]  # fmt: skip


def _request(data: bytes) -> None:
    request = parse_head(data + HEAD_END)
    for look in (_route, _signature, _reading, _writing, _listing):
        try:
            look(request)
        except S3Error as error:
            assert error.status >= 300
            xml.error_document(error.code, error.message, request.path.decode("utf-8", "replace"), "id")


def _route(request: Request) -> None:
    call = routes.route(request, ("s3.local",))
    if call.bucket:
        check_name(call.bucket)
        check_path(call.path)


def _signature(request: Request) -> None:
    claim = signature.claim_of(request)
    if claim is None:
        return
    with contextlib.suppress(S3Error):
        signature.check_time(claim, 1_795_000_000.0)
    with contextlib.suppress(S3Error):
        signature.check_headers(request, claim)
    word = signature.payload_hash_of(request, claim)
    assert not signature.matches(request, claim, _SECRET, word)  # a forgery, or a defect


def _reading(request: Request) -> None:
    size_bytes, etag, mtime_ns = 1000, '"0123456789abcdef0123456789abcdef-3"', 1_700_000_000_000_000_000
    span = conditions.range_to_send(request, size_bytes)
    assert span is None or 0 <= span[0] < span[1] <= size_bytes
    known = object_attributes.ObjectAttributes(size_bytes, mtime_ns, etag, parts=((3, 400),))
    asked, headers = parts.range_and_headers(request, known, span)
    assert asked is None or 0 <= asked[0] <= asked[1]
    assert all("\n" not in name + value for name, value in headers)
    for prefix in ("", "x-amz-copy-source-"):
        conditions.check_read(request, etag, mtime_ns, prefix=prefix)
    conditions.check_write(request, etag)


def _writing(request: Request) -> None:
    checksums.checksum_request_of(request)
    checksums.check_kind_of_put(request)
    wish = checksums.ChecksumRequest("sha256", checksums.COMPOSITE)
    checksums.check_completed(request, wish, checksums.Checksum("sha256", "AAAA-3", wish.kind), 5)
    given = object_metadata.metadata_of(request)
    assert sum(map(len, given.metadata)) <= object_metadata.METADATA_BYTES_MAX
    for name, value in object_metadata.response_headers(given):
        assert (name + value).isascii() and (name + value).isprintable()
    object_metadata.with_copied(request, given, given)
    try:
        assert abs(object_attributes.parse_mtime(request.header("x-amz-meta-mtime"))) < 1 << 63
    except ValueError:
        pass


def _listing(request: Request) -> None:
    asked = buckets._ListRequest(request)
    assert 0 <= asked.count <= buckets.KEYS_MAX
    xml.key_text("Prefix", asked.prefix, url=asked.url)
    token = request.argument("continuation-token")
    key = buckets._key_of(token)
    assert buckets._key_of(buckets._token_of(key)) == key


def _body(data: bytes) -> None:
    """A head, an empty line, and the bytes."""
    head, _, body = data.partition(HEAD_END)
    request = parse_head(head + HEAD_END)
    claim = signature.SignatureFields(
        "AKID", "20261123", "us-east-1", ("host",), "a" * 64, "20261123T120000Z"
    )
    word = signature.payload_hash_of(request, claim)
    for signer in (None, signature.ChunkSigner(claim, _SECRET)):
        try:
            payload = Payload(request, iter([body[:7], body[7:]]), word, signer)
            taken = payload.read_all(1 << 16)
        except (S3Error, BadRequestError):
            continue
        assert len(taken) == payload.size_bytes <= len(body)
        assert signer is None or not taken or not word.startswith("STREAMING-AWS4")
        payload.checksums()


def _form(data: bytes) -> None:
    kind, _, body = data.partition(b"\n")
    content_type = kind.decode("utf-8", "surrogateescape")
    form = forms.Form(iter([body[place : place + 50] for place in range(0, len(body), 50)]), content_type)
    assert len(form.fields) <= forms.FIELDS_MAX
    request = Request("POST", b"/b", b"/b", [], {"host": "localhost"}, True)
    headers = posts._headers_of(request, form.fields)
    assert all(isinstance(value, str) for value in headers.values())
    answer = posts._respond(request, form.fields, routes.S3Call("put_object", b"b", b"k"), '"e"')
    assert answer.status in (200, 201, 204, 303)
    taken = b"".join(form.file(forms.LengthLimits(most=1000)))
    assert len(taken) <= 1000
    forms.check_signature(form.fields, {"AKID": _SECRET})
    raise AssertionError("a forged form was taken")


def _policy(data: bytes) -> None:
    """Read the policy's document; its fields are fixed."""
    fields = {
        "key": "a/b",
        "policy": base64.b64encode(data).decode(),
        "content-type": "text/plain",
        "acl": "private",
    }
    limits = forms.check_policy(fields, "bucket", 1_790_000_000.0)
    assert limits.least >= 0 and limits.most <= OBJECT_BYTES_MAX


def _xml(data: bytes) -> None:
    for read in (xml.read_delete, xml.read_complete, xml.read_tags):
        try:
            rows = read(data)
        except S3Error as error:
            assert error.code in ("MalformedXML", "NotImplemented")
            xml.error_document(error.code, error.message, "/", "id")
            continue
        text = repr(rows)
        assert len(text) <= 40 * len(data) + 1000
        xml.document("Told", xml.text("Row", text))


def _aws_chunks(data: bytes) -> None:
    """Without a signature: however the bytes come in pieces, they are the same body."""
    taken = [_taken(data, step) for step in (len(data) or 1, 3)]
    assert taken[0] == taken[1]


def _taken(data: bytes, step: int) -> tuple[bytes, str]:
    def pieces() -> Iterator[bytes]:
        yield from (data[place : place + step] for place in range(0, len(data), step))

    taken = b""
    try:
        for piece in AwsChunks(Stream(pieces()), None, has_trailers=True):
            taken += piece
    except (S3Error, BadRequestError) as error:
        return taken, str(error)
    return taken, ""


_FORM = (
    'multipart/form-data; boundary="mark"\n--mark\r\nContent-Disposition: form-data; name="key"\r\n\r\na/${filename}'
    '\r\n--mark\r\nContent-Disposition: form-data; name="policy"\r\n\r\ne30=\r\n--mark\r\nContent-Disposition: '
    'form-data; name="x-amz-algorithm"\r\n\r\nAWS4-HMAC-SHA256\r\n--mark\r\nContent-Disposition: form-data; '
    f'name="x-amz-credential"\r\n\r\n{_CREDENTIAL}\r\n--mark\r\nContent-Disposition: form-data; name="x-amz-date"'
    '\r\n\r\n20261123T120000Z\r\n--mark\r\nContent-Disposition: form-data; name="success_action_redirect"\r\n\r\n'
    'http://a/b?c\r\n--mark\r\nContent-Disposition: form-data; name="tagging"\r\n\r\n<Tagging><TagSet><Tag><Key>a'
    "</Key><Value>b</Value></Tag></TagSet></Tagging>\r\n--mark\r\nContent-Disposition: form-data; "
    'name="file"; filename="x.txt"\r\nContent-Type: text/plain\r\n\r\nhello\r\n--mark--\r\n'
)
_POLICY = {
    "expiration": "2030-01-01T12:00:00.000Z",
    "conditions": [
        {"bucket": "bucket"},
        ["starts-with", "$key", "a/"],
        ["eq", "$acl", "private"],
        ["starts-with", "$content-type", "text/"],
        ["content-length-range", 1, 1000],
    ],
}
_CHUNKED = (
    "PUT /b/k HTTP/1.1\r\nHost: a\r\nx-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER\r\n"
    "x-amz-decoded-content-length: 5\r\n"
    "x-amz-trailer: x-amz-checksum-crc32c\r\ncontent-md5: XUFAKrxLKna5cZ2REBfFkg==\r\n"
    "\r\n5;chunk-signature=" + "a" * 64 + "\r\nhello\r\n0;chunk-signature=" + "b" * 64 + "\r\n"
    "x-amz-checksum-crc32c:mnG7TA==\r\nx-amz-trailer-signature:" + "c" * 64 + "\r\n\r\n"
)
_UNSIGNED = _CHUNKED.replace("AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "UNSIGNED-PAYLOAD-TRAILER")


FUZZERS = [
    Fuzzer(
        "s3-requests",
        "heads of S3 requests: routes, signatures, ranges, conditions, metadata, listings (s3/)",
        _request,
        (BadRequestError,),
        [head.encode() for head in _HEADS],
        words=HEAD_WORDS + _WORDS,
        mutate=mutate_text,
        input_bytes_max=20_000,
    ),
    Fuzzer(
        "s3-bodies",
        "signed and unsigned aws-chunked bodies with their checksums (s3/body.py)",
        _body,
        (BadRequestError, S3Error),
        [_CHUNKED.encode(), _UNSIGNED.encode()],
        words=[b"chunk-signature=", b"x-amz-checksum-sha256: ", b"\r\n", b"0\r\n", b"UNSIGNED-PAYLOAD", *_WORDS],
        mutate=mutate_text,
    ),
    Fuzzer(
        "s3-chunks",
        "aws-chunked framing and trailers (s3/body.py)",
        _aws_chunks,
        (),
        [_UNSIGNED.encode().partition(HEAD_END)[2]],
        words=[b"\r\n", b"0;", b";chunk-signature=", b"ffffffff", b"x-amz-checksum-crc32:", b":"],
        mutate=mutate_text,
        input_bytes_max=512,
    ),
    Fuzzer(
        "s3-forms",
        "browsers' forms: multipart/form-data (s3/forms.py, s3/posts.py)",
        _form,
        (S3Error,),
        [_FORM.encode()],
        words=[b"--mark", b"\r\n", b'name="', b"filename=", b"boundary=", b"Content-Disposition: form-data; ", b"\\"],
        mutate=mutate_text,
    ),
    Fuzzer(
        "s3-policies",
        "policies of forms (s3/forms.py)",
        _policy,
        (S3Error,),
        [json.dumps(_POLICY).encode()],
        words=[b"starts-with", b"eq", b"content-length-range", b"$key", b"2030-01-01T12:00:00+14:00", b"0001-01-01"],
        mutate=mutate_tree(json.loads, lambda tree: json.dumps(tree).encode()),
    ),
    Fuzzer(
        "s3-xml",
        "XML that S3's clients send (s3/xml.py)",
        _xml,
        (),
        [
            b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>a&amp;b</Key><ETag>"e"</ETag>'
            b"</Object><Quiet>true</Quiet></Delete>",
            b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>e</ETag><ChecksumCRC32>AAAA</ChecksumCRC32>"
            b"</Part></CompleteMultipartUpload>",
            b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
        ],
        words=[
            b"<!DOCTYPE a [<!ENTITY b 'c'>]>", b"&b;", b"<?xml version='1.0' encoding='utf-16'?>", b"<![CDATA[", b"]]>",
            b" xmlns:a='" + b"u" * 20_000 + b"' ", b" a:b='' a:c='' a:d=''", b"<a:e/>",
            b"<Object>", b"</Object>", b"<Key>", b"&#x0;", b"&#xd800;", b"<!--", b"-->", b"<?a b?>", b"xmlns:a='b'",
            b"encoding='utf-7'", b"encoding='idna'", b"encoding='hex'", b"<a:b>",
        ],
        mutate=mutate_text,
    ),
]  # fmt: skip
