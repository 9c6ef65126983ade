"""Uploads in parts, as S3's operations: what is begun, sent, listed, put together and given up."""

from __future__ import annotations

import binascii
import hashlib
import itertools
import os
import time

from headrace.http.messages import Request, Response, is_number
from headrace.s3 import conditions, xml
from headrace.s3.body import Payload
from headrace.s3.buckets import answer
from headrace.s3.errors import S3Error
from headrace.s3.extras import metadata_of
from headrace.s3.facts import note
from headrace.s3.objects import Objects, check_put, copy_source, keep
from headrace.s3.routes import Call
from headrace.s3.uploads import NUMBER_MAX, About, Part, Uploads
from headrace.sdk.streams import Content

PART_BYTES_MIN = 5 << 20
LIST_MAX = 1000
_COPY_STEP_BYTES = 16 << 20


class Multipart:
    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads

    def create(self, request: Request, call: Call) -> Response:
        mtime_text = check_put(request)
        self._objects.check_bucket(call)
        self._objects.paths.check_writable(call.path)
        if call.key.endswith(b"/"):
            raise S3Error("InvalidArgument", "a key that ends in / is a folder here, and has no bytes")
        extras = self._objects.extras.check_kept(call.path, metadata_of(request))
        id = self._uploads.begin(About(call.bucket, call.key, time.time(), mtime_text, extras))
        return answer(xml.document("InitiateMultipartUploadResult", *_named(call), xml.text("UploadId", id)))

    def put_part(self, request: Request, call: Call, payload: Payload) -> Response:
        id, number = self._about_of_part(request, call)
        with self._uploads.part(id, number) as fd:
            with open(fd, "wb", buffering=0, closefd=False) as out:
                for piece in payload:
                    out.write(piece)
            etag = payload.md5.hexdigest()
            note(fd, etag)
        return Response(200, [("ETag", f'"{etag}"'), *payload.checksum_headers()])

    def copy_part(self, request: Request, call: Call) -> Response:
        id, number = self._about_of_part(request, call)
        facts, content, _ = self._objects.opened(Call("get_object", *copy_source(request)))
        try:
            conditions.check_read(request, facts.etag, facts.mtime_ns, prefix="x-amz-copy-source-")
            start, end = _range_of_copy(request.header("x-amz-copy-source-range"), facts.size_bytes)
            with self._uploads.part(id, number) as fd:
                hashed = _copy(content, fd, start, end)
                found = note(fd, hashed)
        finally:
            content.close()
        return answer(
            xml.document(
                "CopyPartResult",
                xml.text("LastModified", xml.iso_time(found.st_mtime_ns)),
                xml.text("ETag", f'"{hashed}"'),
            )
        )

    def _about_of_part(self, request: Request, call: Call) -> tuple[str, int]:
        number = request.argument("partNumber")
        if not is_number(number) or not 1 <= int(number) <= NUMBER_MAX:
            raise S3Error(
                "InvalidArgument", f"Part number must be an integer between 1 and {NUMBER_MAX}, inclusive"
            )
        id = request.argument("uploadId")
        self._uploads.about(id, call.bucket, call.key)
        return id, int(number)

    def complete(self, request: Request, call: Call, body: bytes) -> Response:
        id = request.argument("uploadId")
        about = self._uploads.about(id, call.bucket, call.key)
        chosen = _chosen(xml.read_complete(body), self._uploads.parts(id))
        etag = _etag_of(chosen)
        with self._objects.creating(request, call) as stream:
            for part in chosen:
                self._uploads.append(id, part.number, stream.fileno())
            note(stream.fileno(), etag, about.mtime_text)
            keep(stream.fileno(), about.extras)
        self._uploads.remove(id)
        location = f"http://{request.header('host')}/{os.fsdecode(call.bucket)}/{os.fsdecode(call.key)}"
        return answer(
            xml.document(
                "CompleteMultipartUploadResult",
                xml.text("Location", location),
                *_named(call),
                xml.text("ETag", f'"{etag}"'),
            )
        )

    def abort(self, request: Request, call: Call) -> Response:
        id = request.argument("uploadId")
        self._uploads.about(id, call.bucket, call.key)
        self._uploads.remove(id)
        return Response(204)

    def list_parts(self, request: Request, call: Call) -> Response:
        id = request.argument("uploadId")
        self._uploads.about(id, call.bucket, call.key)
        after, count = _number(request, "part-number-marker", 0), _count(request, "max-parts")
        parts = [part for part in self._uploads.parts(id) if part.number > after]
        shown = parts[:count]
        said = [
            *_named(call),
            xml.text("UploadId", id),
            xml.text("PartNumberMarker", after),
            xml.text("NextPartNumberMarker", shown[-1].number if shown else 0),
            xml.text("MaxParts", count),
            xml.text("IsTruncated", "true" if len(parts) > count else "false"),
            xml.text("StorageClass", "STANDARD"),
        ]
        return answer(xml.document("ListPartsResult", *said, *map(_part_row, shown)))

    def list_uploads(self, request: Request, call: Call) -> Response:
        self._objects.check_bucket(call)
        prefix = request.argument("prefix").encode("utf-8", "surrogateescape")
        if request.argument("delimiter"):
            raise S3Error("NotImplemented", "uploads are not listed by a delimiter")
        key = request.argument("key-marker").encode("utf-8", "surrogateescape")
        id_marker, url = request.argument("upload-id-marker"), request.argument("encoding-type") == "url"
        count = _count(request, "max-uploads")
        found = [one for one in self._uploads.all_of(call.bucket) if one[1].key.startswith(prefix)]
        found = _after(found, key, id_marker)
        shown = found[:count]
        said = [
            xml.key_text("Bucket", call.bucket, url=False),
            xml.key_text("Prefix", prefix, url=url),
            xml.key_text("KeyMarker", key, url=url),
            xml.text("UploadIdMarker", id_marker),
            xml.text("MaxUploads", count),
            xml.text("IsTruncated", "true" if len(found) > count else "false"),
        ]
        if len(found) > count and shown:
            said.append(xml.key_text("NextKeyMarker", shown[-1][1].key, url=url))
            said.append(xml.text("NextUploadIdMarker", shown[-1][0]))
        if url:
            said.append(xml.text("EncodingType", "url"))
        rows = [
            xml.element(
                "Upload",
                xml.key_text("Key", about.key, url=url),
                xml.text("UploadId", id),
                xml.text("StorageClass", "STANDARD"),
                xml.text("Initiated", xml.iso_time(int(about.begun_s * 1e9))),
            )
            for id, about in shown
        ]
        return answer(xml.document("ListMultipartUploadsResult", *said, *rows))


def _chosen(wanted: list[tuple[int, str]], parts: list[Part]) -> list[Part]:
    by_number = {part.number: part for part in parts}
    chosen = []
    for number, etag in wanted:
        part = by_number.get(number)
        if part is None or part.etag != etag.strip('"'):
            raise S3Error(
                "InvalidPart",
                f"One or more of the specified parts could not be found, or has another entity tag: {number}",
            )
        chosen.append(part)
    if any(one.number >= next_.number for one, next_ in itertools.pairwise(chosen)):
        raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order.")
    if any(part.size_bytes < PART_BYTES_MIN for part in chosen[:-1]):
        raise S3Error(
            "EntityTooSmall",
            "Your proposed upload is smaller than the minimum allowed size: 5 MiB but for the last part",
        )
    return chosen


def _etag_of(parts: list[Part]) -> str:
    """As S3 makes it: the MD5 of the parts' MD5s, and how many there are."""
    try:
        digests = b"".join(binascii.unhexlify(part.etag) for part in parts)
    except binascii.Error:  # of a file system without attributes
        digests = b"".join(part.etag.encode() for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def _copy(content: Content, target: int, start: int, end: int) -> str:
    hashed = hashlib.md5(usedforsecurity=False)
    for at in range(start, end, _COPY_STEP_BYTES):
        piece = content.read(at, min(end, at + _COPY_STEP_BYTES))
        hashed.update(piece)
        os.write(target, piece)
    return hashed.hexdigest()


def _range_of_copy(header: str, size_bytes: int) -> tuple[int, int]:
    if not header:
        return 0, size_bytes
    found = conditions.range_of(header, size_bytes)
    if found is None or header.strip() != f"bytes={found[0]}-{found[1] - 1}":
        raise S3Error(
            "InvalidArgument", "x-amz-copy-source-range must be bytes=FIRST-LAST, within the source"
        )
    return found


def _named(call: Call) -> tuple[str, str]:
    return xml.key_text("Bucket", call.bucket, url=False), xml.key_text("Key", call.key, url=False)


def _part_row(part: Part) -> str:
    return xml.element(
        "Part",
        xml.text("PartNumber", part.number),
        xml.text("LastModified", xml.iso_time(part.mtime_ns)),
        xml.text("ETag", f'"{part.etag}"'),
        xml.text("Size", part.size_bytes),
    )


def _after(found: list[tuple[str, About]], key: bytes, id: str) -> list[tuple[str, About]]:
    """Those beyond the markers. Without an id all of the marker's key are behind us."""
    if not key:
        return found
    if id and (id, key) in [(one, about.key) for one, about in found]:
        at = next(n for n, (one, about) in enumerate(found) if (one, about.key) == (id, key))
        return found[at + 1 :]
    return [one for one in found if one[1].key > key]


def _number(request: Request, name: str, default: int) -> int:
    text = request.argument(name)
    if text and not is_number(text):
        raise S3Error("InvalidArgument", f"{name} is not a number")
    return int(text) if text else default


def _count(request: Request, name: str) -> int:
    return min(_number(request, name, LIST_MAX), LIST_MAX)
