"""Serve names and contents by the REST API: `headrace.connect()` for hosts without a node.

All calls may wait: for the node, the disk, or the client's body.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import islice

import xxhash

from headrace.base.errors import (
    CorruptBlockError,
    IsADirectoryPathError,
    PathNotFoundError,
    ProtocolError,
    UsageError,
    VersionChangedError,
)
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, block_range
from headrace.base.namespace_path import DEPTH_MAX, NAME_BYTES_MAX, join
from headrace.base.os_errors import translating_os_errors
from headrace.client.node_client import CHANGED_ATTEMPTS
from headrace.http.messages import Request, Response, http_date
from headrace.overlay.merged_view import FileStat
from headrace.rest.problems import RefusedError
from headrace.rest.uploads import CreatedFiles
from headrace.vfs.file_stat import is_directory, stat_of, version_text
from headrace.vfs.local_vfs import LocalVfs
from headrace.vfs.streams import Content
from headrace.wire.api import (
    BYTES,
    SUM_HEADER,
    SUMS_BYTES_MAX,
    SUMS_HEADER,
    SUMS_WORD,
    UPLOAD_HEADER,
    ApiEntries,
    ApiEntry,
    EntryQuery,
    ListQuery,
    PutQuery,
    RemoveQuery,
    Rename,
    etag_of,
)

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def path_of(text: str) -> bytes:
    """Return the path without empty names. Raises UsageError for what can't be a path."""
    try:
        names = [name for name in os.fsencode(text).split(b"/") if name]
    except UnicodeEncodeError:  # lone surrogates that encode no byte
        names = [b"\0"]
    if any(b"\0" in name or name in (b".", b"..") or len(name) > NAME_BYTES_MAX for name in names):
        raise UsageError(
            f"path {text!r}"[:300], why="a name has 1 to 255 bytes, none of them zero, and is not . or .."
        )
    if len(names) > DEPTH_MAX:
        raise UsageError(f"path {text!r}"[:300], why=f"the path has more than {DEPTH_MAX} names")
    return b"/" + b"/".join(names)


class FileOperations:
    """Answers the operations on entries and contents of the namespace."""

    def __init__(self, vfs: LocalVfs) -> None:
        self._vfs = vfs
        self._created = CreatedFiles()

    # ------------------------------------------------------------ names

    def entry(self, query: EntryQuery) -> ApiEntry:
        """Return the entry of a path. Raises PathNotFoundError."""
        path = path_of(query.path)
        resolved, file_stat = self._vfs.get(path, follow=query.follow)
        row = self._row(resolved if query.follow else path, resolved, file_stat)
        if not isinstance(file_stat, Entry):
            return _with(row, id=file_stat.st_ino, cached="written here" if row.kind == "file" else "")
        state = {} if is_directory(file_stat) else self._vfs.client.file_state(file_stat.id)
        return _with(row, id=file_stat.id, cached=state.get("cached", ""), origin=state.get("origin", ""))

    def page(self, query: ListQuery) -> ApiEntries:
        """Return one page of a directory. Raises NotADirectoryPathError."""
        path = path_of(query.path)
        rows = self._vfs.children(path, after=os.fsencode(query.after))
        children = list(islice(rows, query.limit + 1))
        page = []
        for name, child in children[: query.limit]:
            with contextlib.suppress(PathNotFoundError):  # a link that was removed meanwhile
                page.append(self._row(join(path, name), join(path, name), child))
        has_more = len(children) > query.limit
        return ApiEntries(page, os.fsdecode(children[query.limit - 1][0]) if has_more else None)

    def _row(self, path: bytes, resolved: bytes, file_stat: FileStat) -> ApiEntry:
        stat = stat_of(os.fsdecode(path), file_stat)
        target = os.fsdecode(self._vfs.readlink(resolved)) if stat.kind == "link" else ""
        return ApiEntry(
            path=stat.path,
            kind=stat.kind,
            size_bytes=stat.size_bytes,
            mtime_ns=stat.mtime_ns,
            version=stat.version,
            target=target,
        )

    def remove(self, query: RemoveQuery) -> None:
        path = path_of(query.path)
        if query.recursive:
            self._vfs.remove_all(path)
        elif query.empty_directory:
            self._vfs.remove_directory(path)
        elif is_directory(self._vfs.get(path, follow=False)[1]):
            raise IsADirectoryPathError(query.path, why="it is a directory", hint="set recursive=true")
        else:
            self._vfs.remove(path)

    def make_directory(self, path: str) -> None:
        self._vfs.make_directories(path_of(path))

    def rename(self, body: Rename) -> None:
        self._vfs.rename(path_of(body.source), path_of(body.target))

    # ------------------------------------------------------------ contents

    def read(self, request: Request, path: str) -> Response:
        """Read a file; with `If-Match`, only that version, and with `If-Range` all of another one. Raises
        VersionChangedError."""
        file_stat, content = self._open(path_of(path))
        try:
            return self._content(request, path, file_stat, content)
        except BaseException:
            content.close()
            raise

    def _open(self, path: bytes) -> tuple[FileStat, Content]:
        for attempt in range(CHANGED_ATTEMPTS):
            resolved, file_stat = self._vfs.get(path)
            if is_directory(file_stat):
                raise IsADirectoryPathError(os.fsdecode(path), why="it is a directory")
            try:
                content = self._vfs.content_of(resolved, file_stat)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
                continue
            return file_stat if isinstance(file_stat, Entry) else content.stat_at_rest(), content
        raise AssertionError

    def _content(self, request: Request, path: str, file_stat: FileStat, content: Content) -> Response:
        etag = etag_of(version_text(file_stat))
        if_match = request.header("if-match")
        if if_match not in ("", "*", etag) and etag not in [tag.strip() for tag in if_match.split(",")]:
            raise VersionChangedError(
                path, why="the file has another version now", hint="get its entry again"
            )
        size_bytes = content.size_bytes
        mtime_ns = file_stat.mtime_ns if isinstance(file_stat, Entry) else file_stat.st_mtime_ns
        headers = [("Content-Type", BYTES), ("ETag", etag), ("Accept-Ranges", "bytes")]
        if mtime_ns > 0:
            headers.append(("Last-Modified", http_date(mtime_ns)))
        is_other = (
            request.header("if-range", etag).strip() != etag
        )  # a time is no exact version (RFC 9110, 13.1.5)
        span = None if is_other else _requested_range(request.header("range"), size_bytes, path)
        start, end = span or (0, size_bytes)
        if span is not None:
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size_bytes}"))
        response = Response(206 if span else 200, headers, content=content, start=start, end=end)
        if request.header(SUMS_HEADER) == SUMS_WORD and 0 < end - start <= SUMS_BYTES_MAX:
            self._add_sums(response, file_stat, content, names_version=if_match not in ("", "*"))
        return response

    def _add_sums(
        self, response: Response, file_stat: FileStat, content: Content, *, names_version: bool
    ) -> None:
        """Add the checksums of the blocks to a response. Whole blocks that are cached are sent without reading them
        here, with the checksums of their fetch. Others are read here, and compared with those checksums.
        names_version: the request is for one version only. Raises VersionChangedError for bytes of another one."""
        start, end = response.start, response.end
        blocks = block_range(start, end)
        content.wait(start, end)
        cached = self._vfs.client.checksums(file_stat.id, blocks) if isinstance(file_stat, Entry) else None
        ends_block = end % BLOCK_SIZE_BYTES == 0 or end == content.size_bytes
        if cached is not None and start % BLOCK_SIZE_BYTES == 0 and ends_block:
            sums = cached
        else:
            checked = None if cached is None else _checked(content, start, end, blocks, cached)
            data = content.read(start, end) if checked is None else checked
            if len(data) != end - start:
                raise VersionChangedError("file", why=f"the file ends at byte {start + len(data)} now")
            if names_version and _was_written(file_stat, content):
                raise VersionChangedError("file", why="it was written while it was read")
            response.body, response.content = data, None
            content.close()
            sums = [xxhash.xxh3_64_intdigest(piece) for piece in pieces_of(memoryview(data), start)]
        response.headers.append((SUMS_HEADER, ",".join(f"{checksum:016x}" for checksum in sums)))

    def write(self, request: Request, query: PutQuery, pieces: Iterator[bytes]) -> None:
        """Write a file. On return it has the durability that its write mode promises. Bytes that don't match their
        checksum are discarded: raises RefusedError 422. Raises NoSpaceError or StoreError for errors of the disk."""
        path = path_of(query.path)
        upload_id = "" if query.replace else request.header(UPLOAD_HEADER)
        with self._created.once(upload_id, path) as was_created:
            if was_created:
                for _ in pieces:  # a client reads no answer before it has sent all
                    pass
                return
            self._write(path, request, query, pieces)

    def _write(self, path: bytes, request: Request, query: PutQuery, pieces: Iterator[bytes]) -> None:
        expected_sum = request.header(SUM_HEADER).lower()
        with (
            translating_os_errors(path),
            self._vfs.create(path, replace=query.replace, parents=True) as out,
        ):
            digest = xxhash.xxh3_64()
            for piece in pieces:
                digest.update(piece)
                out.write(piece)
            if expected_sum and digest.hexdigest() != expected_sum:
                error = ProtocolError(
                    query.path, why="the received bytes do not match their checksum", hint="send them again"
                )
                raise RefusedError(422, error)


def _was_written(file_stat: FileStat, content: Content) -> bool:
    """Return whether an opened file of the upper layer was written since it was described."""
    return not isinstance(file_stat, Entry) and version_text(os.fstat(content.fd)) != version_text(file_stat)


def pieces_of(data: memoryview, start: int) -> Iterator[memoryview]:
    """Split bytes that begin at offset `start` of a file at the borders of blocks."""
    position = 0
    while position < len(data):
        step = BLOCK_SIZE_BYTES - (start + position) % BLOCK_SIZE_BYTES
        yield data[position : position + step]
        position += step


def _checked(content: Content, start: int, end: int, blocks: range, sums: list[int]) -> bytes:
    first = blocks.start * BLOCK_SIZE_BYTES
    data = content.read(first, min(content.size_bytes, blocks.stop * BLOCK_SIZE_BYTES))
    for piece, checksum in zip(pieces_of(memoryview(data), first), sums, strict=True):
        if xxhash.xxh3_64_intdigest(piece) != checksum:
            raise CorruptBlockError(
                "cached file", why="a block does not match its checksum", hint="headrace fsck"
            )
    return data[start - first : end - first]


def _requested_range(text: str, size_bytes: int, path: str) -> tuple[int, int] | None:
    """Return the range of the header; None without one, or for what HTTP lets a server ignore. RefusedError 416."""
    match = _RANGE.fullmatch(text.strip().replace(" ", ""))
    if match is None or match.group(0) == "bytes=-":
        return None
    first, last = match.groups()
    start = int(first) if first else max(0, size_bytes - int(last))
    end = min(size_bytes, int(last) + 1) if first and last else size_bytes
    if first and last and int(last) < start:
        return None
    if start >= end:
        raise RefusedError(
            416,
            UsageError(path, why=f"the file has {size_bytes} bytes, none of them in {text}"),
            headers=(("Content-Range", f"bytes */{size_bytes}"),),
        )
    return start, end


def _with(row: ApiEntry, *, id: int, cached: str = "", origin: str = "") -> ApiEntry:
    return ApiEntry(
        row.path, row.kind, row.size_bytes, row.mtime_ns, row.version, row.target, int(id), cached, origin
    )
