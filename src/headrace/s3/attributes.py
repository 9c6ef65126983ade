"""GetObjectAttributes: what is known of an object without its bytes."""

from __future__ import annotations

from headrace.http.messages import Request, Response, http_date, is_number
from headrace.s3 import conditions, xml
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.objects import Objects
from headrace.s3.parts import count_of
from headrace.s3.routes import S3Call

NAMES = ("ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize")
PARTS_SHOWN_MAX = 1000


class AttributesOperation:
    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, request: Request, call: S3Call) -> Response:
        """Checksum and ObjectParts only where they are known. NoSuchKey, InvalidArgument."""
        wanted = _names_of(request)
        if call.key.endswith(b"/"):
            raise S3Error("NoSuchKey", "a key that ends in / is a folder here, and has no attributes")
        facts, _, _ = self._objects.facts(call)
        conditions.check_read(request, facts.etag, facts.mtime_ns)
        facts = self._objects.noted(call, facts, None)
        elements = {
            "ETag": xml.text("ETag", facts.etag.strip('"')),
            "Checksum": _checksum(facts),
            "ObjectParts": _parts(request, facts),
            "StorageClass": xml.text("StorageClass", "STANDARD"),
            "ObjectSize": xml.text("ObjectSize", facts.size_bytes),
        }
        body = xml.document(
            "GetObjectAttributesResponse", *(elements[name] for name in NAMES if name in wanted)
        )
        headers = [("Content-Type", "application/xml"), ("Last-Modified", http_date(facts.mtime_ns))]
        return Response(200, headers, body=body)


def _names_of(request: Request) -> set[str]:
    names = {name.strip() for name in request.header("x-amz-object-attributes").split(",")} - {""}
    if not names or not names <= set(NAMES):
        raise S3Error("InvalidArgument", f"x-amz-object-attributes must name some of {', '.join(NAMES)}")
    return names


def _checksum(facts: ObjectAttributes) -> str:
    known = facts.checksum
    if known is None:
        return ""
    inner = (xml.text(known.element, known.value), xml.text("ChecksumType", known.kind))
    return xml.element("Checksum", *inner)


def _parts(request: Request, facts: ObjectAttributes) -> str:
    count = count_of(facts)
    if not count:
        return ""
    after = _number(request, "x-amz-part-number-marker", 0)
    most = min(_number(request, "x-amz-max-parts", PARTS_SHOWN_MAX), PARTS_SHOWN_MAX)
    sizes = [size_bytes for many, size_bytes in facts.parts for _ in range(many)]
    shown = list(enumerate(sizes, 1))[after : after + most]
    rows = [
        xml.element("Part", xml.text("PartNumber", number), xml.text("Size", size_bytes))
        for number, size_bytes in shown
    ]
    said = [
        xml.text("PartsCount", count),
        xml.text("PartNumberMarker", after),
        xml.text("NextPartNumberMarker", shown[-1][0] if shown else after),
        xml.text("MaxParts", most),
        xml.text("IsTruncated", "true" if after + most < len(sizes) else "false"),
    ]
    return xml.element("ObjectParts", *said, *rows)


def _number(request: Request, name: str, default: int) -> int:
    text = request.header(name)
    if text and not is_number(text):
        raise S3Error("InvalidArgument", f"{name} is not a number")
    return int(text) if text else default
