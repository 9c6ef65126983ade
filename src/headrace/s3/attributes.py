"""Serve GetObjectAttributes: the attributes of an object that need none of its bytes."""

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
    """Answers GetObjectAttributes."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def get(self, request: Request, call: S3Call) -> Response:
        """Answer with the requested elements; Checksum and ObjectParts if known. Raises NoSuchKey or
        InvalidArgument."""
        requested = _names_of(request)
        if call.key.endswith(b"/"):
            raise S3Error("NoSuchKey", "a key that ends in / is a folder here, and has no attributes")
        attributes, _, _ = self._objects.attributes(call)
        conditions.check_read(request, attributes.etag, attributes.mtime_ns)
        attributes = self._objects.with_recorded(call, attributes, None)
        elements = {
            "ETag": xml.text("ETag", attributes.etag.strip('"')),
            "Checksum": _checksum(attributes),
            "ObjectParts": _parts(request, attributes),
            "StorageClass": xml.text("StorageClass", "STANDARD"),
            "ObjectSize": xml.text("ObjectSize", attributes.size_bytes),
        }
        body = xml.document(
            "GetObjectAttributesResponse", *(elements[name] for name in NAMES if name in requested)
        )
        return xml.response(body, [("Last-Modified", http_date(attributes.mtime_ns))])


def _names_of(request: Request) -> set[str]:
    names = {name.strip() for name in request.header("x-amz-object-attributes").split(",")} - {""}
    if not names or not names <= set(NAMES):
        raise S3Error("InvalidArgument", f"x-amz-object-attributes must name some of {', '.join(NAMES)}")
    return names


def _checksum(attributes: ObjectAttributes) -> str:
    checksum = attributes.checksum
    if checksum is None:
        return ""
    inner = (xml.text(checksum.element, checksum.value), xml.text("ChecksumType", checksum.kind))
    return xml.element("Checksum", *inner)


def _parts(request: Request, attributes: ObjectAttributes) -> str:
    count = count_of(attributes)
    if not count:
        return ""
    after = _number(request, "x-amz-part-number-marker", 0)
    count_max = min(_number(request, "x-amz-max-parts", PARTS_SHOWN_MAX), PARTS_SHOWN_MAX)
    sizes = [size_bytes for many, size_bytes in attributes.parts for _ in range(many)]
    shown = list(enumerate(sizes, 1))[after : after + count_max]
    rows = [
        xml.element("Part", xml.text("PartNumber", number), xml.text("Size", size_bytes))
        for number, size_bytes in shown
    ]
    header = [
        xml.text("PartsCount", count),
        xml.text("PartNumberMarker", after),
        xml.text("NextPartNumberMarker", shown[-1][0] if shown else after),
        xml.text("MaxParts", count_max),
        xml.text("IsTruncated", "true" if after + count_max < len(sizes) else "false"),
    ]
    return xml.element("ObjectParts", *header, *rows)


def _number(request: Request, name: str, default: int) -> int:
    text = request.header(name)
    if text and not is_number(text):
        raise S3Error("InvalidArgument", f"{name} is not a number")
    return int(text) if text else default
