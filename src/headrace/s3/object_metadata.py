"""User metadata, content headers and tags of objects: from requests, to answers, and where an origin can hold them.

What was put by a gateway is noted at the file, and so is what an origin tells with an object's bytes. Of an object that
is not cached the node asks the origin, and this process remembers the answer for a while.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from urllib.parse import parse_qsl, urlencode

from headrace.base.beneath import SafePath
from headrace.base.errors import HeadraceError
from headrace.base.model import Entry, FileId, ObjectMetadata
from headrace.base.write_modes import WriteMode
from headrace.http.messages import Request
from headrace.overlay.object_metadata import extras_of
from headrace.s3.errors import S3Error
from headrace.sdk.local import WholeFile
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat

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
"""As requests and origins name them. Expires is not among them: origins' clients don't take it."""
MISSING = ("x-amz-missing-meta", "1")
"""Of an answer whose metadata could not be asked for."""
_TAG = re.compile(r"[\w\s+\-=.:/@]*")
"""What S3 takes in tags; others would be refused when the object is persisted."""
NOTHING: frozenset[str] = frozenset()
KEPT_BY = {"s3": frozenset(("metadata", "tags")), "gs": frozenset(("metadata",))}
"""By the scheme of the origin's URL."""
MOUNTS_S = 1.0
FOLDERS_MAX = 4096
REMEMBERED_S = 600.0
REMEMBERED_MAX = 100_000


def metadata_of(request: Request) -> ObjectMetadata:
    """Of a put or copy; tags by header. InvalidArgument, InvalidTag, MetadataTooLarge."""
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
    encodings = [one.strip() for one in headers.get("Content-Encoding", "").split(",")]
    encoding = ", ".join(one for one in encodings if one not in ("", "aws-chunked"))
    headers.pop("Content-Encoding", None)
    if encoding:
        headers["Content-Encoding"] = encoding
    for name, value in {**metadata, **headers}.items():
        if not (name + value).isascii() or not (name + value).isprintable():
            raise S3Error("InvalidArgument", f"{name}: metadata must be printable ASCII")
    return ObjectMetadata(metadata, headers, tags_of_header(request.header("x-amz-tagging")))


def tags_of_header(text: str) -> dict[str, str]:
    """a=b&c=d, percent-encoded. InvalidTag."""
    pairs = parse_qsl(text, keep_blank_values=True)
    return checked_tags(pairs)


def checked_tags(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """InvalidTag."""
    tags = dict(pairs)
    if len(tags) != len(pairs):
        raise S3Error("InvalidTag", "There are duplicate tag keys in your request.")
    if len(tags) > TAGS_MAX:
        raise S3Error("InvalidTag", "Object tags cannot be greater than 10")
    for name, value in tags.items():
        signs = _TAG.fullmatch(name) and _TAG.fullmatch(value) and not name.lower().startswith("aws:")
        if not signs:
            raise S3Error(
                "InvalidTag", f"tag {name!r}: letters, digits, spaces and + - = . _ : / @ are allowed"
            )
        if not 0 < len(name) <= TAG_NAME_MAX or len(value) > TAG_VALUE_MAX:
            raise S3Error("InvalidTag", "The TagKey or TagValue you have provided is invalid")
    return tags


def with_copied(request: Request, source: ObjectMetadata, given: ObjectMetadata) -> ObjectMetadata:
    """Of a copy: by its directives the source's, or those of the request. InvalidArgument."""
    replaced = {}
    for name in ("x-amz-metadata-directive", "x-amz-tagging-directive"):
        word = request.header(name, "COPY").upper()
        if word not in ("COPY", "REPLACE"):
            raise S3Error("InvalidArgument", f"{name} must be COPY or REPLACE")
        replaced[name] = word == "REPLACE"
    about = given if replaced["x-amz-metadata-directive"] else source
    tags = given.tags if replaced["x-amz-tagging-directive"] else source.tags
    return ObjectMetadata(about.metadata, about.headers, tags)


def answer_headers(extras: ObjectMetadata) -> list[tuple[str, str]]:
    """Beside Content-Type."""
    found = [(METADATA + name, value) for name, value in extras.metadata.items()]
    found += [(name, value) for name, value in extras.headers.items() if name != "Content-Type"]
    if extras.tags:
        found.append(("x-amz-tagging-count", str(len(extras.tags))))
    return found


def tags_text(tags: dict[str, str]) -> str:
    return urlencode(tags)


class ExtrasOf:
    """asks: whether origins are asked at all (setting s3_metadata)."""

    def __init__(self, paths: LocalVfs, *, asks: bool) -> None:
        self._paths = paths
        self._asks = asks
        self._lock = threading.Lock()
        self._told: OrderedDict[FileId, tuple[float, ObjectMetadata]] = OrderedDict()
        self._mounts: tuple[float, dict[str, str]] = (0.0, {})
        self._kept_in: dict[bytes, frozenset[str]] = {}

    def check_kept(self, path: bytes, extras: ObjectMetadata) -> ObjectMetadata:
        """Those that are kept of what is put there: where they are not, the Content-Type, which nearly every client
        sends, goes. NotImplemented for others: they would be lost."""
        self._paths.check_writable(path)
        if not all(
            (name + value).isascii() for name, value in [*extras.metadata.items(), *extras.headers.items()]
        ):
            raise S3Error("NotImplemented", "metadata beyond ASCII can be told, and not be put")
        kept = KEPT_BY["s3"] if self._is_local(path) else self._kept(path)
        if "metadata" in kept and ("tags" in kept or not extras.tags):
            return extras
        lost = [f"{METADATA}{name}" for name in extras.metadata if name not in ("mtime", "md5chksum")]
        lost += [name for name in extras.headers if name != "Content-Type"]
        if "metadata" in kept:
            lost = []
        if extras.tags:
            lost.append("tags")
        if lost:
            raise S3Error("NotImplemented", f"{', '.join(lost)}: not kept, as the origin has no place for it")
        return ObjectMetadata()

    def cached(self, path: bytes, found: Entry, fd: int) -> ObjectMetadata | None:
        """Without a wait. fd: of its complete cache file, or -1. None: the origin has to be asked."""
        if not self._asked(path):
            return ObjectMetadata()
        if fd >= 0:
            noted = extras_of(fd, os.fstat(fd))
            if noted is not None:
                return noted
        with self._lock:
            told = self._told.get(found.id)
        return told[1] if told is not None and time.monotonic() < told[0] else None

    def of_whole(self, path: bytes, whole: WholeFile) -> ObjectMetadata | None:
        """As cached."""
        if whole.told is not None:
            return whole.told if self._asked(path) else ObjectMetadata()
        return self.cached(path, whole.entry, whole.fd)

    def of(self, path: bytes, found: FileStat, at: SafePath | int) -> ObjectMetadata | None:
        """at: a file of the upper layer or, by a descriptor, of the cache; -1 for none. Waits for the origin where it
        was not asked yet; None: it can't be asked."""
        if not isinstance(found, Entry):
            return extras_of(at, found) or ObjectMetadata()
        told = self.cached(path, found, at if isinstance(at, int) else -1)
        if told is not None:
            return told
        try:
            described = self._paths.client.describe(found.id)
        except HeadraceError:
            return None
        if described is None:
            return None
        with self._lock:
            self._told[found.id] = time.monotonic() + REMEMBERED_S, described
            if len(self._told) > REMEMBERED_MAX:
                self._told.popitem(last=False)
        return described

    def come_with_bytes(self, path: bytes, found: Entry, fd: int) -> bool:
        """Whether they are not known here yet, and will be as soon as some of the object is cached."""
        return fd < 0 and self.cached(path, found, fd) is None

    def forget(self, id: FileId) -> None:
        with self._lock:
            self._told.pop(id, None)

    def has_tags(self, path: bytes) -> bool:
        return self._is_local(path) or "tags" in self._kept(path)

    def _is_local(self, path: bytes) -> bool:
        return self._paths.tree.modes.of(path) is WriteMode.LOCAL

    def _asked(self, path: bytes) -> bool:
        return bool(self._kept(path))

    def _kept(self, path: bytes) -> frozenset[str]:
        """metadata, tags: what the origin of a file's path has a place for."""
        if not self._asks:
            return NOTHING
        now_s = time.monotonic()
        if now_s >= self._mounts[0]:
            self._mounts = now_s + MOUNTS_S, self._paths.client.mounts()
            self._kept_in = {}
        folder = path[: path.rfind(b"/") + 1]
        kept = self._kept_in.get(folder)
        if kept is None:
            text = os.fsdecode(folder)
            mounts = [
                (len(at), url) for at, url in self._mounts[1].items() if text.startswith(at.rstrip("/") + "/")
            ]
            kept = KEPT_BY.get(max(mounts, default=(0, ""))[1].partition(":")[0], NOTHING)
            if len(self._kept_in) < FOLDERS_MAX:
                self._kept_in[folder] = kept
        return kept
