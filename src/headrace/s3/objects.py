"""Read, put, copy and delete objects. A key is a file of the merged tree; the caller's thread does all waiting.

A put is a file without a name until all of its bytes were checked. Then it replaces the key in one step, with the
durability of a file in the same upper layer that is closed on a mount (docs/semantics/writing.md).
"""

from __future__ import annotations

import contextlib
import functools
import mimetypes
import os
from collections.abc import Callable, Iterator
from urllib.parse import unquote_to_bytes

from headrace.base.errors import (
    DirectoryNotEmptyError,
    HeadraceError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    PathExistsError,
    PathNotFoundError,
    StaleIdError,
    VersionChangedError,
)
from headrace.base.model import Entry, Kind, ObjectMetadata
from headrace.base.namespace_path import split
from headrace.base.os_errors import translating_os_errors
from headrace.client.node_client import CHANGED_ATTEMPTS
from headrace.http.connection import STEP_BYTES
from headrace.http.messages import Request, Response, http_date
from headrace.overlay.merged_view import FileStat
from headrace.overlay.object_metadata import note_extras
from headrace.s3 import conditions, parts, xml
from headrace.s3.body import Payload
from headrace.s3.checksums import FULL_OBJECT, check_kind_of_put
from headrace.s3.errors import S3Error
from headrace.s3.folders import FOLDER, put_folder
from headrace.s3.object_attributes import (
    ObjectAttributes,
    attributes_of,
    is_file,
    is_marked,
    parse_mtime,
    synthetic_etag,
    unmark_directory,
    with_recorded,
    write_record,
)
from headrace.s3.object_metadata import MISSING, MetadataLookup, metadata_of, response_headers, with_copied
from headrace.s3.routes import S3Call, check_key, checked_bucket
from headrace.vfs.file_stat import is_directory
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content, WriteStream

MTIME = "x-amz-meta-mtime"
REFUSED = {
    "expires": "Expires is not kept",
    "x-amz-website-redirect-location": "redirects are not kept",
    "x-amz-object-lock-mode": "objects are not locked",
    "x-amz-object-lock-legal-hold": "objects are not locked",
    "x-amz-server-side-encryption": "nothing is encrypted here",
    "x-amz-server-side-encryption-customer-algorithm": "nothing is encrypted here",
    "x-amz-write-offset-bytes": "objects are not appended to",
}
"""Headers of a put that request something that the gateway can't do, and the reason."""
ACLS = ("", "private", "bucket-owner-full-control")
OVERRIDE_HEADERS = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}
_OVERRIDES = frozenset(OVERRIDE_HEADERS)
FOLDER_TYPE = "application/x-directory"
DEFAULT_TYPE = "binary/octet-stream"


class Objects:
    """Answers the operations of objects. `reads_origin_metadata`: see MetadataLookup."""

    def __init__(self, vfs: LocalVfs, *, reads_origin_metadata: bool) -> None:
        self.vfs = vfs
        self.metadata = MetadataLookup(vfs, reads_origin_metadata=reads_origin_metadata)

    # ------------------------------------------------------------ reading

    def get(self, request: Request, call: S3Call) -> Response:
        """Answer GET and HEAD. Waits for the node where names or bytes are missing."""
        if call.key.endswith(b"/"):
            self._check_folder(call)
            return self._respond(request, call, FOLDER, None, ObjectMetadata())
        if request.method == "HEAD":
            return self._respond(request, call, *self._described(call))
        attributes, content, metadata = self.opened(call, request)
        return self._respond(request, call, attributes, content, metadata)

    def get_cached(self, request: Request, call: S3Call) -> Response | None:
        """Answer as `get` does, from a complete cached file; None if that may wait for the node or the disk."""
        if call.key.endswith(b"/"):
            return None
        if request.method == "HEAD":
            return self._head_cached(request, call)
        cached_file = self.vfs.open_whole_entry(call.path)
        if cached_file is None and self.vfs.find_cached(call.path) is not None:  # its directory is known now
            cached_file = self.vfs.open_whole_entry(call.path)
        if cached_file is None:
            return None
        metadata = self.metadata.of_cached_file(call.path, cached_file)
        if metadata is None:
            os.close(cached_file.fd)
            return None
        attributes = attributes_of(cached_file.entry, -1)
        return self._respond(
            request, call, attributes, Content(attributes.size_bytes, fd=cached_file.fd), metadata
        )

    def _head_cached(self, request: Request, call: S3Call) -> Response | None:
        entry = self.vfs.find_cached(call.path)
        if entry is None or entry.kind is not Kind.FILE:
            return None
        metadata = self.metadata.cached(call.path, entry, -1)
        cached_file = self.vfs.open_whole_entry(call.path) if metadata is None else None
        if cached_file is not None:
            entry, metadata = cached_file.entry, self.metadata.of_cached_file(call.path, cached_file)
            os.close(cached_file.fd)
        if metadata is None:
            return None
        return self._respond(request, call, attributes_of(entry, -1), None, metadata)

    def _described(self, call: S3Call) -> tuple[ObjectAttributes, None, ObjectMetadata | None]:
        """Return the attributes, no bytes, and the metadata of one version of an object, as `opened` does. An object
        that is replaced at each attempt may lack the metadata, and have an ETag of size and time."""
        for attempt in range(CHANGED_ATTEMPTS):
            attributes, file_stat, path = self.attributes(call)
            upper = self.vfs.tree.upper.at(path)
            metadata = self.metadata.of(path, file_stat, upper)
            is_last = attempt + 1 == CHANGED_ATTEMPTS
            if is_last or isinstance(file_stat, Entry) or _is_same_file(file_stat, upper.seen()):
                return attributes, None, metadata
        raise AssertionError

    def attributes(self, call: S3Call) -> tuple[ObjectAttributes, FileStat, bytes]:
        """Return the attributes, the file stat and the path of an object that is no folder. Raises NoSuchKey or
        NoSuchBucket."""
        with self._as_key(call):
            path, file_stat = self.vfs.get(call.path)
            if call.key.endswith(b"/") or is_directory(file_stat) or not is_file(file_stat):
                raise PathNotFoundError("")
            return attributes_of(file_stat, self.vfs.tree.upper.at(path)), file_stat, path
        raise AssertionError

    def opened(
        self, call: S3Call, request: Request | None = None
    ) -> tuple[ObjectAttributes, Content, ObjectMetadata | None]:
        """Return the attributes, the bytes and the metadata of one version of an object. `request` names the range of
        bytes to send; None sends all. The metadata is None if MetadataLookup.of returns None. A folder is empty."""
        if call.key.endswith(b"/"):
            self._check_folder(call)
            return FOLDER, Content(0, fd=os.memfd_create("folder")), ObjectMetadata()
        with self._as_key(call):
            for attempt in range(CHANGED_ATTEMPTS):
                path, file_stat = self.vfs.get(call.path)
                if is_directory(file_stat):
                    raise PathNotFoundError("")
                try:
                    content = self.vfs.content_of(path, file_stat)
                    if isinstance(file_stat, Entry):
                        metadata = self._metadata_with_bytes(path, file_stat, content, request)
                        return attributes_of(file_stat, -1), content, metadata
                except (FileNotFoundError, VersionChangedError):
                    if attempt + 1 == CHANGED_ATTEMPTS:
                        raise
                    continue
                fd_stat = content.stat_at_rest()
                metadata = self.metadata.of(path, fd_stat, content.fd)
                return attributes_of(fd_stat, content.fd), content, metadata
        raise AssertionError

    def _metadata_with_bytes(
        self, path: bytes, entry: Entry, content: Content, request: Request | None
    ) -> ObjectMetadata | None:
        """Return the metadata. For an object that is not cached, wait for the first bytes first, which are sent
        anyway, as the metadata comes with them."""
        size_bytes = content.size_bytes
        span = (0, size_bytes) if request is None else conditions.range_to_send(request, size_bytes)
        start, end = span or (0, 0)
        try:
            if start < end and self.metadata.comes_with_bytes(path, entry, content.fd):
                content.wait(start, min(end, start + STEP_BYTES))
            return self.metadata.of(path, entry, content.fd)
        except BaseException:
            content.close()
            raise

    def with_recorded(
        self, call: S3Call, attributes: ObjectAttributes, content: Content | None
    ) -> ObjectAttributes:
        """Add the checksum and parts that the gateway recorded when it put the object, from its complete cache file."""
        if attributes.checksum is not None or attributes.parts:
            return attributes
        if content is not None:
            return with_recorded(attributes, content.fd) if content.fd >= 0 else attributes
        cached_file = self.vfs.open_whole_entry(call.path)
        if cached_file is None:
            return attributes
        try:
            is_same = attributes_of(cached_file.entry, -1).etag == attributes.etag
            return with_recorded(attributes, cached_file.fd) if is_same else attributes
        finally:
            os.close(cached_file.fd)

    @contextlib.contextmanager
    def _as_key(self, call: S3Call) -> Iterator[None]:
        """Raise NoSuchKey where the path is not a file."""
        try:
            yield
        except StaleIdError:
            raise
        except (PathNotFoundError, NotADirectoryPathError, IsADirectoryPathError):
            self.check_bucket(call)
            raise no_such_key() from None

    def check_bucket(self, call: S3Call) -> None:
        """Raise NoSuchBucket where the bucket does not exist."""
        file_stat = self.vfs.find(b"/" + call.bucket)[1]
        if file_stat is None or not is_directory(file_stat):
            raise S3Error("NoSuchBucket", "The specified bucket does not exist")

    def _check_folder(self, call: S3Call) -> None:
        """Raise NoSuchKey where a key that ends in a slash is not a directory."""
        with self._as_key(call):
            if not is_directory(self.vfs.get(call.path)[1]):
                raise PathNotFoundError("")

    def _respond(
        self,
        request: Request,
        call: S3Call,
        attributes: ObjectAttributes,
        content: Content | None,
        metadata: ObjectMetadata | None,
    ) -> Response:
        """Build the response; without `content` it has no body. `metadata` is None if the origin is unavailable."""
        recorded: list[tuple[str, str]] = []
        try:
            conditions.check_read(request, attributes.etag, attributes.mtime_ns)
            part = _requested_range(request, attributes)
            if "x-amz-checksum-mode" in request.headers or request.has("partNumber"):
                attributes = self.with_recorded(call, attributes, content)
                part, recorded = parts.range_and_headers(request, attributes, part)
        except BaseException:
            if content is not None:
                content.close()
            raise
        start, end = part or (0, attributes.size_bytes)
        fields = _headers_of(call, attributes, metadata) + recorded
        if part is not None:
            fields.append(("Content-Range", f"bytes {start}-{end - 1}/{attributes.size_bytes}"))
        if not _OVERRIDES.isdisjoint(request.arguments):
            fields = _with_overrides(request, fields)
        return Response(
            206 if part is not None else 200,
            fields,
            content=content,
            start=start,
            end=end,
            bodiless=request.method == "HEAD",
            length_bytes=end - start,
        )

    # ------------------------------------------------------------ writing

    def put(self, request: Request, call: S3Call, payload: Payload) -> Response:
        mtime_text = check_put(request)
        check_kind_of_put(request)
        self.check_bucket(call)
        if call.key.endswith(b"/"):
            some_bytes = next(filter(None, payload), b"")
            folder = put_folder(self.vfs, request, call, size_bytes=len(some_bytes))
            return Response(200, [("ETag", folder.etag)])
        metadata = self.metadata.check_kept(call.path, metadata_of(request))
        with self.creating(request, call) as stream:
            for piece in payload:
                stream.write(piece)
            etag = payload.md5.hexdigest()
            checksum = next(iter(payload.checksums()), None)
            write_record(stream.fileno(), etag, mtime_text, checksum=checksum)
            write_metadata(stream.fileno(), metadata)
        return Response(200, [("ETag", f'"{etag}"'), *(checksum.headers() if checksum is not None else ())])

    @contextlib.contextmanager
    def creating(self, request: Request, call: S3Call) -> Iterator[WriteStream]:
        """Yield a stream whose bytes become the object when the context ends, if the request's conditions hold then.
        Errors of the disk are NoSpaceError or StoreError."""
        path = call.path

        def check(file_stat: FileStat | None) -> None:
            conditions.check_write(request, _existing_etag(self.vfs, file_stat, path))

        conditional = "if-match" in request.headers or "if-none-match" in request.headers
        if conditional:
            check(self.vfs.find(path)[1])
        try:
            stream = self.vfs.create(
                path, replace=True, parents=True, commits=False, check=check if conditional else None
            )
            with translating_os_errors(path), stream:
                yield stream
            stream.commit()
        except PathExistsError as error:  # a name above the key is a file
            raise NotADirectoryPathError(error.what, why=error.why) from error

    def copy(self, request: Request, call: S3Call) -> Response:
        source = copy_source(request)
        requested, replaces = metadata_of(request), is_replaced(request)
        if source == (call.bucket, call.key) and not replaces:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing it.",
            )
        mtime_text = check_put(request) if replaces else ""
        self.check_bucket(call)
        attributes, content, source_metadata = self.opened(S3Call("get_object", *source))
        try:
            conditions.check_read(request, attributes.etag, attributes.mtime_ns, prefix="x-amz-copy-source-")
            if call.key.endswith(b"/"):
                return _copied(put_folder(self.vfs, request, call, size_bytes=attributes.size_bytes))
            metadata = self._copied_metadata(request, call, source_metadata, requested)
            with self.creating(request, call) as stream:
                content.copy_to(stream.fileno())
                attributes = attributes_of_copied(request, attributes, content)
                etag = attributes.etag.strip('"') if is_of_bytes(attributes.etag) else ""
                checksum = attributes.checksum
                if checksum is not None and checksum.kind != FULL_OBJECT:
                    checksum = None
                mtime_text = mtime_text if replaces else attributes.mtime_text
                file_stat = write_record(stream.fileno(), etag, mtime_text, checksum=checksum)
                write_metadata(stream.fileno(), metadata)
                copied = attributes_of(file_stat, stream.fileno())
        finally:
            content.close()
        return _copied(copied)

    def _copied_metadata(
        self, request: Request, call: S3Call, source: ObjectMetadata | None, requested: ObjectMetadata
    ) -> ObjectMetadata:
        """Return the metadata of a copy, without what its origin can't keep, as a copy by any other client would be."""
        if source is None:
            raise S3Error("ServiceUnavailable", "the source's metadata is not available now: try again")
        copied = with_copied(request, source, requested)
        try:
            return self.metadata.check_kept(call.path, copied)
        except S3Error:
            if copied == requested or not requested.is_empty:
                raise
            return ObjectMetadata()

    # ------------------------------------------------------------ tags

    def tags(self, call: S3Call) -> Response:
        """Answer GetObjectTagging. Raises NotImplemented for another client's object: obstore can't read its tags."""
        _, file_stat, path = self.attributes(call)
        metadata = self._tagged(file_stat, path)
        if metadata.tags is None:
            raise S3Error("NotImplemented", "the tags of an object that another client put are not known")
        rows = [
            xml.element("Tag", xml.text("Key", name), xml.text("Value", value))
            for name, value in sorted(metadata.tags.items())
        ]
        return xml.response(xml.document("Tagging", xml.element("TagSet", *rows)))

    def set_tags(self, call: S3Call, tags: dict[str, str], *, status: int) -> Response:
        """Put the object again, with these tags. If it is replaced meanwhile, the new object gets them."""
        for _ in range(CHANGED_ATTEMPTS - 1):
            with contextlib.suppress(VersionChangedError):
                self._set_tags(call, tags)
                return Response(status)
        self._set_tags(call, tags)
        return Response(status)

    def _set_tags(self, call: S3Call, tags: dict[str, str]) -> None:
        """Record tags at an object. Raises VersionChangedError if it is replaced or written meanwhile."""
        attributes, file_stat, path = self.attributes(call)
        current = self._tagged(file_stat, path)
        metadata = ObjectMetadata(current.metadata, current.headers, tags)
        self.metadata.check_kept(call.path, metadata)
        mtime_ns = file_stat.mtime_ns if isinstance(file_stat, Entry) else file_stat.st_mtime_ns

        def write_attributes(fd: int) -> None:
            etag = _etag_to_keep(attributes, mtime_ns, fd)
            checksum, parts = (attributes.checksum, attributes.parts) if etag else (None, ())
            write_record(fd, etag, attributes.mtime_text, checksum=checksum, parts=parts)
            write_metadata(fd, metadata)

        self.vfs.edit_attributes(path, write_attributes)
        if isinstance(file_stat, Entry):
            self.metadata.forget(file_stat.id)

    def _tagged(self, file_stat: FileStat, path: bytes) -> ObjectMetadata:
        if not self.metadata.has_tags(path):
            raise S3Error("NotImplemented", "tags are not kept, because the origin can't store them")
        metadata = self.metadata.of(path, file_stat, self.vfs.tree.upper.at(path))
        if metadata is None:
            raise S3Error("ServiceUnavailable", "the object's tags are not available now: try again")
        return metadata

    # ------------------------------------------------------------ removing

    def delete(self, request: Request, call: S3Call) -> Response:
        self.check_bucket(call)
        self.vfs.check_writable(call.path)
        if "if-match" not in request.headers:
            self.remove(call)
            return Response(204)

        def check(file_stat: FileStat | None) -> None:
            etag = _existing_etag(self.vfs, file_stat, call.path)
            if etag is not None:  # a missing object counts as deleted, whatever the request expects
                conditions.check_write(request, etag)

        check(self.vfs.find(call.path)[1])
        self.remove(call, check)
        return Response(204)

    def remove_version(self, call: S3Call, etag: str) -> None:
        """Delete a key as `remove` does, if the object has the ETag that a DeleteObjects request names for it. Raises
        PreconditionFailed."""

        def check(file_stat: FileStat | None) -> None:
            existing = _existing_etag(self.vfs, file_stat, call.path)
            if existing is None or not conditions.has_tag(etag, existing):
                raise S3Error("PreconditionFailed", "the object has another ETag")

        check(self.vfs.find(call.path)[1])
        self.remove(call, check)

    def remove(self, call: S3Call, check: Callable[[FileStat | None], None] | None = None) -> None:
        """Delete a key; a missing key counts as deleted. Then remove empty directories above it: keys have none.
        `check` is that of `LocalVfs.remove`."""
        try:
            if call.key.endswith(b"/"):
                unmark_directory(self.vfs.tree.upper.at(call.path))
                self.vfs.remove_directory(call.path)
            else:
                self.vfs.remove(call.path, check=check)
        except (PathNotFoundError, NotADirectoryPathError, IsADirectoryPathError, DirectoryNotEmptyError):
            return
        self._remove_empty(split(call.path)[0], b"/" + call.bucket)

    def _remove_empty(self, directory: bytes, bucket: bytes) -> None:
        while directory != bucket and not is_marked(self.vfs.tree.upper.at(directory)):
            try:
                self.vfs.remove_directory(directory)
            except HeadraceError:
                return
            directory = split(directory)[0]


def _existing_etag(vfs: LocalVfs, file_stat: FileStat | None, path: bytes) -> str | None:
    """Return the ETag of the object at a path; None without one."""
    if file_stat is None or is_directory(file_stat):
        return None
    return attributes_of(file_stat, vfs.tree.upper.at(path)).etag


def _is_same_file(file_stat: os.stat_result, current: os.stat_result | None) -> bool:
    """Return whether a path still has the file that was described, even if that was written since."""
    return current is not None and file_stat.st_ino == current.st_ino


def _etag_to_keep(described: ObjectAttributes, mtime_ns: int, fd: int) -> str:
    """Return the ETag of an object's file for its record, without quotes; "" for one of size and time. A file without
    a record is the described one, a copy of it, or was written by a mount. `mtime_ns` is the described file's. Raises
    VersionChangedError for the file of another object."""
    file_stat = os.fstat(fd)
    current = attributes_of(file_stat, fd)
    is_recorded = current.etag != synthetic_etag(file_stat.st_size, file_stat.st_mtime_ns)
    is_other = current.etag != described.etag if is_recorded else current.size_bytes != described.size_bytes
    if is_other:
        raise VersionChangedError("object", why="it was replaced while its tags were set", hint="try again")
    if not is_of_bytes(described.etag) or file_stat.st_mtime_ns != mtime_ns:
        return ""
    return described.etag.strip('"')


def no_such_key() -> S3Error:
    return S3Error("NoSuchKey", "The specified key does not exist.")


def check_put(request: Request) -> str:
    """Check the headers of a put, and return its x-amz-meta-mtime, or "". Raises NotImplemented for what would be
    lost."""
    headers = request.headers
    for name, why in REFUSED.items():
        if name in headers:
            raise S3Error("NotImplemented", f"{name}: {why}")
    if request.header("x-amz-acl") not in ACLS or any(name.startswith("x-amz-grant-") for name in headers):
        raise S3Error("NotImplemented", "access control lists are not kept")
    if request.header("x-amz-storage-class", "STANDARD") != "STANDARD":
        raise S3Error("InvalidStorageClass", "The storage class you specified is not valid: STANDARD is")
    mtime_text = request.header(MTIME)
    if mtime_text:
        try:
            parse_mtime(mtime_text)
        except ValueError:
            raise S3Error("InvalidArgument", f"{MTIME} must be seconds since 1970") from None
    return mtime_text


def attributes_of_copied(request: Request, opened: ObjectAttributes, content: Content) -> ObjectAttributes:
    """Return the attributes of the bytes that were copied. If a mount changed the file since it was opened, they are
    those of no version: without MD5 and checksum. Raises PreconditionFailed where the request names a version."""
    if not content.may_change:
        return opened
    current = attributes_of(os.fstat(content.fd), content.fd)
    if current.etag == opened.etag:
        return opened
    size_bytes, mtime_ns = current.size_bytes, current.mtime_ns
    changed = ObjectAttributes(size_bytes, mtime_ns, synthetic_etag(size_bytes, mtime_ns))
    conditions.check_read(request, changed.etag, mtime_ns, prefix="x-amz-copy-source-")
    return changed


def _copied(attributes: ObjectAttributes) -> Response:
    modified = xml.text("LastModified", xml.iso_time(attributes.mtime_ns))
    return xml.response(xml.document("CopyObjectResult", modified, xml.text("ETag", attributes.etag)))


def is_replaced(request: Request) -> bool:
    return request.header("x-amz-metadata-directive", "COPY").upper() == "REPLACE"


def write_metadata(fd: int, metadata: ObjectMetadata) -> None:
    """Record metadata and tags at the file. Raises MetadataTooLarge for more than the cache's file system stores at a
    file."""
    try:
        note_extras(fd, metadata)
    except OSError as error:
        raise S3Error(
            "MetadataTooLarge", f"metadata and tags don't fit beside the file: {error.strerror}"
        ) from error


def copy_source(request: Request) -> tuple[bytes, bytes]:
    """Return the bucket and key of the source. Raises S3Error."""
    raw, _, version = request.header("x-amz-copy-source").partition("?versionId=")
    if version not in ("", "null"):
        raise S3Error("NoSuchVersion", "objects have no versions here")
    bucket, _, key = (
        unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).removeprefix(b"/").partition(b"/")
    )
    if not bucket or not key:
        raise S3Error("InvalidArgument", "x-amz-copy-source must be BUCKET/KEY")
    check_key(key)
    return checked_bucket(bucket), key


def is_of_bytes(etag: str) -> bool:
    """Return whether an ETag is an MD5, or that of an upload in parts, so that a copy of the bytes may have it too."""
    bare = etag.strip('"')
    return (
        len(bare) >= 32
        and all(digit in "0123456789abcdef" for digit in bare[:32])
        and bare[32:33] in ("", "-")
    )


def content_type(key: bytes) -> str:
    """Return the content type by the name of a key, for an object whose own is not kept."""
    if key.endswith(b"/"):
        return FOLDER_TYPE
    name = key.rpartition(b"/")[2]
    _, dot, ending = name.partition(b".")
    return _type_of(ending) if dot else DEFAULT_TYPE


@functools.lru_cache(maxsize=4096)
def _type_of(ending: bytes) -> str:
    kind, encoding = mimetypes.guess_type("x." + os.fsdecode(ending), strict=False)
    return DEFAULT_TYPE if kind is None or encoding else kind


def _requested_range(request: Request, attributes: ObjectAttributes) -> tuple[int, int] | None:
    """Return the range of the Range header; None for the whole object. Raises InvalidRange."""
    headers = request.headers
    if "range" not in headers or ("if-range" in headers and not _is_current(headers["if-range"], attributes)):
        return None
    return conditions.range_of(headers["range"], attributes.size_bytes)


def _headers_of(
    call: S3Call, attributes: ObjectAttributes, metadata: ObjectMetadata | None
) -> list[tuple[str, str]]:
    """Return the headers that describe the object. `metadata` is None if the origin is unavailable."""
    fields = [
        ("Accept-Ranges", "bytes"),
        ("Last-Modified", http_date(attributes.mtime_ns)),
        ("ETag", attributes.etag),
        ("Content-Type", (metadata and metadata.headers.get("Content-Type")) or content_type(call.key)),
    ]
    if call.version:
        fields.append(("x-amz-version-id", call.version))
    if metadata is None:
        fields.append(MISSING)
    elif not metadata.is_empty:
        fields += response_headers(metadata)
    if attributes.mtime_text and (metadata is None or "mtime" not in metadata.metadata):
        fields.append((MTIME, attributes.mtime_text))
    return fields


def _is_current(if_range: str, attributes: ObjectAttributes) -> bool:
    """Return whether `If-Range` names this version. A date names none for sure, and neither does a weak ETag: two
    versions may have the same (RFC 9110, 13.1.5)."""
    return if_range.strip() == attributes.etag and not attributes.etag.startswith("W/")


def _with_overrides(request: Request, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    overrides = {OVERRIDE_HEADERS[name]: value for name, value in request.query if name in OVERRIDE_HEADERS}
    return [header for header in headers if header[0] not in overrides] + list(overrides.items())
