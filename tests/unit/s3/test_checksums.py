"""Checksums of parts put together, what is asked for and refused, and parts by their number: without a node."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.s3.checksums import (
    ALGORITHMS,
    COMPOSITE,
    FULL_OBJECT,
    Checksum,
    ChecksumRequest,
    check_completed,
    check_kind_of_put,
    checksum_of_parts,
    checksum_request_of,
    make_checksum,
    text_of,
)
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.parts import range_and_headers, range_of_part
from tests.unit.s3.conftest import request_of

DATA = random.Random(17).randbytes(100_000)
PIECES = (DATA[:50_000], DATA[50_000:50_001], DATA[50_001:])
MULTI = ObjectAttributes(110, 5, '"0123456789abcdef0123456789abcdef-3"', parts=((2, 50), (1, 10)))
SINGLE = ObjectAttributes(10, 5, '"0123456789abcdef0123456789abcdef"', checksum=Checksum("crc32", "AAAAAA=="))
BEGIN = "POST /b/k?uploads"


def sum_of(algorithm: str, data: bytes) -> Checksum:
    hashed = make_checksum(algorithm)
    hashed.update(data)
    return Checksum(algorithm, text_of(hashed.digest()))


def code_of(call: Any, *words: Any) -> str:
    with pytest.raises(S3Error) as raised:
        call(*words)
    return raised.value.code


@pytest.mark.parametrize("algorithm", ["crc32", "crc32c", "crc64nvme"])
def test_crcs_of_parts_are_put_together_to_that_of_the_whole(algorithm: str) -> None:
    parts = [(len(piece), sum_of(algorithm, piece)) for piece in PIECES]
    assert checksum_of_parts(ChecksumRequest(algorithm, FULL_OBJECT), parts) == sum_of(algorithm, DATA)


def test_a_composite_checksum_says_of_how_many_parts() -> None:
    parts = [(len(piece), sum_of("sha256", piece)) for piece in PIECES]
    checksum = checksum_of_parts(ChecksumRequest("sha256", COMPOSITE), parts)
    assert checksum.value.endswith("=-3")
    assert checksum.headers()[1] == ("x-amz-checksum-type", COMPOSITE)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_an_upload_in_parts_may_ask_for(algorithm: str) -> None:
    for kind, allowed in (
        (FULL_OBJECT, algorithm.startswith("crc")),
        (COMPOSITE, algorithm != "crc64nvme"),
        ("HALF", False),
    ):
        asked = {"x_amz_checksum_algorithm": algorithm.upper(), "x_amz_checksum_type": kind}
        if allowed:
            assert checksum_request_of(request_of(BEGIN, **asked)) == ChecksumRequest(algorithm, kind)
        else:
            assert code_of(checksum_request_of, request_of(BEGIN, **asked)) == "InvalidRequest"
    assert checksum_request_of(request_of(BEGIN)) == ChecksumRequest()
    assert code_of(checksum_request_of, request_of(BEGIN, x_amz_checksum_type=COMPOSITE)) == "InvalidRequest"
    assert code_of(checksum_request_of, request_of(BEGIN, x_amz_checksum_algorithm="MD5")) == "InvalidRequest"


def test_a_put_in_one_piece_is_of_the_full_object() -> None:
    check_kind_of_put(request_of("PUT /b/k"))
    check_kind_of_put(request_of("PUT /b/k", x_amz_checksum_type=FULL_OBJECT))
    for kind in (COMPOSITE, "other"):
        assert (
            code_of(check_kind_of_put, request_of("PUT /b/k", x_amz_checksum_type=kind)) == "InvalidRequest"
        )


def test_what_a_completion_says_must_be_so() -> None:
    whole, wish = sum_of("crc32", DATA), ChecksumRequest("crc32", FULL_OBJECT)
    good = {
        "x_amz_checksum_crc32": whole.value,
        "x_amz_checksum_type": FULL_OBJECT,
        "x_amz_mp_object_size": "9",
    }
    check_completed(request_of("POST /b/k", **good), wish, whole, 9)
    for changed, code in (
        ({"x_amz_checksum_crc32": "AAAAAA=="}, "BadDigest"),
        ({"x_amz_checksum_sha1": whole.value}, "BadDigest"),
        ({"x_amz_checksum_type": COMPOSITE}, "InvalidRequest"),
        ({"x_amz_mp_object_size": "8"}, "InvalidRequest"),
    ):
        assert code_of(check_completed, request_of("POST /b/k", **(good | changed)), wish, whole, 9) == code
    request = request_of("POST /b/k", x_amz_checksum_crc32=whole.value)
    assert code_of(check_completed, request, ChecksumRequest(), None, 9) == "InvalidRequest"


def test_parts_by_their_number() -> None:
    assert [range_of_part(MULTI, number) for number in (1, 2, 3)] == [(0, 50), (50, 100), (100, 110)]
    assert code_of(range_of_part, MULTI, 4) == "InvalidPartNumber"
    assert range_of_part(SINGLE, 1) == (0, 10)
    assert code_of(range_of_part, SINGLE, 2) == "InvalidPartNumber"
    unknown = ObjectAttributes(110, 5, MULTI.etag)
    assert code_of(range_of_part, unknown, 2) == "NotImplemented"
    assert code_of(range_of_part, unknown, 4) == "InvalidPartNumber"


def test_which_answers_name_a_checksum() -> None:
    def read(line: str, part: tuple[int, int] | None = None, **headers: str) -> Any:
        return range_and_headers(request_of(line, **headers), SINGLE, part)

    wanted = [("x-amz-checksum-crc32", "AAAAAA=="), ("x-amz-checksum-type", FULL_OBJECT)]
    assert read("GET /b/k", x_amz_checksum_mode="ENABLED") == (None, wanted)
    assert read("GET /b/k", (2, 5), x_amz_checksum_mode="ENABLED") == ((2, 5), [])
    assert read("GET /b/k") == (None, [])
    assert read("GET /b/k?partNumber=1", x_amz_checksum_mode="ENABLED") == ((0, 10), wanted)
    third = range_and_headers(request_of("GET /b/k?partNumber=3"), MULTI, None)
    assert third == ((100, 110), [("x-amz-mp-parts-count", "3")])
    for number in ("0", "x", "10001", ""):
        assert code_of(read, f"GET /b/k?partNumber={number}") == "InvalidArgument"
    assert code_of(lambda: read("GET /b/k?partNumber=1", Range="bytes=0-1")) == "InvalidRequest"
