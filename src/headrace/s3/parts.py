"""Parts of an object, read by their number, and which checksum an answer may name: pure.

Parts are known of what was completed by a gateway, for as long as its file, or its cache file, is on this node. Numbers
count from 1 in the order of the parts, whatever numbers they were sent with.
"""

from __future__ import annotations

import re

from headrace.http.messages import Request, is_number
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.uploads import NUMBER_MAX

_OF_PARTS = re.compile(r'"?[0-9a-f]{32}-([0-9]{1,5})"?')
Range = tuple[int, int]


def count_of(facts: ObjectAttributes) -> int:
    """Return how many parts an object has; 0 for one that was put in one piece. The ETag says it as S3 makes it."""
    if facts.parts:
        return sum(count for count, _ in facts.parts)
    match = _OF_PARTS.fullmatch(facts.etag)
    return int(match[1]) if match else 0


def range_of_part(facts: ObjectAttributes, number: int) -> Range:
    """InvalidPartNumber; NotImplemented where the sizes of the parts are not known here."""
    count = count_of(facts)
    if number > max(1, count):
        raise S3Error("InvalidPartNumber", "The requested partnumber is not satisfiable")
    if count <= 1:
        return 0, facts.size_bytes
    if not facts.parts:
        raise S3Error("NotImplemented", "the sizes of this object's parts are not known here: use a range")
    start = 0
    for many, size_bytes in facts.parts:
        if number <= many:
            return start + (number - 1) * size_bytes, start + number * size_bytes
        start, number = start + many * size_bytes, number - many
    raise AssertionError


def read_as_asked(
    request: Request, facts: ObjectAttributes, part: Range | None
) -> tuple[Range | None, list[tuple[str, str]]]:
    """The range to answer, and headers beside it. part: by the Range header. A checksum is of the whole object, so an
    answer with less of it names none."""
    headers: list[tuple[str, str]] = []
    if request.has("partNumber"):
        number = request.argument("partNumber")
        if not is_number(number) or not 1 <= int(number) <= NUMBER_MAX:
            raise S3Error("InvalidArgument", f"partNumber must be an integer from 1 to {NUMBER_MAX}")
        if "range" in request.headers:
            raise S3Error("InvalidRequest", "Cannot specify both Range header and partNumber query parameter")
        part = range_of_part(facts, int(number))
        if count := count_of(facts):
            headers.append(("x-amz-mp-parts-count", str(count)))
        if part == (0, 0):
            part = None
    wanted = request.header("x-amz-checksum-mode").upper() == "ENABLED"
    if wanted and facts.checksum is not None and part in (None, (0, facts.size_bytes)):
        headers += facts.checksum.headers()
    return part, headers
