"""Heads of requests, routes, ranges, conditions, errors and XML: what needs no node."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from headrace.base.errors import error_classes
from headrace.http.errors import HttpFault
from headrace.s3 import xml
from headrace.s3.checksums import ALGORITHMS
from headrace.s3.conditions import check_read, check_write, range_of
from headrace.s3.errors import ERROR_MAP, FAULT_MAP, STATUS, S3Error
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.objects import _requested_range, content_type, copy_source, is_of_bytes
from headrace.s3.routes import route
from tests.unit.s3.conftest import request_of

DOMAINS = ("localhost", "s3.example")


def code_of_route(line: str, **headers: str) -> str:
    with pytest.raises(S3Error) as raised:
        route(request_of(line, **headers), DOMAINS)
    return raised.value.code


def test_every_error_of_ours_has_a_code_of_s3() -> None:
    assert set(ERROR_MAP) == set(error_classes())
    assert set(FAULT_MAP) == set(HttpFault)
    assert {*ERROR_MAP.values(), *FAULT_MAP.values()} <= set(STATUS)


@pytest.mark.parametrize(
    ("line", "host", "wanted"),
    [
        ("GET /", "h", ("list_buckets", b"", b"")),
        ("GET /b", "h", ("list_objects", b"b", b"")),
        ("GET /b/?list-type=2&prefix=x", "h", ("list_objects_v2", b"b", b"")),
        ("HEAD /b", "h", ("head_bucket", b"b", b"")),
        ("POST /b?delete", "h", ("delete_objects", b"b", b"")),
        ("GET /b/a/b%20c%2Bd", "h", ("get_object", b"b", b"a/b c+d")),
        ("GET /b/a+b", "h", ("get_object", b"b", b"a+b")),
        ("PUT /b/k/", "h", ("put_object", b"b", b"k/")),
        ("PUT /b/k?partNumber=1&uploadId=x", "h", ("put_part", b"b", b"k")),
        ("POST /b/k?uploads", "h", ("create_upload", b"b", b"k")),
        ("GET /k/x", "b.localhost:9000", ("get_object", b"b", b"k/x")),
        ("GET /", "b.s3.example", ("list_objects", b"b", b"")),
        ("GET /b/k", "s3.example", ("get_object", b"b", b"k")),
        ("GET /b/k", "[::1]:9000", ("get_object", b"b", b"k")),
        ("GET http://h/b/k?x", "h", ("get_object", b"b", b"k")),
    ],
)
def test_routes(line: str, host: str, wanted: tuple[str, bytes, bytes]) -> None:
    call = route(request_of(line, host), DOMAINS)
    assert (call.operation, call.bucket, call.key) == wanted


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("POST /b/k", "MethodNotAllowed"),
        ("PUT /", "MethodNotAllowed"),
        ("GET /b/k?torrent", "NotImplemented"),
        ("GET /b?acl", "NotImplemented"),
        ("GET /b/k?versionId=3", "NoSuchVersion"),
        ("GET /b/a//b", "InvalidArgument"),
        ("GET /b/../c/k", "InvalidArgument"),
        ("GET /b/a/%2e%2e/k", "InvalidArgument"),
        ("GET /../etc/passwd", "InvalidBucketName"),
        ("GET /b/" + "x" * 256, "KeyTooLongError"),
        ("GET /b/" + "x/" * 600, "KeyTooLongError"),
        ("GET /b/a%00b", "InvalidArgument"),
    ],
)
def test_what_is_no_route(line: str, code: str) -> None:
    assert code_of_route(line) == code


@pytest.mark.parametrize("source", ["../b/k", "/./k", "%2e%2e/k", "b%00/k", "b" * 256 + "/k"])
def test_what_is_no_source_of_a_copy(source: str) -> None:
    with pytest.raises(S3Error) as raised:
        copy_source(request_of("PUT /b/k", x_amz_copy_source=source))
    assert raised.value.code == "InvalidBucketName"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=2-", (2, 10)),
        ("bytes=-3", (7, 10)),
        ("bytes=-30", (0, 10)),
        ("bytes=5-100", (5, 10)),
        ("bytes=0-1,3-4", None),
        ("bytes=4-3", None),
        ("bytes=-", None),
        ("items=1-2", None),
        ("bytes=²-3", None),
        ("bytes=" + "9" * 5000 + "-", None),
        ("", None),
    ],
)
def test_ranges(header: str, wanted: tuple[int, int] | None) -> None:
    assert range_of(header, 10) == wanted


@pytest.mark.parametrize("header", ["bytes=10-", "bytes=10-20", "bytes=-0"])
def test_ranges_beyond_the_end(header: str) -> None:
    with pytest.raises(S3Error) as raised:
        range_of(header, 10)
    assert raised.value.code == "InvalidRange"


@pytest.mark.parametrize(
    ("if_range", "etag", "wanted"),
    [
        ('"abc"', '"abc"', (2, 4)),
        (' "abc" ', '"abc"', (2, 4)),
        ('"x"', '"abc"', None),
        ("*", '"abc"', None),
        ('W/"abc"', 'W/"abc"', None),
        ('"abc"', 'W/"abc"', None),
        ("Sun, 09 Sep 2001 01:46:40 GMT", '"abc"', None),
        ("Sunday, 09-Sep-01 01:46:40 GMT", '"abc"', None),
        ("Sun Sep  9 01:46:40 2001", '"abc"', None),
        ("Sun, 09 Sep 2001 01:46:41 GMT", '"abc"', None),
        ("", '"abc"', None),
    ],
)
def test_if_range_takes_only_what_names_one_version(
    if_range: str, etag: str, wanted: tuple[int, int] | None
) -> None:
    """A second version of the same second, or one with its time set back, must not continue the bytes of the first."""
    request = request_of("GET /b/k", Range="bytes=2-3", If_Range=if_range)
    assert _requested_range(request, ObjectAttributes(10, 1_000_000_000 * 10**9, etag)) == wanted


def read_code(**headers: str) -> str:
    try:
        check_read(request_of("GET /b/k", **headers), '"abc"', 1_000_000_000 * 10**9)
    except S3Error as error:
        return error.code
    return ""


def test_conditions_of_reads() -> None:
    earlier, later = formatdate(999_999_999, usegmt=True), formatdate(1_000_000_000, usegmt=True)
    assert read_code(If_Match='"abc"') == read_code(If_Match="abc") == read_code(If_Match="*") == ""
    assert read_code(If_Match='"x", "abc"') == ""
    assert read_code(If_Match='"x"') == "PreconditionFailed"
    assert read_code(If_None_Match='"abc"') == read_code(If_None_Match='W/"abc"') == "NotModified"
    assert read_code(If_None_Match='"x"') == ""
    assert read_code(If_Modified_Since=later) == "NotModified"
    assert read_code(If_Modified_Since=earlier) == ""
    assert read_code(If_Unmodified_Since=later) == ""
    assert read_code(If_Unmodified_Since=earlier) == "PreconditionFailed"
    assert read_code(If_Modified_Since="nonsense", If_Unmodified_Since="nonsense") == ""
    assert read_code(If_Match='"abc"', If_Unmodified_Since=earlier) == ""
    assert read_code(If_None_Match='"x"', If_Modified_Since=later) == ""


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Auckland"])
@pytest.mark.parametrize(
    "date",
    [
        "Sun, 09 Sep 2001 01:46:40 GMT",
        "Sunday, 09-Sep-01 01:46:40 GMT",
        "Sun Sep  9 01:46:40 2001",
        "Sun, 09 Sep 2001 01:46:40 -0000",
    ],
)
def test_each_form_of_a_date_is_in_gmt(date: str, zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert read_code(If_Modified_Since=date) == "NotModified"
        assert read_code(If_Modified_Since=date.replace(":40", ":39")) == ""
        assert read_code(If_Unmodified_Since=date) == ""
        assert read_code(If_Unmodified_Since=date.replace(":40", ":39")) == "PreconditionFailed"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("etag", "headers", "code"),
    [
        (None, {"If_None_Match": "*"}, ""),
        ('"a"', {"If_None_Match": "*"}, "PreconditionFailed"),
        ('"a"', {"If_None_Match": '"b"'}, ""),
        ('"a"', {"If_None_Match": '"a"'}, "PreconditionFailed"),
        ('"a"', {"If_Match": '"a"'}, ""),
        ('"a"', {"If_Match": '"b"'}, "PreconditionFailed"),
        (None, {"If_Match": '"a"'}, "NoSuchKey"),
        ('"a"', {}, ""),
    ],
)
def test_conditions_of_writes(etag: str | None, headers: dict[str, str], code: str) -> None:
    refusal = ""
    try:
        check_write(request_of("PUT /b/k", **headers), etag)
    except S3Error as error:
        refusal = error.code
    assert refusal == code


def test_xml_in() -> None:
    body = (
        b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>a &amp; b</Key></Object>'
        b"<Object><Key>c</Key><ETag>&quot;e&quot;</ETag></Object><Quiet>true</Quiet></Delete>"
    )
    assert xml.read_delete(body) == ([(b"a & b", ""), (b"c", '"e"')], True)
    parts = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>"
    assert xml.read_complete(parts) == [(1, "x", {})]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Delete/>",
        b"<Other/>",
        b'<!DOCTYPE d [<!ENTITY a "x">]><Delete><Object><Key>&a;</Key></Object></Delete>',
        b"<Delete><Object/></Delete>",
    ],
)
def test_xml_that_is_none(body: bytes) -> None:
    with pytest.raises(S3Error) as raised:
        xml.read_delete(body)
    assert raised.value.code == "MalformedXML"


def test_xml_of_as_many_elements_as_a_completion_needs() -> None:
    names = ("PartNumber", "ETag", "Size", *(f"Checksum{name.upper()}" for name in ALGORITHMS))
    part = "".join(f"<{name}>1</{name}>" for name in names)
    whole = f"<CompleteMultipartUpload>{f'<Part>{part}</Part>' * xml.PARTS_MAX}</CompleteMultipartUpload>"
    assert len(xml.read_complete(whole.encode())) == xml.PARTS_MAX
    with pytest.raises(S3Error, match="elements") as raised:
        xml.read_complete(f"<CompleteMultipartUpload>{'<a/>' * xml.ELEMENTS_MAX}".encode())
    assert raised.value.code == "MalformedXML"


def test_xml_out() -> None:
    assert xml.text("A", "<&>\x01") == "<A>&lt;&amp;&gt;&#x1;</A>"
    assert xml.key_text("Key", b"a b/\xff", url=True) == "<Key>a%20b/%FF</Key>"
    assert xml.iso_time(1_500_000_000_123_456_789) == "2017-07-14T02:40:00.123Z"


def test_types_and_etags() -> None:
    assert content_type(b"a/b.json") == "application/json"
    assert (
        content_type(b"a/b") == content_type(b"x.tar.gz") == content_type(b"a.b/c") == "binary/octet-stream"
    )
    assert is_of_bytes('"d41d8cd98f00b204e9800998ecf8427e"')
    assert is_of_bytes('"d41d8cd98f00b204e9800998ecf8427e-12"')
    assert not is_of_bytes('"18ea4e925cd36792-800000"')
