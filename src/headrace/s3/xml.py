"""Write the XML of S3's responses, and read the bodies that clients send.

Source: Amazon S3 API Reference; namespace http://s3.amazonaws.com/doc/2006-03-01/.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from urllib.parse import quote
from xml.etree import ElementTree

import defusedxml.ElementTree

from headrace.base.bounded_xml import ENCODING, BoundedBuilder, check_xml
from headrace.http.messages import Response, is_number
from headrace.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPECIAL = re.compile('[&<>"\x00-\x1f\x7f]')
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
NAMES_MAX = 1000
PARTS_MAX = 10_000
ELEMENTS_MAX = 12 * PARTS_MAX
"""Most elements and attributes of a body. A completion names up to nine for a part. A body of 8 MiB could have two
million, which need some 500 MiB."""
RUN_BYTES_MAX = 64 << 10
"""Most bytes of a tag with its text. A key has 4095 bytes, and six for each that is escaped."""


def element(name: str, *content: str) -> str:
    """Return an element; `content` is XML already."""
    return f"<{name}>{''.join(content)}</{name}>"


def text(name: str, value: object) -> str:
    """Return an element with a text."""
    return f"<{name}>{_SPECIAL.sub(_escaped, str(value))}</{name}>"


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    return _ENTITIES.get(character) or f"&#x{ord(character):x};"


def document(name: str, *content: str) -> bytes:
    body = f'{_HEAD}<{name} xmlns="{NAMESPACE}">{"".join(content)}</{name}>'
    return body.encode("utf-8", "surrogateescape")


def response(body: bytes, headers: Iterable[tuple[str, str]] = ()) -> Response:
    return Response(200, [("Content-Type", "application/xml"), *headers], body=body)


def key_text(name: str, key: bytes, *, url: bool) -> str:
    """Return an element with a key, or a part of one. `url` percent-encodes it, as a client may request."""
    value = quote(key, safe="/-_.~*") if url else key.decode("utf-8", "replace")
    return text(name, value)


def is_text(key: bytes) -> bool:
    """Return whether a key can be shown without URL encoding."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def iso_time(mtime_ns: int) -> str:
    seconds, rest = divmod(mtime_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"


def error_document(code: str, message: str, resource: str, request_id: str) -> bytes:
    """Return the XML of an error, which has no namespace."""
    content = "".join(
        (
            text("Code", code),
            text("Message", message),
            text("Resource", resource),
            text("RequestId", request_id),
        )
    )
    return f"{_HEAD}<Error>{content}</Error>".encode("utf-8", "replace")


def read_delete(body: bytes) -> tuple[list[tuple[bytes, str]], bool]:
    """Return the keys, with the ETag that each must have ("" for any), and whether to report errors only."""
    root = _parse(body, "Delete")
    keys = []
    for item in root.iter("Object"):
        key = item.findtext("Key")
        if not key:
            raise _malformed("an Object has no Key")
        if item.findtext("VersionId") not in (None, "", "null"):
            raise S3Error("NotImplemented", "objects have no versions here")
        keys.append((key.encode("utf-8", "surrogateescape"), item.findtext("ETag") or ""))
    if not 0 < len(keys) <= NAMES_MAX:
        raise _malformed(f"1 to {NAMES_MAX} objects are needed")
    return keys, (root.findtext("Quiet") or "").strip().lower() == "true"


def read_complete(body: bytes) -> list[tuple[int, str, dict[str, str]]]:
    """Return the part numbers with their ETags, and their checksums by element name."""
    parts = []
    for item in _parse(body, "CompleteMultipartUpload").iter("Part"):
        number, etag = (item.findtext("PartNumber") or "").strip(), item.findtext("ETag")
        if not is_number(number) or not etag:
            raise _malformed("a Part needs PartNumber and ETag")
        checksums = {
            inner.tag: (inner.text or "").strip() for inner in item if inner.tag.startswith("Checksum")
        }
        parts.append((int(number), etag.strip(), checksums))
    if not 0 < len(parts) <= PARTS_MAX:
        raise _malformed(f"1 to {PARTS_MAX} parts are needed")
    return parts


def read_tags(body: bytes) -> list[tuple[str, str]]:
    tags = []
    for item in _parse(body, "Tagging").iter("Tag"):
        name, value = item.findtext("Key"), item.findtext("Value")
        if not name or value is None:
            raise _malformed("a Tag needs Key and Value")
        tags.append((name, value))
    return tags


def _parse(body: bytes, name: str) -> ElementTree.Element:
    try:
        check_xml(body, run_bytes_max=RUN_BYTES_MAX)
        parser = defusedxml.ElementTree.DefusedXMLParser(
            target=BoundedBuilder(ELEMENTS_MAX), encoding=ENCODING, forbid_dtd=True
        )
        parser.feed(body)
        root: ElementTree.Element = parser.close()
    except defusedxml.DefusedXmlException:  # no client sends a DOCTYPE
        raise _malformed("declarations are not supported") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise _malformed(str(error)) from None
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    if root.tag != name:
        raise _malformed(f"{name} is expected")
    return root


def _malformed(why: str) -> S3Error:
    return S3Error("MalformedXML", f"The XML you provided was not well-formed: {why}")
