"""The XML of S3: answers as text, and the two bodies that clients send.

Source: Amazon S3 API Reference; namespace http://s3.amazonaws.com/doc/2006-03-01/.
"""

from __future__ import annotations

import re
import time
from urllib.parse import quote
from xml.etree import ElementTree

import defusedxml.ElementTree

from headrace.http.messages import is_number
from headrace.s3.errors import S3Error

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_SPECIAL = re.compile('[&<>"\x00-\x1f\x7f]')
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
NAMES_MAX = 1000
PARTS_MAX = 10_000


def element(name: str, *content: str) -> str:
    """content: XML already."""
    return f"<{name}>{''.join(content)}</{name}>"


def text(name: str, value: object) -> str:
    """An element with a text."""
    return f"<{name}>{_SPECIAL.sub(_escaped, str(value))}</{name}>"


def _escaped(match: re.Match[str]) -> str:
    one = match.group()
    return _ENTITIES.get(one) or f"&#x{ord(one):x};"


def document(name: str, *content: str) -> bytes:
    body = f'{_HEAD}<{name} xmlns="{NAMESPACE}">{"".join(content)}</{name}>'
    return body.encode("utf-8", "surrogateescape")


def key_text(name: str, key: bytes, *, url: bool) -> str:
    """A key, or a part of one. url: percent-encoded, as a client asked for."""
    value = quote(key, safe="/-_.~*") if url else key.decode("utf-8", "replace")
    return text(name, value)


def is_text(key: bytes) -> bool:
    """Whether a key can be shown without url encoding."""
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def iso_time(mtime_ns: int) -> str:
    seconds, rest = divmod(mtime_ns, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"


def error_document(code: str, message: str, resource: str, request_id: str) -> bytes:
    """Errors have no namespace."""
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
    """Keys with the ETag each must have ("" for any), and whether only errors are to be told."""
    root = _parse(body, "Delete")
    found = []
    for one in root.iter("Object"):
        key = one.findtext("Key")
        if not key:
            raise _malformed("an Object has no Key")
        if one.findtext("VersionId") not in (None, "", "null"):
            raise S3Error("NotImplemented", "objects have no versions here")
        found.append((key.encode("utf-8", "surrogateescape"), one.findtext("ETag") or ""))
    if not 0 < len(found) <= NAMES_MAX:
        raise _malformed(f"1 to {NAMES_MAX} objects are needed")
    return found, (root.findtext("Quiet") or "").strip().lower() == "true"


def read_complete(body: bytes) -> list[tuple[int, str, dict[str, str]]]:
    """Part numbers with their ETags, and checksums by their element where some are named."""
    found = []
    for one in _parse(body, "CompleteMultipartUpload").iter("Part"):
        number, etag = (one.findtext("PartNumber") or "").strip(), one.findtext("ETag")
        if not is_number(number) or not etag:
            raise _malformed("a Part needs PartNumber and ETag")
        checksums = {
            inner.tag: (inner.text or "").strip() for inner in one if inner.tag.startswith("Checksum")
        }
        found.append((int(number), etag.strip(), checksums))
    if not 0 < len(found) <= PARTS_MAX:
        raise _malformed(f"1 to {PARTS_MAX} parts are needed")
    return found


def read_tags(body: bytes) -> list[tuple[str, str]]:
    found = []
    for one in _parse(body, "Tagging").iter("Tag"):
        name, value = one.findtext("Key"), one.findtext("Value")
        if not name or value is None:
            raise _malformed("a Tag needs Key and Value")
        found.append((name, value))
    return found


def _parse(body: bytes, name: str) -> ElementTree.Element:
    try:
        root: ElementTree.Element = defusedxml.ElementTree.fromstring(
            body, forbid_dtd=True
        )  # no client sends a DOCTYPE
    except defusedxml.DefusedXmlException:  # no client sends a DOCTYPE
        raise _malformed("declarations are not read") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # the latter: of its encoding
        raise _malformed(str(error)) from None
    for one in root.iter():
        one.tag = one.tag.rpartition("}")[2]
    if root.tag != name:
        raise _malformed(f"{name} is expected")
    return root


def _malformed(why: str) -> S3Error:
    return S3Error("MalformedXML", f"The XML you provided was not well-formed: {why}")
