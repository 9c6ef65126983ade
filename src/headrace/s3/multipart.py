"""Serve uploads in parts: create, send and list parts, complete and abort."""

from __future__ import annotations

import binascii
import hashlib
import itertools
import time
from urllib.parse import quote

from headrace.http.messages import Request, Response, is_number
from headrace.s3 import checksums, conditions, xml
from headrace.s3.body import Payload
from headrace.s3.checksums import ALGORITHMS, Checksum, ChecksumRequest
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import write_record
from headrace.s3.object_metadata import metadata_of
from headrace.s3.objects import Objects, attributes_of_copied, check_put, copy_source, write_metadata
from headrace.s3.routes import S3Call
from headrace.s3.uploads import NUMBER_MAX, About, UploadPart, Uploads, append_bytes, no_such_upload
from headrace.vfs.streams import Content

PART_BYTES_MIN = 5 << 20
LIST_MAX = 1000
_COPY_STEP_BYTES = 16 << 20
Completion = list[tuple[int, str, dict[str, str]]]
"""Lists the parts that a completion names, each with its number, ETag and checksums (`xml.read_complete`)."""


class Multipart:
    """Answers the operations of uploads in parts."""

    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads

    def create(self, request: Request, call: S3Call) -> Response:
        mtime_text = check_put(request)
        self._objects.check_bucket(call)
        self._objects.vfs.check_writable(call.path)
        if call.key.endswith(b"/"):
            raise S3Error("InvalidArgument", "a key that ends in / is a folder here, and has no bytes")
        metadata = self._objects.metadata.check_kept(call.path, metadata_of(request))
        requested = checksums.checksum_request_of(request)
        id = self._uploads.begin(About(call.bucket, call.key, time.time(), mtime_text, metadata, requested))
        body = xml.document("InitiateMultipartUploadResult", *_named(call), xml.text("UploadId", id))
        if not requested.algorithm:
            return xml.response(body)
        headers = [
            ("x-amz-checksum-algorithm", requested.algorithm.upper()),
            ("x-amz-checksum-type", requested.kind),
        ]
        return xml.response(body, headers)

    def checksum_request(self, request: Request, call: S3Call) -> ChecksumRequest:
        """Return which checksum the parts of the named upload have. Raises NoSuchUpload."""
        return self._uploads.about(request.argument("uploadId"), call.bucket, call.key).checksum_request

    def put_part(self, request: Request, call: S3Call, payload: Payload) -> Response:
        """Store a part. `payload` calculates the checksum that the upload requests."""
        id, number, requested = self._upload_of_part(request, call)
        _check_algorithm(request, requested)
        with self._uploads.part(id, number) as fd:
            for piece in payload:
                append_bytes(fd, piece)
            etag = payload.md5.hexdigest()
            sums = payload.checksums()
            checksum = next((checked for checked in sums if checked.algorithm == requested.algorithm), None)
            write_record(fd, etag, checksum=checksum)
        headers = [(f"x-amz-checksum-{checked.algorithm}", checked.value) for checked in sums]
        return Response(200, [("ETag", f'"{etag}"'), *headers])

    def copy_part(self, request: Request, call: S3Call) -> Response:
        id, number, requested = self._upload_of_part(request, call)
        attributes, content, _ = self._objects.opened(S3Call("get_object", *copy_source(request)))
        try:
            conditions.check_read(request, attributes.etag, attributes.mtime_ns, prefix="x-amz-copy-source-")
            start, end = _range_of_copy(request.header("x-amz-copy-source-range"), attributes.size_bytes)
            with self._uploads.part(id, number) as fd:
                etag, checksum = _copy(content, fd, start, end, requested.algorithm)
                attributes_of_copied(request, attributes, content)
                part_stat = write_record(fd, etag, checksum=checksum)
        finally:
            content.close()
        return xml.response(
            xml.document(
                "CopyPartResult",
                xml.text("LastModified", xml.iso_time(part_stat.st_mtime_ns)),
                xml.text("ETag", f'"{etag}"'),
                *_checksum_elements(checksum, kind=False),
            )
        )

    def _upload_of_part(self, request: Request, call: S3Call) -> tuple[str, int, ChecksumRequest]:
        number = request.argument("partNumber")
        if not is_number(number) or not 1 <= int(number) <= NUMBER_MAX:
            raise S3Error(
                "InvalidArgument", f"Part number must be an integer between 1 and {NUMBER_MAX}, inclusive"
            )
        id = request.argument("uploadId")
        return id, int(number), self._uploads.about(id, call.bucket, call.key).checksum_request

    def complete(self, request: Request, call: S3Call, body: bytes) -> Response:
        completion = xml.read_complete(body)
        try:
            etag, checksum = self._complete(request, call, completion)
        except S3Error as error:
            if error.code != "NoSuchUpload":
                raise
            etag, checksum = self._completed_before(call, completion)
        scheme = "https" if request.secure else "http"
        location = f"{scheme}://{request.header('host')}{quote(request.path)}"
        return xml.response(
            xml.document(
                "CompleteMultipartUploadResult",
                xml.text("Location", location),
                *_named(call),
                xml.text("ETag", f'"{etag}"'),
                *_checksum_elements(checksum),
            )
        )

    def _complete(
        self, request: Request, call: S3Call, completion: Completion
    ) -> tuple[str, Checksum | None]:
        """Create the object of an upload, and return its ETag and checksum."""
        id = request.argument("uploadId")
        about = self._uploads.about(id, call.bucket, call.key)
        chosen = _chosen(completion, self._uploads.parts(id))
        etag = _etag_of([part.etag for part in chosen])
        checksum = _checksum_of(about.checksum_request, chosen)
        size_bytes = sum(part.size_bytes for part in chosen)
        checksums.check_completed(request, about.checksum_request, checksum, size_bytes)
        with self._objects.creating(request, call) as stream:
            for part in chosen:
                self._uploads.append(id, part, stream.fileno())
            write_record(stream.fileno(), etag, about.mtime_text, checksum=checksum, parts=_runs_of(chosen))
            write_metadata(stream.fileno(), about.metadata)
        self._uploads.remove(id)
        return etag, checksum

    def _completed_before(self, call: S3Call, completion: Completion) -> tuple[str, Checksum | None]:
        """Return the ETag and checksum of an object that consists of these parts: the client sends its completion again
        because the first answer was lost. Raises NoSuchUpload for another object."""
        etag = _etag_of([part_etag.strip('"') for _, part_etag, _ in completion])
        try:
            attributes, _, _ = self._objects.attributes(call)
        except S3Error:
            raise no_such_upload() from None
        if attributes.etag != f'"{etag}"':
            raise no_such_upload()
        return etag, attributes.checksum

    def abort(self, request: Request, call: S3Call) -> Response:
        id = request.argument("uploadId")
        self._uploads.about(id, call.bucket, call.key)
        self._uploads.remove(id)
        return Response(204)

    def list_parts(self, request: Request, call: S3Call) -> Response:
        id = request.argument("uploadId")
        requested = self._uploads.about(id, call.bucket, call.key).checksum_request
        after, count = _number(request, "part-number-marker", 0), _count(request, "max-parts")
        parts = [part for part in self._uploads.parts(id) if part.number > after]
        shown = parts[:count]
        header = [
            *_named(call),
            xml.text("UploadId", id),
            xml.text("PartNumberMarker", after),
            xml.text("NextPartNumberMarker", shown[-1].number if shown else 0),
            xml.text("MaxParts", count),
            xml.text("IsTruncated", "true" if len(parts) > count else "false"),
            xml.text("StorageClass", "STANDARD"),
        ]
        if requested.algorithm:
            header.append(xml.text("ChecksumAlgorithm", requested.algorithm.upper()))
            header.append(xml.text("ChecksumType", requested.kind))
        return xml.response(xml.document("ListPartsResult", *header, *map(_part_row, shown)))

    def list_uploads(self, request: Request, call: S3Call) -> Response:
        self._objects.check_bucket(call)
        prefix = request.argument("prefix").encode("utf-8", "surrogateescape")
        if request.argument("delimiter"):
            raise S3Error("NotImplemented", "uploads are not listed by a delimiter")
        key = request.argument("key-marker").encode("utf-8", "surrogateescape")
        id_marker, url = request.argument("upload-id-marker"), request.argument("encoding-type") == "url"
        count = _count(request, "max-uploads")
        uploads = [row for row in self._uploads.all_of(call.bucket) if row[1].key.startswith(prefix)]
        uploads = _after(uploads, key, id_marker)
        shown = uploads[:count]
        header = [
            xml.key_text("Bucket", call.bucket, url=False),
            xml.key_text("Prefix", prefix, url=url),
            xml.key_text("KeyMarker", key, url=url),
            xml.text("UploadIdMarker", id_marker),
            xml.text("MaxUploads", count),
            xml.text("IsTruncated", "true" if len(uploads) > count else "false"),
        ]
        if len(uploads) > count and shown:
            header.append(xml.key_text("NextKeyMarker", shown[-1][1].key, url=url))
            header.append(xml.text("NextUploadIdMarker", shown[-1][0]))
        if url:
            header.append(xml.text("EncodingType", "url"))
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
        return xml.response(xml.document("ListMultipartUploadsResult", *header, *rows))


def _check_algorithm(request: Request, requested: ChecksumRequest) -> None:
    """Raise InvalidRequest for a part with another checksum than the upload requests."""
    named = [name for name in ALGORITHMS if f"x-amz-checksum-{name}" in request.headers]
    other = next((name for name in named if name != requested.algorithm), None)
    if requested.algorithm and other:
        why = f"Checksum Type mismatch occurred, expected {requested.algorithm}, actual {other}"
        raise S3Error("InvalidRequest", why)


def _checksum_of(requested: ChecksumRequest, parts: list[UploadPart]) -> Checksum | None:
    """Return the object's checksum; None if the upload requests none, or the file system could not store a part's."""
    sized = [(part.size_bytes, part.checksum) for part in parts if part.checksum is not None]
    if not requested.algorithm or len(sized) < len(parts):
        return None
    return checksums.checksum_of_parts(requested, sized)


def _runs_of(parts: list[UploadPart]) -> tuple[tuple[int, int], ...]:
    """Return the counts and sizes of the parts, as in object_attributes.Record."""
    runs = itertools.groupby(part.size_bytes for part in parts)
    return tuple((len(list(run)), size_bytes) for size_bytes, run in runs)


def _checksum_elements(checksum: Checksum | None, *, kind: bool = True) -> list[str]:
    if checksum is None:
        return []
    elements = [xml.text(checksum.element, checksum.value)]
    return [*elements, xml.text("ChecksumType", checksum.kind)] if kind else elements


def _chosen(completion: Completion, parts: list[UploadPart]) -> list[UploadPart]:
    by_number = {part.number: part for part in parts}
    chosen = []
    for number, etag, expected in completion:
        part = by_number.get(number)
        if part is None or part.etag != etag.strip('"'):
            raise S3Error(
                "InvalidPart",
                f"One or more of the specified parts could not be found, or has another entity tag: {number}",
            )
        checksum = part.checksum
        if checksum is not None and expected.get(checksum.element, checksum.value) != checksum.value:
            raise S3Error("InvalidPart", f"Part {number} has another checksum than the completion names")
        chosen.append(part)
    if any(part.number >= next_.number for part, next_ in itertools.pairwise(chosen)):
        raise S3Error("InvalidPartOrder", "The list of parts was not in ascending order.")
    if any(part.size_bytes < PART_BYTES_MIN for part in chosen[:-1]):
        raise S3Error(
            "EntityTooSmall",
            "Your proposed upload is smaller than the minimum allowed size: 5 MiB but for the last part",
        )
    return chosen


def _etag_of(etags: list[str]) -> str:
    """Return the ETag as S3 computes it: the MD5 of the parts' MD5s, and the number of parts. `etags` are those of the
    parts, without quotes."""
    try:
        digests = b"".join(map(binascii.unhexlify, etags))
    except ValueError:  # of a file system without attributes
        digests = "".join(etags).encode("utf-8", "surrogateescape")
    return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(etags)}"


def _copy(content: Content, target: int, start: int, end: int, algorithm: str) -> tuple[str, Checksum | None]:
    """Copy a range of the source. Return its MD5 in hex, and its checksum where the upload requests one. Raises
    ServiceUnavailable if the source ends before."""
    md5 = hashlib.md5(usedforsecurity=False)
    hasher = checksums.make_checksum(algorithm) if algorithm else None
    for offset in range(start, end, _COPY_STEP_BYTES):
        step_end = min(end, offset + _COPY_STEP_BYTES)
        piece = content.read(offset, step_end)
        if len(piece) < step_end - offset:
            raise S3Error("ServiceUnavailable", "the source was truncated while it was copied: try again")
        md5.update(piece)
        if hasher is not None:
            hasher.update(bytes(piece))
        append_bytes(target, piece)
    checksum = Checksum(algorithm, checksums.text_of(hasher.digest())) if hasher is not None else None
    return md5.hexdigest(), checksum


def _range_of_copy(header: str, size_bytes: int) -> tuple[int, int]:
    if not header:
        return 0, size_bytes
    span = conditions.range_of(header, size_bytes)
    if span is None or header.strip() != f"bytes={span[0]}-{span[1] - 1}":
        raise S3Error(
            "InvalidArgument", "x-amz-copy-source-range must be bytes=FIRST-LAST, within the source"
        )
    return span


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


def _after(uploads: list[tuple[str, About]], key: bytes, id: str) -> list[tuple[str, About]]:
    """Return the uploads beyond the markers, whose own upload may have ended. A key marker without an id skips all
    uploads of that key."""
    if not key:
        return uploads
    return [
        (upload_id, about)
        for upload_id, about in uploads
        if about.key > key or (id and about.key == key and upload_id > id)
    ]


def _number(request: Request, name: str, default: int) -> int:
    text = request.argument(name)
    if text and not is_number(text):
        raise S3Error("InvalidArgument", f"{name} is not a number")
    return int(text) if text else default


def _count(request: Request, name: str) -> int:
    return min(_number(request, name, LIST_MAX), LIST_MAX)
