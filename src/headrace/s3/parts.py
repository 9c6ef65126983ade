"""Find the ranges of an object's parts by number, and the checksum that a response may name, without I/O.

The sizes of parts are known of an object that a gateway completed, as long as its file or its cache file is on this
node. Numbers count from 1 in the order of the parts, whatever numbers they were sent with.
"""

from __future__ import annotations

import re

from headrace.http.messages import Request, is_number
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.uploads import NUMBER_MAX

_OF_PARTS = re.compile(r'"?[0-9a-f]{32}-([0-9]{1,5})"?')
Range = tuple[int, int]


def count_of(attributes: ObjectAttributes) -> int:
    """Return the number of an object's parts; 0 for an object that was put in one piece. S3's ETag contains it."""
    if attributes.parts:
        return sum(count for count, _ in attributes.parts)
    match = _OF_PARTS.fullmatch(attributes.etag)
    return int(match[1]) if match else 0


def range_of_part(attributes: ObjectAttributes, number: int) -> Range:
    """Return the range of a part. Raises InvalidPartNumber or NotImplemented where the sizes of the parts are not
    known."""
    count = count_of(attributes)
    if number > max(1, count):
        raise S3Error("InvalidPartNumber", "The requested partnumber is not satisfiable")
    if count <= 1:
        return 0, attributes.size_bytes
    if not attributes.parts:
        raise S3Error(
            "NotImplemented", "the sizes of this object's parts are not known here: use a Range header"
        )
    start = 0
    for many, size_bytes in attributes.parts:
        if number <= many:
            return start + (number - 1) * size_bytes, start + number * size_bytes
        start, number = start + many * size_bytes, number - many
    raise AssertionError


def range_and_headers(
    request: Request, attributes: ObjectAttributes, part: Range | None
) -> tuple[Range | None, list[tuple[str, str]]]:
    """Return the range to send, and the headers that describe it. `part` is the range of the Range header. A checksum
    covers the whole object, so a response with less of it names none."""
    headers: list[tuple[str, str]] = []
    if request.has("partNumber"):
        number = request.argument("partNumber")
        if not is_number(number) or not 1 <= int(number) <= NUMBER_MAX:
            raise S3Error("InvalidArgument", f"partNumber must be an integer from 1 to {NUMBER_MAX}")
        if "range" in request.headers:
            raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
        part = range_of_part(attributes, int(number))
        if count := count_of(attributes):
            headers.append(("x-amz-mp-parts-count", str(count)))
        if part == (0, 0):
            part = None
    wants_checksum = request.header("x-amz-checksum-mode").upper() == "ENABLED"
    if wants_checksum and attributes.checksum is not None and part in (None, (0, attributes.size_bytes)):
        headers += attributes.checksum.headers()
    return part, headers
