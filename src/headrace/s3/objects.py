"""Objects: read, put, copied, removed. Keys are files of the merged tree; all waiting is the caller's thread's.

A put is a file without a name until all of its bytes were checked; then it takes the key's place in one step, by the
same layer, and with the same promise, as a file that is closed on a mount (docs/semantics.md, "Writing").
"""

from __future__ import annotations

import contextlib
import functools
import mimetypes
import os
from collections.abc import Iterator
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
from headrace.http.connection import STEP_BYTES
from headrace.http.messages import Request, Response, http_date
from headrace.overlay.object_metadata import note_extras
from headrace.overlay.upper import split
from headrace.s3 import conditions, parts, xml
from headrace.s3.body import Payload
from headrace.s3.checksums import FULL_OBJECT, check_kind_of_put
from headrace.s3.errors import S3Error
from headrace.s3.object_attributes import (
    ObjectAttributes,
    facts_of,
    is_file,
    is_marked,
    mark_folder,
    note,
    parse_mtime,
    unmark_folder,
    with_noted,
)
from headrace.s3.object_metadata import MISSING, ExtrasOf, answer_headers, metadata_of, with_copied
from headrace.s3.routes import S3Call, check_key
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.node_client import CHANGED_ATTEMPTS
from headrace.sdk.streams import Content, WriteStream
from headrace.sdk.vfs_reader import is_directory

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
"""Of a put: what could be asked for and not be done truly."""
ACLS = ("", "private", "bucket-owner-full-control")
ANSWER_HEADERS = {
    "response-content-type": "Content-Type",
    "response-content-language": "Content-Language",
    "response-expires": "Expires",
    "response-cache-control": "Cache-Control",
    "response-content-disposition": "Content-Disposition",
    "response-content-encoding": "Content-Encoding",
}
_OVERRIDES = frozenset(ANSWER_HEADERS)
FOLDER_TYPE = "application/x-directory"
DEFAULT_TYPE = "binary/octet-stream"
_FOLDER = ObjectAttributes(0, 0, '"d41d8cd98f00b204e9800998ecf8427e"')
"""Of a key that ends in a slash: an empty object."""


class Objects:
    def __init__(self, paths: LocalVfs, *, asks: bool) -> None:
        """asks: as of ExtrasOf."""
        self.paths = paths
        self.extras = ExtrasOf(paths, asks=asks)

    # ------------------------------------------------------------ reading

    def get(self, request: Request, call: S3Call) -> Response:
        """Also of HEAD. Waits for the node where names or bytes are missing."""
        if call.key.endswith(b"/"):
            return self._folder(request, call)
        if request.method == "HEAD":
            facts, found, path = self.facts(call)
            extras = self.extras.of(path, found, self.paths.tree.upper.at(path))
            return self._answer(request, call, facts, None, extras)
        facts, content, extras = self.opened(call, request)
        return self._answer(request, call, facts, content, extras)

    def get_cached(self, request: Request, call: S3Call) -> Response | None:
        """As get, of what is whole in the cache; None: that may wait for the node or the disk."""
        if call.key.endswith(b"/"):
            return None
        if request.method == "HEAD":
            return self._head_cached(request, call)
        whole = self.paths.open_whole_entry(call.path)
        if whole is None and self.paths.find_cached(call.path) is not None:  # its folder is known now
            whole = self.paths.open_whole_entry(call.path)
        if whole is None:
            return None
        extras = self.extras.of_whole(call.path, whole)
        if extras is None:
            os.close(whole.fd)
            return None
        facts = facts_of(whole.entry, -1)
        return self._answer(request, call, facts, Content(facts.size_bytes, fd=whole.fd), extras)

    def _head_cached(self, request: Request, call: S3Call) -> Response | None:
        entry = self.paths.find_cached(call.path)
        if entry is None or entry.kind is not Kind.FILE:
            return None
        extras = self.extras.cached(call.path, entry, -1)
        whole = self.paths.open_whole_entry(call.path) if extras is None else None
        if whole is not None:
            entry, extras = whole.entry, self.extras.of_whole(call.path, whole)
            os.close(whole.fd)
        return None if extras is None else self._answer(request, call, facts_of(entry, -1), None, extras)

    def facts(self, call: S3Call) -> tuple[ObjectAttributes, FileStat, bytes]:
        """With what was found, and where. NoSuchKey, NoSuchBucket."""
        with self._as_key(call):
            path, found = self.paths.get(call.path)
            if is_directory(found) or not is_file(found):
                raise PathNotFoundError("")
            return facts_of(found, self.paths.tree.upper.at(path)), found, path
        raise AssertionError

    def opened(
        self, call: S3Call, request: Request | None = None
    ) -> tuple[ObjectAttributes, Content, ObjectMetadata | None]:
        """With the bytes of just that version. extras: as of ExtrasOf.of. request: which of the bytes are wanted; None:
        all."""
        with self._as_key(call):
            for attempt in range(CHANGED_ATTEMPTS):
                path, found = self.paths.get(call.path)
                if is_directory(found):
                    raise PathNotFoundError("")
                try:
                    content = self.paths.content_of(path, found)
                    if isinstance(found, Entry):
                        return facts_of(found, -1), content, self._told(path, found, content, request)
                except (FileNotFoundError, VersionChangedError):
                    if attempt + 1 == CHANGED_ATTEMPTS:
                        raise
                    continue
                now = os.fstat(content.fd)
                return facts_of(now, content.fd), content, self.extras.of(path, now, content.fd)
        raise AssertionError

    def _told(
        self, path: bytes, found: Entry, content: Content, request: Request | None
    ) -> ObjectMetadata | None:
        """Of what is not cached the extras come with the first of the bytes, which are wanted anyway."""
        wanted = (
            (0, content.size_bytes) if request is None else conditions.wanted(request, content.size_bytes)
        )
        try:
            if (
                wanted is not None
                and wanted[0] < wanted[1]
                and self.extras.come_with_bytes(path, found, content.fd)
            ):
                content.wait(wanted[0], min(wanted[1], wanted[0] + STEP_BYTES))
            return self.extras.of(path, found, content.fd)
        except BaseException:
            content.close()
            raise

    def noted(self, call: S3Call, facts: ObjectAttributes, content: Content | None) -> ObjectAttributes:
        """Add what was noted at a complete cache file when its bytes were put here: checksum and parts."""
        if facts.checksum is not None or facts.parts:
            return facts
        if content is not None:
            return with_noted(facts, content.fd) if content.fd >= 0 else facts
        whole = self.paths.open_whole_entry(call.path)
        if whole is None:
            return facts
        try:
            same = facts_of(whole.entry, -1).etag == facts.etag
            return with_noted(facts, whole.fd) if same else facts
        finally:
            os.close(whole.fd)

    @contextlib.contextmanager
    def _as_key(self, call: S3Call) -> Iterator[None]:
        """What is no file is no key."""
        try:
            yield
        except StaleIdError:
            raise
        except (PathNotFoundError, NotADirectoryPathError, IsADirectoryPathError):
            self.check_bucket(call)
            raise no_such_key() from None

    def check_bucket(self, call: S3Call) -> None:
        """NoSuchBucket."""
        found = self.paths.find(b"/" + call.bucket)[1]
        if found is None or not is_directory(found):
            raise S3Error("NoSuchBucket", "The specified bucket does not exist")

    def _folder(self, request: Request, call: S3Call) -> Response:
        with self._as_key(call):
            _, found = self.paths.get(call.path)
            if not is_directory(found):
                raise PathNotFoundError("")
        return self._answer(request, call, _FOLDER, None, ObjectMetadata())

    def _answer(
        self,
        request: Request,
        call: S3Call,
        facts: ObjectAttributes,
        content: Content | None,
        extras: ObjectMetadata | None,
    ) -> Response:
        """content None: nothing is sent. extras None: the origin could not be asked."""
        headers = request.headers
        noted: list[tuple[str, str]] = []
        try:
            conditions.check_read(request, facts.etag, facts.mtime_ns)
            asked = headers.get("range")
            if "if-range" in headers and not _is_current(headers["if-range"], facts):
                asked = None
            part = conditions.range_of(asked, facts.size_bytes) if asked is not None else None
            if "x-amz-checksum-mode" in headers or request.has("partNumber"):
                facts = self.noted(call, facts, content)
                part, noted = parts.read_as_asked(request, facts, part)
        except BaseException:
            if content is not None:
                content.close()
            raise
        start, end = part or (0, facts.size_bytes)
        answer = [
            ("Accept-Ranges", "bytes"),
            ("Last-Modified", http_date(facts.mtime_ns)),
            ("ETag", facts.etag),
            ("Content-Type", (extras and extras.headers.get("Content-Type")) or content_type(call.key)),
            *noted,
        ]
        if extras is None:
            answer.append(MISSING)
        elif not extras.is_empty:
            answer += answer_headers(extras)
        if facts.mtime_text and (extras is None or "mtime" not in extras.metadata):
            answer.append((MTIME, facts.mtime_text))
        if part is not None:
            answer.append(("Content-Range", f"bytes {start}-{end - 1}/{facts.size_bytes}"))
        if not _OVERRIDES.isdisjoint(request.arguments):
            answer = _with_overrides(request, answer)
        return Response(
            206 if part is not None else 200,
            answer,
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
            return self._put_folder(call, payload)
        extras = self.extras.check_kept(call.path, metadata_of(request))
        with self.creating(request, call) as stream:
            for piece in payload:
                stream.write(piece)
            etag = payload.md5.hexdigest()
            checksum = next(iter(payload.checksums()), None)
            note(stream.fileno(), etag, mtime_text, checksum=checksum)
            keep(stream.fileno(), extras)
        return Response(200, [("ETag", f'"{etag}"'), *(checksum.headers() if checksum is not None else ())])

    @contextlib.contextmanager
    def creating(self, request: Request, call: S3Call) -> Iterator[WriteStream]:
        """What is written within gets the key, if the request's conditions hold then."""
        path = call.path

        def check(found: FileStat | None) -> None:
            conditions.check_write(request, self._etag_there(found, path))

        conditional = "if-match" in request.headers or "if-none-match" in request.headers
        if conditional:
            check(self.paths.find(path)[1])
        try:
            stream = self.paths.create(
                path, replace=True, parents=True, commits=False, check=check if conditional else None
            )
            with stream:
                yield stream
            stream.commit()
        except PathExistsError as error:  # a file is in the place of a folder
            raise NotADirectoryPathError(error.what, why=error.why) from error

    def _etag_there(self, found: FileStat | None, path: bytes) -> str | None:
        if found is None or is_directory(found):
            return None
        return facts_of(found, self.paths.tree.upper.at(path)).etag

    def _put_folder(self, call: S3Call, payload: Payload) -> Response:
        if payload.read_all(1):
            raise S3Error("InvalidArgument", "a key that ends in / is a folder here, and has no bytes")
        self.paths.check_writable(call.path)
        self.paths.make_directories(call.path)
        mark_folder(self.paths.tree.upper.at(call.path))
        return Response(200, [("ETag", _FOLDER.etag)])

    def copy(self, request: Request, call: S3Call) -> Response:
        source = copy_source(request)
        given, replaces = metadata_of(request), is_replaced(request)
        if source == (call.bucket, call.key) and not replaces:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing it.",
            )
        mtime_text = check_put(request) if replaces else ""
        self.check_bucket(call)
        facts, content, theirs = self.opened(S3Call("get_object", *source))
        try:
            conditions.check_read(request, facts.etag, facts.mtime_ns, prefix="x-amz-copy-source-")
            extras = self._copied(request, call, theirs, given)
            with self.creating(request, call) as stream:
                content.copy_to(stream.fileno())
                etag = facts.etag.strip('"') if is_of_bytes(facts.etag) else ""
                whole = facts.checksum if facts.checksum and facts.checksum.kind == FULL_OBJECT else None
                found = note(
                    stream.fileno(), etag, mtime_text if replaces else facts.mtime_text, checksum=whole
                )
                keep(stream.fileno(), extras)
                made = facts_of(found, stream.fileno())
        finally:
            content.close()
        return Response(
            200,
            [("Content-Type", "application/xml")],
            body=xml.document(
                "CopyObjectResult",
                xml.text("LastModified", xml.iso_time(made.mtime_ns)),
                xml.text("ETag", made.etag),
            ),
        )

    def _copied(
        self, request: Request, call: S3Call, source: ObjectMetadata | None, given: ObjectMetadata
    ) -> ObjectMetadata:
        """What the copy gets. Where its origin has no place for what the source has, that is left behind, as a copy
        by any other client would."""
        if source is None:
            raise S3Error("ServiceUnavailable", "the source's metadata can't be asked for just now")
        made = with_copied(request, source, given)
        try:
            return self.extras.check_kept(call.path, made)
        except S3Error:
            if made == given or not given.is_empty:
                raise
            return ObjectMetadata()

    # ------------------------------------------------------------ tags

    def tags(self, call: S3Call) -> Response:
        """NotImplemented for those of an object that somebody else put: obstore can't ask for them."""
        _, found, path = self.facts(call)
        extras = self._tagged(found, path)
        if extras.tags is None:
            raise S3Error("NotImplemented", "the tags of an object that was not put from here are not known")
        rows = [
            xml.element("Tag", xml.text("Key", name), xml.text("Value", value))
            for name, value in sorted(extras.tags.items())
        ]
        body = xml.document("Tagging", xml.element("TagSet", *rows))
        return Response(200, [("Content-Type", "application/xml")], body=body)

    def set_tags(self, call: S3Call, tags: dict[str, str], *, status: int) -> Response:
        """The object is put anew, with these."""
        facts, found, path = self.facts(call)
        before = self._tagged(found, path)
        extras = ObjectMetadata(before.metadata, before.headers, tags)
        self.extras.check_kept(call.path, extras)
        etag = facts.etag.strip('"') if is_of_bytes(facts.etag) else ""

        def dress(fd: int) -> None:
            note(fd, etag, facts.mtime_text, checksum=facts.checksum, parts=facts.parts)
            keep(fd, extras)

        self.paths.dress(path, dress)
        if isinstance(found, Entry):
            self.extras.forget(found.id)
        return Response(status)

    def _tagged(self, found: FileStat, path: bytes) -> ObjectMetadata:
        if not self.extras.has_tags(path):
            raise S3Error("NotImplemented", "tags are not kept, as the origin has no place for them")
        extras = self.extras.of(path, found, self.paths.tree.upper.at(path))
        if extras is None:
            raise S3Error("ServiceUnavailable", "the object's tags can't be asked for just now")
        return extras

    # ------------------------------------------------------------ removing

    def delete(self, request: Request, call: S3Call) -> Response:
        self.check_bucket(call)
        self.paths.check_writable(call.path)
        if "if-match" in request.headers:
            there = self._etag_there(self.paths.find(call.path)[1], call.path)
            if there is not None:  # nothing is as good as removed, whatever was expected
                conditions.check_write(request, there)
        self.remove(call)
        return Response(204)

    def remove(self, call: S3Call) -> None:
        """Nothing there is as good as removed. Folders that are empty then go, too: keys have no folders."""
        try:
            if call.key.endswith(b"/"):
                unmark_folder(self.paths.tree.upper.at(call.path))
                self.paths.remove_directory(call.path)
            else:
                self.paths.remove(call.path)
        except (PathNotFoundError, NotADirectoryPathError, IsADirectoryPathError, DirectoryNotEmptyError):
            return
        self._remove_empty(split(call.path)[0], b"/" + call.bucket)

    def _remove_empty(self, folder: bytes, bucket: bytes) -> None:
        while folder != bucket and not is_marked(self.paths.tree.upper.at(folder)):
            try:
                self.paths.remove_directory(folder)
            except HeadraceError:
                return
            folder = split(folder)[0]

    def etag_check(self, call: S3Call, etag: str) -> None:
        """Of one of DeleteObjects, which names the ETag that the object must have."""
        there = self._etag_there(self.paths.find(call.path)[1], call.path)
        if there is None or not conditions.names(etag, there):
            raise S3Error("PreconditionFailed", "the object has another ETag")


def no_such_key() -> S3Error:
    return S3Error("NoSuchKey", "The specified key does not exist.")


def check_put(request: Request) -> str:
    """NotImplemented for what would be lost. → the time by x-amz-meta-mtime, or ""."""
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


def is_replaced(request: Request) -> bool:
    return request.header("x-amz-metadata-directive", "COPY").upper() == "REPLACE"


def keep(fd: int, extras: ObjectMetadata) -> None:
    """MetadataTooLarge for more than the cache's file system holds at a file."""
    try:
        note_extras(fd, extras)
    except OSError as error:
        raise S3Error(
            "MetadataTooLarge", f"metadata and tags don't fit beside the file: {error.strerror}"
        ) from error


def copy_source(request: Request) -> tuple[bytes, bytes]:
    """Bucket and key. S3Error."""
    raw, _, version = request.header("x-amz-copy-source").partition("?versionId=")
    if version not in ("", "null"):
        raise S3Error("NoSuchVersion", "objects have no versions here")
    bucket, _, key = (
        unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).removeprefix(b"/").partition(b"/")
    )
    if not bucket or not key:
        raise S3Error("InvalidArgument", "x-amz-copy-source must be BUCKET/KEY")
    check_key(key)
    return bucket, key


def is_of_bytes(etag: str) -> bool:
    """An MD5, or one of an upload in parts: equal bytes may have it too."""
    bare = etag.strip('"')
    return (
        len(bare) >= 32 and all(one in "0123456789abcdef" for one in bare[:32]) and bare[32:33] in ("", "-")
    )


def content_type(key: bytes) -> str:
    """By the name: what a put says is not kept."""
    if key.endswith(b"/"):
        return FOLDER_TYPE
    name = key.rpartition(b"/")[2]
    _, dot, ending = name.partition(b".")
    return _type_of(ending) if dot else DEFAULT_TYPE


@functools.lru_cache(maxsize=4096)
def _type_of(ending: bytes) -> str:
    kind, encoding = mimetypes.guess_type("x." + os.fsdecode(ending), strict=False)
    return DEFAULT_TYPE if kind is None or encoding else kind


def _is_current(if_range: str, facts: ObjectAttributes) -> bool:
    return if_range.strip() in (facts.etag, http_date(facts.mtime_ns))


def _with_overrides(request: Request, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    given = {ANSWER_HEADERS[name]: value for name, value in request.query if name in ANSWER_HEADERS}
    return [one for one in headers if one[0] not in given] + list(given.items())
