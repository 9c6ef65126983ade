"""Serve uploads by a browser's form: the fields of the form become the headers of a put."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from headrace.http.messages import Request, Response
from headrace.s3 import xml
from headrace.s3.body import Payload
from headrace.s3.errors import S3Error
from headrace.s3.forms import Form, LengthLimits, check_policy, check_signature
from headrace.s3.object_metadata import checked_tags
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call, check_key

_HEADERS = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-md5",
    "content-type",
    "expires",
)
FILE_NAME = "${filename}"


def post(
    objects: Objects, secrets: dict[str, str] | None, request: Request, call: S3Call, pieces: Iterator[bytes]
) -> Response:
    """Put the file of a form. `secrets` maps access keys to secrets. None: a form need not be signed, but its policy
    must hold. Raises S3Error, and the errors of a put."""
    form = Form(pieces, request.header("content-type"))
    fields = form.fields
    key = fields.get("key", "").replace(FILE_NAME, form.file_name.rpartition("/")[2].rpartition("\\")[2])
    if not key:
        raise S3Error("InvalidArgument", "Bucket POST must contain a field named 'key' with a value.")
    if secrets is not None:
        check_signature(fields, secrets)
    limits = LengthLimits()
    if "policy" in fields:
        limits = check_policy({**fields, "key": key}, call.bucket.decode("utf-8", "replace"), time.time())
    target = S3Call("put_object", call.bucket, key.encode())
    check_key(target.key)
    put = msgspec.structs.replace(
        request, method="PUT", path=target.path, query=[], headers=_headers_of(request, fields)
    )
    payload = Payload(put, form.file(limits), "", None)
    response = objects.put(put, target, payload)
    return _respond(request, fields, target, dict(response.headers)["ETag"])


def _headers_of(request: Request, fields: dict[str, str]) -> dict[str, str]:
    """Return the headers of the put that a form describes; a field that can't be a header is refused by their
    checks."""
    headers = {name: value for name, value in fields.items() if name in _HEADERS}
    headers |= {
        name: value
        for name, value in fields.items()
        if name.startswith("x-amz-")
        and name not in ("x-amz-signature", "x-amz-algorithm", "x-amz-credential", "x-amz-date")
    }
    if "acl" in fields:
        headers["x-amz-acl"] = fields["acl"]
    if "tagging" in fields:
        headers["x-amz-tagging"] = urlencode(checked_tags(xml.read_tags(fields["tagging"].encode())))
    headers.pop("x-amz-decoded-content-length", None)
    headers.pop("x-amz-trailer", None)
    return {"host": request.header("host"), **headers}


def _respond(request: Request, fields: dict[str, str], target: S3Call, etag: str) -> Response:
    """Respond as the form requests: a redirect, or 200, 201 or 204."""
    bucket, key = target.bucket.decode("utf-8", "replace"), target.key.decode()
    scheme = "https" if request.secure else "http"
    location = f"{scheme}://{request.header('host')}/{quote(bucket)}/{quote(key)}"
    headers = [("ETag", etag), ("Location", location)]
    redirect = _redirect_of(fields.get("success_action_redirect") or fields.get("redirect", ""))
    if redirect:
        separator = "&" if "?" in redirect else "?"
        url = redirect + separator + urlencode({"bucket": bucket, "key": key, "etag": etag})
        return Response(303, [("ETag", etag), ("Location", url)])
    status = fields.get("success_action_status", "")
    if status != "201":
        return Response(200 if status == "200" else 204, headers)
    rows = (
        xml.text("Location", location),
        xml.text("Bucket", bucket),
        xml.text("Key", key),
        xml.text("ETag", etag),
    )
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{xml.element("PostResponse", *rows)}'.encode()
    return Response(201, [*headers, ("Content-Type", "application/xml")], body=body)


def _redirect_of(url: str) -> str:
    """Return the URL; "" for one that is no URL of the web, which S3 ignores too."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    is_plain = url.isascii() and url.isprintable() and " " not in url
    return (
        url if is_plain and parts.scheme in ("http", "https") and parts.netloc and not parts.fragment else ""
    )
