"""Decode user metadata, content headers and tags of requests, encode those of responses, and find what an origin can
store.

Metadata that a gateway put, and metadata that an origin sent with an object's bytes, is recorded at the file. For an
object that is not cached the node asks the origin, and this process keeps the reply for a while.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from urllib.parse import parse_qsl

from headrace.base.beneath import SafePath
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId, ObjectMetadata
from headrace.base.write_modes import WriteMode
from headrace.client.local import WholeFile
from headrace.http.messages import Request
from headrace.overlay.merged_view import FileStat
from headrace.overlay.object_metadata import extras_of
from headrace.s3.errors import S3Error
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.sealed_paths import NO_ID, SealedEntry

METADATA = "x-amz-meta-"
METADATA_BYTES_MAX = 2048
TAGS_MAX, TAG_NAME_MAX, TAG_VALUE_MAX = 10, 128, 256
HEADERS = {
    "content-type": "Content-Type",
    "content-encoding": "Content-Encoding",
    "content-disposition": "Content-Disposition",
    "content-language": "Content-Language",
    "cache-control": "Cache-Control",
}
"""Content headers of requests and origins. Expires is not among them: the clients of origins don't support it."""
MISSING = ("x-amz-missing-meta", "1")
"""Header of a response whose metadata could not be requested from the origin."""
_TAG = re.compile(r"[\w\s+\-=.:/@]*")
"""Matches the characters that S3 allows in tags. Others would be refused when the object is persisted."""
NOTHING: frozenset[str] = frozenset()
KEPT_BY = {"s3": frozenset(("metadata", "tags")), "gs": frozenset(("metadata",))}
"""Kinds of metadata that an origin can store, by the scheme of its URL."""
MOUNTS_S = 1.0
"""Seconds for which the mounts that the node named are used."""
DIRECTORIES_MAX = 4096
"""Most directories for which it is remembered what their origin can store."""
REMEMBERED_S = 600.0
"""Seconds for which metadata that the origin sent is used."""
REMEMBERED_MAX = 100_000
"""Most objects whose metadata is remembered."""


def metadata_of(request: Request) -> ObjectMetadata:
    """Return the metadata, headers and tags of a put or copy. Raises InvalidArgument, InvalidTag or
    MetadataTooLarge."""
    metadata = {
        name.removeprefix(METADATA): value
        for name, value in request.headers.items()
        if name.startswith(METADATA)
    }
    if sum(len(name) + len(value) for name, value in metadata.items()) > METADATA_BYTES_MAX:
        raise S3Error(
            "MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size: 2 KiB"
        )
    headers = {HEADERS[name]: value for name, value in request.headers.items() if name in HEADERS and value}
    encodings = [item.strip() for item in headers.get("Content-Encoding", "").split(",")]
    encoding = ", ".join(item for item in encodings if item not in ("", "aws-chunked"))
    headers.pop("Content-Encoding", None)
    if encoding:
        headers["Content-Encoding"] = encoding
    for name, value in {**metadata, **headers}.items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise S3Error("InvalidArgument", f"{name}: metadata must be printable ASCII")
    return ObjectMetadata(metadata, headers, tags_of_header(request.header("x-amz-tagging")))


def tags_of_header(text: str) -> dict[str, str]:
    """Parse a=b&c=d, percent-encoded. Raises InvalidTag."""
    pairs = parse_qsl(text, keep_blank_values=True)
    return checked_tags(pairs)


def checked_tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """Return tags as a dictionary, if S3 allows them. Raises InvalidTag."""
    tags = dict(pairs)
    if len(tags) != len(pairs):
        raise S3Error("InvalidTag", "There are duplicate tag keys in your request.")
    if len(tags) > TAGS_MAX:
        raise S3Error("InvalidTag", "Object tags cannot be greater than 10")
    for name, value in tags.items():
        is_allowed = _TAG.fullmatch(name) and _TAG.fullmatch(value) and not name.lower().startswith("aws:")
        if not is_allowed:
            raise S3Error(
                "InvalidTag", f"tag {name!r}: letters, digits, spaces and + - = . _ : / @ are allowed"
            )
        if not 0 < len(name) <= TAG_NAME_MAX or len(value) > TAG_VALUE_MAX:
            raise S3Error("InvalidTag", "The TagKey or TagValue you have provided is invalid")
    return tags


def with_copied(request: Request, source: ObjectMetadata, requested: ObjectMetadata) -> ObjectMetadata:
    """Return the metadata of a copy: the source's or the request's, as its directives name. Raises InvalidArgument."""
    replaced = {}
    for name in ("x-amz-metadata-directive", "x-amz-tagging-directive"):
        word = request.header(name, "COPY").upper()
        if word not in ("COPY", "REPLACE"):
            raise S3Error("InvalidArgument", f"{name} must be COPY or REPLACE")
        replaced[name] = word == "REPLACE"
    base = requested if replaced["x-amz-metadata-directive"] else source
    tags = requested.tags if replaced["x-amz-tagging-directive"] else source.tags
    return ObjectMetadata(base.metadata, base.headers, tags)


def response_headers(metadata: ObjectMetadata) -> list[tuple[str, str]]:
    """Return the headers of a response, without Content-Type."""
    headers = [(METADATA + name, value) for name, value in metadata.metadata.items()]
    headers += [(name, value) for name, value in metadata.headers.items() if name != "Content-Type"]
    if metadata.tags:
        headers.append(("x-amz-tagging-count", str(len(metadata.tags))))
    return headers


class MetadataLookup:
    """Finds the metadata of objects, and whether a path's origin can keep metadata. `reads_origin_metadata` is the
    setting s3_metadata; without it no metadata is read from origins."""

    def __init__(self, vfs: LocalVfs, *, reads_origin_metadata: bool) -> None:
        self._vfs = vfs
        self._reads_origin_metadata = reads_origin_metadata
        self._lock = threading.Lock()
        self._described: OrderedDict[FileId, tuple[float, ObjectMetadata]] = OrderedDict()
        self._mounts: tuple[float, dict[str, str]] = (0.0, {})
        self._kept_by_directory: dict[bytes, frozenset[str]] = {}

    def check_kept(self, path: bytes, metadata: ObjectMetadata) -> ObjectMetadata:
        """Return the metadata that is kept of a put to the path. Raises NotImplemented for metadata that would be lost.
        Where the origin keeps none, the Content-Type, which nearly every client sends, is dropped."""
        self._vfs.check_writable(path)
        if not all(
            (name + value).isascii()
            for name, value in [*metadata.metadata.items(), *metadata.headers.items()]
        ):
            raise S3Error("NotImplemented", "metadata that is not ASCII can be read, but not be put")
        kept = KEPT_BY["s3"] if self._is_local(path) else self._kept(path)
        if "metadata" in kept and ("tags" in kept or not metadata.tags):
            return metadata
        lost = [f"{METADATA}{name}" for name in metadata.metadata if name not in ("mtime", "md5chksum")]
        lost += [name for name in metadata.headers if name != "Content-Type"]
        if "metadata" in kept:
            lost = []
        if metadata.tags:
            lost.append("tags")
        if lost:
            raise S3Error("NotImplemented", f"{', '.join(lost)}: not kept, because the origin can't store it")
        return ObjectMetadata()

    def cached(self, path: bytes, entry: Entry, fd: int) -> ObjectMetadata | None:
        """Return the metadata without waiting; None if only the origin has it. `fd` is the cache file, or -1."""
        if not self._has_metadata(path):
            return ObjectMetadata()
        if fd >= 0:
            recorded = extras_of(fd, os.fstat(fd))
            if recorded is not None:
                return recorded
        with self._lock:
            described = self._described.get(entry.id)
        return described[1] if described is not None and time.monotonic() < described[0] else None

    def of_cached_file(self, path: bytes, cached_file: WholeFile) -> ObjectMetadata | None:
        """Return the metadata of a complete cached file, as `cached` does."""
        if cached_file.metadata is not None:
            return cached_file.metadata if self._has_metadata(path) else ObjectMetadata()
        return self.cached(path, cached_file.entry, cached_file.fd)

    def of(self, path: bytes, file_stat: FileStat, target: SafePath | int) -> ObjectMetadata | None:
        """Return the metadata, and wait for the origin if this process does not have it yet; None if the origin is
        unavailable. `target` is a file of the upper layer or, by a descriptor, of the cache; -1 for none."""
        if not isinstance(file_stat, Entry):
            return extras_of(target, file_stat) or ObjectMetadata()
        cached = self.cached(path, file_stat, target if isinstance(target, int) else -1)
        if cached is not None:
            return cached
        try:
            described = self._vfs.client.describe(self._id_at_origin(file_stat))
        except HeadraceError:
            return None
        if described is None:
            return None
        if file_stat.id == NO_ID:
            return described  # all files of seals that the node does not know have this id
        with self._lock:
            self._described[file_stat.id] = time.monotonic() + REMEMBERED_S, described
            if len(self._described) > REMEMBERED_MAX:
                self._described.popitem(last=False)
        return described

    def _id_at_origin(self, entry: Entry) -> FileId:
        """Return the id by which the node knows a file, which it may not have for a file of a seal yet. Raises
        VersionChangedError if the origin has another version."""
        if isinstance(entry, SealedEntry) and entry.source:
            return self._vfs.sealed.at_origin(entry).id
        return entry.id

    def comes_with_bytes(self, path: bytes, entry: Entry, fd: int) -> bool:
        """Return whether the metadata is missing, and arrives with the first bytes that are cached."""
        return fd < 0 and self.cached(path, entry, fd) is None

    def forget(self, id: FileId) -> None:
        with self._lock:
            self._described.pop(id, None)

    def has_tags(self, path: bytes) -> bool:
        return self._is_local(path) or "tags" in self._kept(path)

    def _is_local(self, path: bytes) -> bool:
        return self._vfs.tree.modes.of(path) is WriteMode.LOCAL

    def _has_metadata(self, path: bytes) -> bool:
        return bool(self._kept(path))

    def _kept(self, path: bytes) -> frozenset[str]:
        """Return what the origin of a file's path can keep: metadata, tags."""
        if not self._reads_origin_metadata:
            return NOTHING
        now_s = time.monotonic()
        if now_s >= self._mounts[0]:
            self._mounts = now_s + MOUNTS_S, self._vfs.client.mounts()
            self._kept_by_directory = {}
        directory = path[: path.rfind(b"/") + 1]
        kept = self._kept_by_directory.get(directory)
        if kept is None:
            text = os.fsdecode(self._vfs.sealed.plain_path(directory).rstrip(b"/") + b"/")
            mounts = [
                (len(path), url)
                for path, url in self._mounts[1].items()
                if text.startswith(path.rstrip("/") + "/")
            ]
            kept = KEPT_BY.get(max(mounts, default=(0, ""))[1].partition(":")[0], NOTHING)
            if len(self._kept_by_directory) < DIRECTORIES_MAX:
                self._kept_by_directory[directory] = kept
        return kept
