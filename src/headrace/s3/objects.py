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
from headrace.base.model import Entry, Kind
from headrace.http.messages import Request, Response, http_date
from headrace.layer.upper import split
from headrace.s3 import conditions, xml
from headrace.s3.body import Payload
from headrace.s3.errors import S3Error
from headrace.s3.facts import (
    Facts,
    facts_of,
    is_file,
    is_marked,
    mark_folder,
    note,
    parse_mtime,
    unmark_folder,
)
from headrace.s3.routes import Call, check_key
from headrace.sdk.client import CHANGED_ATTEMPTS
from headrace.sdk.paths import Paths, is_directory
from headrace.sdk.streams import Content, WriteStream
from headrace.sdk.tree import Seen

MTIME = "x-amz-meta-mtime"
METADATA = (MTIME, "x-amz-meta-md5chksum")
"""User metadata that is taken: the time, and rclone's checksum of uploads in parts, which is dropped: where it is not
told, rclone does without."""
REFUSED = {
    "content-disposition": "Content-Disposition is not kept",
    "content-language": "Content-Language is not kept",
    "cache-control": "Cache-Control is not kept",
    "expires": "Expires is not kept",
    "x-amz-tagging": "tags are not kept",
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
FOLDER_TYPE = "application/x-directory"
DEFAULT_TYPE = "binary/octet-stream"
_FOLDER = Facts(0, 0, '"d41d8cd98f00b204e9800998ecf8427e"')
"""Of a key that ends in a slash: an empty object."""


class Objects:
    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    # ------------------------------------------------------------ reading

    def get(self, request: Request, call: Call) -> Response:
        """Also of HEAD. Waits for the node where names or bytes are missing."""
        if call.key.endswith(b"/"):
            return self._folder(request, call)
        if request.method == "HEAD":
            facts, _ = self.facts(call)
            return self._answer(request, call, facts, None)
        facts, content = self.opened(call)
        return self._answer(request, call, facts, content)

    def get_cached(self, request: Request, call: Call) -> Response | None:
        """As get, of what is whole in the cache; None: that may wait for the node or the disk."""
        if call.key.endswith(b"/"):
            return None
        found = self.paths.find_cached(call.path)
        if found is None or found.kind is not Kind.FILE:
            return None
        facts = facts_of(found, b"")
        if request.method == "HEAD":
            return self._answer(request, call, facts, None)
        cached = self.paths.client.complete_path(found.id)
        if cached is None:
            return None
        try:
            fd = os.open(cached, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        self.paths.client.touch(found.id)
        return self._answer(request, call, facts, Content(facts.size_bytes, fd=fd))

    def facts(self, call: Call) -> tuple[Facts, Seen]:
        """NoSuchKey, NoSuchBucket."""
        with self._as_key(call):
            path, found = self.paths.get(call.path)
            if is_directory(found) or not is_file(found):
                raise PathNotFoundError("")
            return facts_of(found, self.paths.tree.upper.at(path)), found
        raise AssertionError

    def opened(self, call: Call) -> tuple[Facts, Content]:
        """As facts, with the bytes of just that version."""
        with self._as_key(call):
            for attempt in range(CHANGED_ATTEMPTS):
                path, found = self.paths.get(call.path)
                if is_directory(found):
                    raise PathNotFoundError("")
                try:
                    content = self.paths.content_of(path, found)
                except (FileNotFoundError, VersionChangedError):
                    if attempt + 1 == CHANGED_ATTEMPTS:
                        raise
                    continue
                if isinstance(found, Entry):
                    return facts_of(found, b""), content
                return facts_of(os.fstat(content.fd), content.fd), content
        raise AssertionError

    @contextlib.contextmanager
    def _as_key(self, call: Call) -> Iterator[None]:
        """What is no file is no key."""
        try:
            yield
        except StaleIdError:
            raise
        except (PathNotFoundError, NotADirectoryPathError, IsADirectoryPathError):
            self.check_bucket(call)
            raise no_such_key() from None

    def check_bucket(self, call: Call) -> None:
        """NoSuchBucket."""
        found = self.paths.find(b"/" + call.bucket)[1]
        if found is None or not is_directory(found):
            raise S3Error("NoSuchBucket", "The specified bucket does not exist")

    def _folder(self, request: Request, call: Call) -> Response:
        with self._as_key(call):
            _, found = self.paths.get(call.path)
            if not is_directory(found):
                raise PathNotFoundError("")
        return self._answer(request, call, _FOLDER, None)

    def _answer(self, request: Request, call: Call, facts: Facts, content: Content | None) -> Response:
        """content None: nothing is sent."""
        headers = request.headers
        try:
            conditions.check_read(request, facts.etag, facts.mtime_ns)
            asked = headers.get("range")
            if "if-range" in headers and not _is_current(headers["if-range"], facts):
                asked = None
            part = conditions.range_of(asked, facts.size_bytes) if asked is not None else None
        except BaseException:
            if content is not None:
                content.close()
            raise
        start, end = part or (0, facts.size_bytes)
        answer = [
            ("Accept-Ranges", "bytes"),
            ("Last-Modified", http_date(facts.mtime_ns)),
            ("ETag", facts.etag),
            ("Content-Type", content_type(call.key)),
        ]
        if facts.mtime_text:
            answer.append((MTIME, facts.mtime_text))
        if part is not None:
            answer.append(("Content-Range", f"bytes {start}-{end - 1}/{facts.size_bytes}"))
        if request.query:
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

    def put(self, request: Request, call: Call, payload: Payload) -> Response:
        mtime_text = check_put(request)
        self.check_bucket(call)
        if call.key.endswith(b"/"):
            return self._put_folder(call, payload)
        with self.creating(request, call) as stream:
            for piece in payload:
                stream.write(piece)
            etag = payload.md5.hexdigest()
            note(stream.fileno(), etag, mtime_text)
        return Response(200, [("ETag", f'"{etag}"'), *payload.checksum_headers()])

    @contextlib.contextmanager
    def creating(self, request: Request, call: Call) -> Iterator[WriteStream]:
        """What is written within gets the key, if the request's conditions hold then."""
        path = call.path

        def check(found: Seen | None) -> None:
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

    def _etag_there(self, found: Seen | None, path: bytes) -> str | None:
        if found is None or is_directory(found):
            return None
        return facts_of(found, self.paths.tree.upper.at(path)).etag

    def _put_folder(self, call: Call, payload: Payload) -> Response:
        if payload.read_all(1):
            raise S3Error("InvalidArgument", "a key that ends in / is a folder here, and has no bytes")
        self.paths.check_writable(call.path)
        self.paths.make_directories(call.path)
        mark_folder(self.paths.tree.upper.at(call.path))
        return Response(200, [("ETag", _FOLDER.etag)])

    def copy(self, request: Request, call: Call) -> Response:
        source = copy_source(request)
        replaces = request.header("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
        if source == (call.bucket, call.key) and not replaces:
            raise S3Error(
                "InvalidRequest",
                "This copy request is illegal because it is trying to copy an object to itself without changing it.",
            )
        mtime_text = check_put(request) if replaces else ""
        self.check_bucket(call)
        facts, content = self.opened(Call("get_object", *source))
        try:
            conditions.check_read(request, facts.etag, facts.mtime_ns, prefix="x-amz-copy-source-")
            with self.creating(request, call) as stream:
                content.copy_to(stream.fileno())
                etag = facts.etag.strip('"') if is_of_bytes(facts.etag) else ""
                found = note(stream.fileno(), etag, mtime_text if replaces else facts.mtime_text)
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

    # ------------------------------------------------------------ removing

    def delete(self, request: Request, call: Call) -> Response:
        self.check_bucket(call)
        self.paths.check_writable(call.path)
        if "if-match" in request.headers:
            there = self._etag_there(self.paths.find(call.path)[1], call.path)
            if there is not None:  # nothing is as good as removed, whatever was expected
                conditions.check_write(request, there)
        self.remove(call)
        return Response(204)

    def remove(self, call: Call) -> None:
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

    def etag_check(self, call: Call, etag: str) -> None:
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
    encodings = [one.strip() for one in request.header("content-encoding").split(",")]
    if any(one not in ("", "aws-chunked") for one in encodings):
        raise S3Error("NotImplemented", "content-encoding: Content-Encoding is not kept")
    if request.header("x-amz-acl") not in ACLS or any(name.startswith("x-amz-grant-") for name in headers):
        raise S3Error("NotImplemented", "access control lists are not kept")
    if request.header("x-amz-storage-class", "STANDARD") != "STANDARD":
        raise S3Error("InvalidStorageClass", "The storage class you specified is not valid: STANDARD is")
    for name in headers:
        if name.startswith("x-amz-meta-") and name not in METADATA:
            raise S3Error("NotImplemented", f"{name}: user metadata is not kept, but for {MTIME}")
    mtime_text = request.header(MTIME)
    if mtime_text:
        try:
            parse_mtime(mtime_text)
        except ValueError:
            raise S3Error("InvalidArgument", f"{MTIME} must be seconds since 1970") from None
    return mtime_text


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


def _is_current(if_range: str, facts: Facts) -> bool:
    return if_range.strip() in (facts.etag, http_date(facts.mtime_ns))


def _with_overrides(request: Request, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    given = {ANSWER_HEADERS[name]: value for name, value in request.query if name in ANSWER_HEADERS}
    return [one for one in headers if one[0] not in given] + list(given.items())
