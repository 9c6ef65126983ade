"""Uploads in parts, as S3's operations: what is begun, sent, listed, put together and given up."""

from __future__ import annotations

import binascii
import hashlib
import itertools
import os
import time

from headrace.http.messages import Request, Response, is_number
from headrace.s3 import checksums, conditions, xml
from headrace.s3.body import Payload
from headrace.s3.buckets import answer
from headrace.s3.checksums import ALGORITHMS, Checksum, ChecksumRequest
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import note
from headrace.s3.object_metadata import metadata_of
from headrace.s3.objects import Objects, check_put, copy_source, keep
from headrace.s3.routes import S3Call
from headrace.s3.uploads import NUMBER_MAX, About, UploadPart, Uploads
from headrace.sdk.streams import Content

PART_BYTES_MIN = 5 << 20
LIST_MAX = 1000
_COPY_STEP_BYTES = 16 << 20


class Multipart:
    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads

    def create(self, request: Request, call: S3Call) -> Response:
        mtime_text = check_put(request)
        self._objects.check_bucket(call)
        self._objects.paths.check_writable(call.path)
        if call.key.endswith(b"/"):
            raise S3Error("InvalidArgument", "a key that ends in / is a folder here, and has no bytes")
        extras = self._objects.extras.check_kept(call.path, metadata_of(request))
        wish = checksums.wish_of(request)
        id = self._uploads.begin(About(call.bucket, call.key, time.time(), mtime_text, extras, wish))
        said = xml.document("InitiateMultipartUploadResult", *_named(call), xml.text("UploadId", id))
        if not wish.algorithm:
            return answer(said)
        headers = [
            ("x-amz-checksum-algorithm", wish.algorithm.upper()),
            ("x-amz-checksum-type", wish.kind),
        ]
        return answer(said, headers)

    def wish(self, request: Request, call: S3Call) -> ChecksumRequest:
        """Which checksum the parts of the named upload have. NoSuchUpload."""
        return self._uploads.about(request.argument("uploadId"), call.bucket, call.key).wish

    def put_part(self, request: Request, call: S3Call, payload: Payload) -> Response:
        """payload: that calculates the checksum of `wish`."""
        id, number, wish = self._about_of_part(request, call)
        _check_algorithm(request, wish)
        with self._uploads.part(id, number) as fd:
            with open(fd, "wb", buffering=0, closefd=False) as out:
                for piece in payload:
                    out.write(piece)
            etag = payload.md5.hexdigest()
            known = payload.checksums()
            note(fd, etag, checksum=next((one for one in known if one.algorithm == wish.algorithm), None))
        headers = [(f"x-amz-checksum-{one.algorithm}", one.value) for one in known]
        return Response(200, [("ETag", f'"{etag}"'), *headers])

    def copy_part(self, request: Request, call: S3Call) -> Response:
        id, number, wish = self._about_of_part(request, call)
        facts, content, _ = self._objects.opened(S3Call("get_object", *copy_source(request)))
        try:
            conditions.check_read(request, facts.etag, facts.mtime_ns, prefix="x-amz-copy-source-")
            start, end = _range_of_copy(request.header("x-amz-copy-source-range"), facts.size_bytes)
            with self._uploads.part(id, number) as fd:
                hashed, checksum = _copy(content, fd, start, end, wish.algorithm)
                found = note(fd, hashed, checksum=checksum)
        finally:
            content.close()
        return answer(
            xml.document(
                "CopyPartResult",
                xml.text("LastModified", xml.iso_time(found.st_mtime_ns)),
                xml.text("ETag", f'"{hashed}"'),
                *_checksum_elements(checksum, kind=False),
            )
        )

    def _about_of_part(self, request: Request, call: S3Call) -> tuple[str, int, ChecksumRequest]:
        number = request.argument("partNumber")
        if not is_number(number) or not 1 <= int(number) <= NUMBER_MAX:
            raise S3Error(
                "InvalidArgument", f"Part number must be an integer between 1 and {NUMBER_MAX}, inclusive"
            )
        id = request.argument("uploadId")
        return id, int(number), self._uploads.about(id, call.bucket, call.key).wish

    def complete(self, request: Request, call: S3Call, body: bytes) -> Response:
        id = request.argument("uploadId")
        about = self._uploads.about(id, call.bucket, call.key)
        chosen = _chosen(xml.read_complete(body), self._uploads.parts(id))
        etag, whole = _etag_of(chosen), _checksum_of(about.wish, chosen)
        size_bytes = sum(part.size_bytes for part in chosen)
        checksums.check_completed(request, about.wish, whole, size_bytes)
        with self._objects.creating(request, call) as stream:
            for part in chosen:
                self._uploads.append(id, part.number, stream.fileno())
            note(stream.fileno(), etag, about.mtime_text, checksum=whole, parts=_runs_of(chosen))
            keep(stream.fileno(), about.extras)
        self._uploads.remove(id)
        location = f"http://{request.header('host')}/{os.fsdecode(call.bucket)}/{os.fsdecode(call.key)}"
        return answer(
            xml.document(
                "CompleteMultipartUploadResult",
                xml.text("Location", location),
                *_named(call),
                xml.text("ETag", f'"{etag}"'),
                *_checksum_elements(whole),
            )
        )

    def abort(self, request: Request, call: S3Call) -> Response:
        id = request.argument("uploadId")
        self._uploads.about(id, call.bucket, call.key)
        self._uploads.remove(id)
        return Response(204)

    def list_parts(self, request: Request, call: S3Call) -> Response:
        id = request.argument("uploadId")
        wish = self._uploads.about(id, call.bucket, call.key).wish
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
        if wish.algorithm:
            said.append(xml.text("ChecksumAlgorithm", wish.algorithm.upper()))
            said.append(xml.text("ChecksumType", wish.kind))
        return answer(xml.document("ListPartsResult", *said, *map(_part_row, shown)))

    def list_uploads(self, request: Request, call: S3Call) -> Response:
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


def _check_algorithm(request: Request, wish: ChecksumRequest) -> None:
    """InvalidRequest for a part with another checksum than the upload was begun for."""
    other = [
        one for one in ALGORITHMS if one != wish.algorithm and f"x-amz-checksum-{one}" in request.headers
    ]
    if wish.algorithm and other:
        raise S3Error(
            "InvalidRequest", f"Checksum Type mismatch occurred, expected {wish.algorithm}, actual {other[0]}"
        )


def _checksum_of(wish: ChecksumRequest, parts: list[UploadPart]) -> Checksum | None:
    """None where the upload has none, or the file system kept none of a part."""
    known = [(part.size_bytes, part.checksum) for part in parts if part.checksum is not None]
    if not wish.algorithm or len(known) < len(parts):
        return None
    return checksums.of_parts(wish, known)


def _runs_of(parts: list[UploadPart]) -> tuple[tuple[int, int], ...]:
    """As of facts.Record."""
    runs = itertools.groupby(part.size_bytes for part in parts)
    return tuple((len(list(run)), size_bytes) for size_bytes, run in runs)


def _checksum_elements(checksum: Checksum | None, *, kind: bool = True) -> list[str]:
    if checksum is None:
        return []
    elements = [xml.text(checksum.element, checksum.value)]
    return [*elements, xml.text("ChecksumType", checksum.kind)] if kind else elements


def _chosen(wanted: list[tuple[int, str, dict[str, str]]], parts: list[UploadPart]) -> list[UploadPart]:
    by_number = {part.number: part for part in parts}
    chosen = []
    for number, etag, given in wanted:
        part = by_number.get(number)
        if part is None or part.etag != etag.strip('"'):
            raise S3Error(
                "InvalidPart",
                f"One or more of the specified parts could not be found, or has another entity tag: {number}",
            )
        known = part.checksum
        if known is not None and given.get(known.element, known.value) != known.value:
            raise S3Error("InvalidPart", f"Part {number} has another checksum than the completion names")
        chosen.append(part)
    if any(one.number >= next_.number for one, next_ in itertools.pairwise(chosen)):
        raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order.")
    if any(part.size_bytes < PART_BYTES_MIN for part in chosen[:-1]):
        raise S3Error(
            "EntityTooSmall",
            "Your proposed upload is smaller than the minimum allowed size: 5 MiB but for the last part",
        )
    return chosen


def _etag_of(parts: list[UploadPart]) -> str:
    """As S3 makes it: the MD5 of the parts' MD5s, and how many there are."""
    try:
        digests = b"".join(binascii.unhexlify(part.etag) for part in parts)
    except binascii.Error:  # of a file system without attributes
        digests = b"".join(part.etag.encode() for part in parts)
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"


def _copy(content: Content, target: int, start: int, end: int, algorithm: str) -> tuple[str, Checksum | None]:
    """The MD5 in hex, and the checksum where the upload has an algorithm."""
    hashed = hashlib.md5(usedforsecurity=False)
    summed = checksums.make_checksum(algorithm) if algorithm else None
    for at in range(start, end, _COPY_STEP_BYTES):
        piece = content.read(at, min(end, at + _COPY_STEP_BYTES))
        hashed.update(piece)
        if summed is not None:
            summed.update(bytes(piece))
        os.write(target, piece)
    checksum = Checksum(algorithm, checksums.text_of(summed.digest())) if summed is not None else None
    return hashed.hexdigest(), checksum


def _range_of_copy(header: str, size_bytes: int) -> tuple[int, int]:
    if not header:
        return 0, size_bytes
    found = conditions.range_of(header, size_bytes)
    if found is None or header.strip() != f"bytes={found[0]}-{found[1] - 1}":
        raise S3Error(
            "InvalidArgument", "x-amz-copy-source-range must be bytes=FIRST-LAST, within the source"
        )
    return found


def _named(call: S3Call) -> tuple[str, str]:
    return xml.key_text("Bucket", call.bucket, url=False), xml.key_text("Key", call.key, url=False)


def _part_row(part: UploadPart) -> str:
    return xml.element(
        "Part",
        xml.text("PartNumber", part.number),
        xml.text("LastModified", xml.iso_time(part.mtime_ns)),
        xml.text("ETag", f'"{part.etag}"'),
        xml.text("Size", part.size_bytes),
        *_checksum_elements(part.checksum, kind=False),
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
