"""Serve buckets, which are the directories at the top of the namespace, and the listings of their objects."""

from __future__ import annotations

import base64
import binascii
import os
import re

from headrace.base.errors import HeadraceError, NotADirectoryPathError
from headrace.base.model import Entry
from headrace.http.messages import Request, Response, is_number
from headrace.s3 import xml
from headrace.s3.errors import S3Error, s3_error_of
from headrace.s3.listing import ListedKey, ObjectListing, Page
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call, check_key
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs

KEYS_MAX = 1000
REGION = "us-east-1"
_NEW_BUCKET = re.compile(rb"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(rb"\d+\.\d+\.\d+\.\d+")
_OWNER = xml.element("Owner", xml.text("ID", "headrace"), xml.text("DisplayName", "headrace"))


class Buckets:
    """Answers the operations of buckets, their listings, and DeleteObjects."""

    def __init__(self, vfs: LocalVfs, objects: Objects) -> None:
        self._vfs = vfs
        self._objects = objects

    def list_all(self) -> Response:
        rows = []
        for name, file_stat in self._vfs.children(b"/"):
            if is_directory(file_stat) and xml.is_text(name):
                mtime_ns = (
                    file_stat.version.mtime_ns if isinstance(file_stat, Entry) else file_stat.st_mtime_ns
                )
                rows.append(
                    xml.element(
                        "Bucket",
                        xml.key_text("Name", name, url=False),
                        xml.text("CreationDate", xml.iso_time(mtime_ns)),
                    )
                )
        return xml.response(xml.document("ListAllMyBucketsResult", _OWNER, xml.element("Buckets", *rows)))

    def head(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        return Response(200, [("x-amz-bucket-region", REGION)])

    def location(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        return xml.response(xml.document("LocationConstraint"))

    def versioning(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        return xml.response(xml.document("VersioningConfiguration"))

    def create(self, call: S3Call) -> Response:
        """Create a directory at the top of the namespace, if names there can be written."""
        existing = self._vfs.find(call.path)[1]
        if existing is not None:
            raise S3Error("BucketAlreadyOwnedByYou", "The bucket exists already.")
        if not _NEW_BUCKET.fullmatch(call.bucket) or _ADDRESS.fullmatch(call.bucket) or b".." in call.bucket:
            raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
        self._vfs.make_directory(call.path)
        return Response(200, [("Location", "/" + os.fsdecode(call.bucket))])

    def delete(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        try:
            self._vfs.remove_directory(call.path)
        except NotADirectoryPathError:
            raise S3Error("NoSuchBucket", "The specified bucket does not exist") from None
        return Response(204)

    # ------------------------------------------------------------ listings

    def objects(self, request: Request, call: S3Call) -> Response:
        """Answer ListObjects, the first version."""
        query = _ListRequest(request)
        marker = _bytes(request.argument("marker"))
        page = self._page(call, query, marker)
        next_marker = (
            [xml.key_text("NextMarker", page.next_key, url=query.url)]
            if page.next_key and query.delimiter
            else []
        )
        return self._listing_response(
            "ListBucketResult",
            call,
            query,
            page,
            xml.key_text("Marker", marker, url=query.url),
            *next_marker,
            with_owner=True,
            with_marker=True,
        )

    def objects_v2(self, request: Request, call: S3Call) -> Response:
        query = _ListRequest(request)
        token, start = request.argument("continuation-token"), _bytes(request.argument("start-after"))
        page = self._page(call, query, _key_of(token) if token else start)
        elements = [xml.text("KeyCount", len(page.rows) + len(page.prefixes))]
        if request.has("continuation-token"):
            elements.append(xml.text("ContinuationToken", token))
        if start:
            elements.append(xml.key_text("StartAfter", start, url=query.url))
        if page.next_key:
            elements.append(xml.text("NextContinuationToken", _token_of(page.next_key)))
        with_owner = request.argument("fetch-owner").lower() == "true"
        return self._listing_response("ListBucketResult", call, query, page, *elements, with_owner=with_owner)

    def versions(self, request: Request, call: S3Call) -> Response:
        """List each object as its only version, `null`."""
        query = _ListRequest(request)
        marker = _bytes(request.argument("key-marker"))
        page = self._page(call, query, marker)
        elements = [xml.key_text("KeyMarker", marker, url=query.url), xml.text("VersionIdMarker", "")]
        if page.next_key:
            elements.append(xml.key_text("NextKeyMarker", page.next_key, url=query.url))
            elements.append(xml.text("NextVersionIdMarker", "null"))
        return self._listing_response(
            "ListVersionsResult", call, query, page, *elements, with_owner=True, row_name="Version"
        )

    def _page(self, call: S3Call, query: _ListRequest, after: bytes) -> Page:
        self._objects.check_bucket(call)
        return ObjectListing(self._vfs, call.path).page(query.prefix, query.delimiter, after, query.count)

    def _listing_response(
        self,
        name: str,
        call: S3Call,
        query: _ListRequest,
        page: Page,
        *elements: str,
        with_owner: bool,
        row_name: str = "Contents",
        with_marker: bool = False,
    ) -> Response:
        """Encode a page. `with_marker`: the response is for ListObjects, whose Prefix S3 never percent-encodes."""
        rows = [
            _row(row_name, row, query, with_owner=with_owner) for row in page.rows if query.can_show(row.key)
        ]
        prefixes = [
            xml.element("CommonPrefixes", xml.key_text("Prefix", prefix, url=query.url))
            for prefix in page.prefixes
            if query.can_show(prefix)
        ]
        head = [
            xml.key_text("Name", call.bucket, url=False),
            xml.key_text("Prefix", query.prefix, url=query.url and not with_marker),
            xml.text("MaxKeys", query.count),
            xml.text("IsTruncated", "true" if page.next_key else "false"),
        ]
        if query.delimiter:
            head.append(xml.key_text("Delimiter", query.delimiter, url=query.url))
        if query.url:
            head.append(xml.text("EncodingType", "url"))
        return xml.response(xml.document(name, *head, *elements, *rows, *prefixes))

    # ------------------------------------------------------------ many objects at once

    def delete_objects(self, call: S3Call, body: bytes) -> Response:
        keys, quiet = xml.read_delete(body)
        self._objects.check_bucket(call)
        self._vfs.check_writable(call.path + b"/any")
        rows = []
        for key, etag in keys:
            try:
                check_key(key)
                target = S3Call("delete_object", call.bucket, key)
                if etag:
                    self._objects.remove_version(target, etag)
                else:
                    self._objects.remove(target)
            except (S3Error, HeadraceError) as error:
                rows.append(_delete_error(key, error if isinstance(error, S3Error) else s3_error_of(error)))
                continue
            if not quiet:
                rows.append(xml.element("Deleted", xml.key_text("Key", key, url=False)))
        return xml.response(xml.document("DeleteResult", *rows))


class _ListRequest:
    """Holds the arguments that the three listings have in common."""

    def __init__(self, request: Request) -> None:
        self.prefix = _bytes(request.argument("prefix"))
        self.delimiter = _bytes(request.argument("delimiter"))
        encoding = request.argument("encoding-type")
        if encoding not in ("", "url"):
            raise S3Error("InvalidArgument", "Invalid Encoding Method specified in Request")
        self.url = encoding == "url"
        count = request.argument("max-keys", str(KEYS_MAX)) or str(KEYS_MAX)
        if not is_number(count):
            raise S3Error("InvalidArgument", "Argument max-keys must be an integer between 0 and 2147483647")
        self.count = min(int(count), KEYS_MAX)

    def can_show(self, key: bytes) -> bool:
        """Return whether a key can be encoded. A key that is not UTF-8 can only be percent-encoded."""
        return self.url or xml.is_text(key)


def _row(name: str, row: ListedKey, query: _ListRequest, *, with_owner: bool) -> str:
    attributes = row.attributes or ObjectAttributes(0, 0, '"d41d8cd98f00b204e9800998ecf8427e"')
    version = [xml.text("VersionId", "null"), xml.text("IsLatest", "true")] if name == "Version" else []
    return xml.element(
        name,
        xml.key_text("Key", row.key, url=query.url),
        *version,
        xml.text("LastModified", xml.iso_time(attributes.mtime_ns)),
        xml.text("ETag", attributes.etag),
        xml.text("Size", attributes.size_bytes),
        xml.text("StorageClass", "STANDARD"),
        *([_OWNER] if with_owner else []),
    )


def _delete_error(key: bytes, error: S3Error) -> str:
    return xml.element(
        "Error",
        xml.key_text("Key", key, url=False),
        xml.text("Code", error.code),
        xml.text("Message", error.message),
    )


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _token_of(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode()


def _key_of(token: str) -> bytes:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise S3Error("InvalidArgument", "The continuation token provided is incorrect") from None
