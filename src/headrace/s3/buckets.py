"""Buckets: the folders at the top of the namespace, and what is in them."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable

from headrace.base.errors import HeadraceError, NotADirectoryPathError
from headrace.base.model import Entry
from headrace.http.messages import Request, Response, is_number
from headrace.s3 import xml
from headrace.s3.errors import S3Error, s3_error_of
from headrace.s3.listing import ListedKey, ObjectListing, Page
from headrace.s3.object_attributes import ObjectAttributes
from headrace.s3.objects import Objects
from headrace.s3.routes import S3Call, check_key
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.vfs_reader import is_directory

KEYS_MAX = 1000
REGION = "us-east-1"
_NEW_BUCKET = re.compile(rb"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(rb"\d+\.\d+\.\d+\.\d+")
_XML = [("Content-Type", "application/xml")]
_OWNER = xml.element("Owner", xml.text("ID", "headrace"), xml.text("DisplayName", "headrace"))


def answer(body: bytes, headers: Iterable[tuple[str, str]] = ()) -> Response:
    return Response(200, [*_XML, *headers], body=body)


class Buckets:
    def __init__(self, paths: LocalVfs, objects: Objects) -> None:
        self._paths = paths
        self._objects = objects

    def list_all(self) -> Response:
        rows = []
        for name, found in self._paths.children(b"/"):
            if is_directory(found) and xml.is_text(name):
                mtime_ns = found.version.mtime_ns if isinstance(found, Entry) else found.st_mtime_ns
                rows.append(
                    xml.element(
                        "Bucket",
                        xml.key_text("Name", name, url=False),
                        xml.text("CreationDate", xml.iso_time(mtime_ns)),
                    )
                )
        return answer(xml.document("ListAllMyBucketsResult", _OWNER, xml.element("Buckets", *rows)))

    def head(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        return Response(200, [("x-amz-bucket-region", REGION)])

    def location(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        return answer(xml.document("LocationConstraint"))

    def versioning(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        return answer(xml.document("VersioningConfiguration"))

    def create(self, call: S3Call) -> Response:
        """A folder at the top of the namespace, where something can be written there."""
        found = self._paths.find(call.path)[1]
        if found is not None:
            raise S3Error("BucketAlreadyOwnedByYou", "The bucket is there already.")
        if not _NEW_BUCKET.fullmatch(call.bucket) or _ADDRESS.fullmatch(call.bucket) or b".." in call.bucket:
            raise S3Error("InvalidBucketName", "The specified bucket is not valid.")
        self._paths.make_directory(call.path)
        return Response(200, [("Location", "/" + os.fsdecode(call.bucket))])

    def delete(self, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        try:
            self._paths.remove_directory(call.path)
        except NotADirectoryPathError:
            raise S3Error("NoSuchBucket", "The specified bucket does not exist") from None
        return Response(204)

    # ------------------------------------------------------------ listings

    def objects(self, request: Request, call: S3Call) -> Response:
        """ListObjects, the first version."""
        asked = _Asked(request)
        marker = _bytes(request.argument("marker"))
        page = self._page(call, asked, marker)
        next_marker = (
            [xml.key_text("NextMarker", page.next_key, url=asked.url)]
            if page.next_key and asked.delimiter
            else []
        )
        return self._listed(
            "ListBucketResult",
            call,
            asked,
            page,
            xml.key_text("Marker", marker, url=asked.url),
            *next_marker,
            with_owner=True,
            with_marker=True,
        )

    def objects_v2(self, request: Request, call: S3Call) -> Response:
        asked = _Asked(request)
        token, start = request.argument("continuation-token"), _bytes(request.argument("start-after"))
        page = self._page(call, asked, _key_of(token) if token else start)
        said = [xml.text("KeyCount", len(page.rows) + len(page.prefixes))]
        if request.has("continuation-token"):
            said.append(xml.text("ContinuationToken", token))
        if start:
            said.append(xml.key_text("StartAfter", start, url=asked.url))
        if page.next_key:
            said.append(xml.text("NextContinuationToken", _token_of(page.next_key)))
        with_owner = request.argument("fetch-owner").lower() == "true"
        return self._listed("ListBucketResult", call, asked, page, *said, with_owner=with_owner)

    def versions(self, request: Request, call: S3Call) -> Response:
        """Each object is its only version, `null`."""
        asked = _Asked(request)
        marker = _bytes(request.argument("key-marker"))
        page = self._page(call, asked, marker)
        said = [xml.key_text("KeyMarker", marker, url=asked.url), xml.text("VersionIdMarker", "")]
        if page.next_key:
            said.append(xml.key_text("NextKeyMarker", page.next_key, url=asked.url))
            said.append(xml.text("NextVersionIdMarker", "null"))
        return self._listed(
            "ListVersionsResult", call, asked, page, *said, with_owner=True, row_name="Version"
        )

    def _page(self, call: S3Call, asked: _Asked, after: bytes) -> Page:
        self._objects.check_bucket(call)
        return ObjectListing(self._paths, call.path).page(asked.prefix, asked.delimiter, after, asked.count)

    def _listed(
        self,
        name: str,
        call: S3Call,
        asked: _Asked,
        page: Page,
        *said: str,
        with_owner: bool,
        row_name: str = "Contents",
        with_marker: bool = False,
    ) -> Response:
        """with_marker: the first version, whose Prefix S3 tells as it is, whatever the encoding."""
        rows = [
            _row(row_name, one, asked, with_owner=with_owner) for one in page.rows if asked.shows(one.key)
        ]
        prefixes = [
            xml.element("CommonPrefixes", xml.key_text("Prefix", one, url=asked.url))
            for one in page.prefixes
            if asked.shows(one)
        ]
        head = [
            xml.key_text("Name", call.bucket, url=False),
            xml.key_text("Prefix", asked.prefix, url=asked.url and not with_marker),
            xml.text("MaxKeys", asked.count),
            xml.text("IsTruncated", "true" if page.next_key else "false"),
        ]
        if asked.delimiter:
            head.append(xml.key_text("Delimiter", asked.delimiter, url=asked.url))
        if asked.url:
            head.append(xml.text("EncodingType", "url"))
        return answer(xml.document(name, *head, *said, *rows, *prefixes))

    # ------------------------------------------------------------ many at once

    def delete_objects(self, call: S3Call, body: bytes) -> Response:
        wanted, quiet = xml.read_delete(body)
        self._objects.check_bucket(call)
        self._paths.check_writable(call.path + b"/any")
        rows = []
        for key, etag in wanted:
            try:
                check_key(key)
                one = S3Call("delete_object", call.bucket, key)
                if etag:
                    self._objects.etag_check(one, etag)
                self._objects.remove(one)
            except (S3Error, HeadraceError) as error:
                rows.append(_delete_error(key, error if isinstance(error, S3Error) else s3_error_of(error)))
                continue
            if not quiet:
                rows.append(xml.element("Deleted", xml.key_text("Key", key, url=False)))
        return answer(xml.document("DeleteResult", *rows))


class _Asked:
    """What the three listings have in common."""

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

    def shows(self, key: bytes) -> bool:
        """Keys that are no text can be told only percent-encoded."""
        return self.url or xml.is_text(key)


def _row(name: str, row: ListedKey, asked: _Asked, *, with_owner: bool) -> str:
    facts = row.facts or ObjectAttributes(0, 0, '"d41d8cd98f00b204e9800998ecf8427e"')
    version = [xml.text("VersionId", "null"), xml.text("IsLatest", "true")] if name == "Version" else []
    return xml.element(
        name,
        xml.key_text("Key", row.key, url=asked.url),
        *version,
        xml.text("LastModified", xml.iso_time(facts.mtime_ns)),
        xml.text("ETag", facts.etag),
        xml.text("Size", facts.size_bytes),
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
