"""Names and contents by the REST API: what `headrace.connect()` does on a host that has a node, for one that has none.

All calls may wait: for the node, the disk, or the client's body.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice

import xxhash

from headrace.base.errors import (
    CorruptBlockError,
    IsADirectoryPathError,
    ProtocolError,
    UsageError,
    VersionChangedError,
)
from headrace.base.model import BLOCK_SIZE_BYTES, Entry, block_range
from headrace.base.namespace_path import DEPTH_MAX
from headrace.http.messages import Request, Response, http_date
from headrace.overlay.upper import join
from headrace.rest.problems import RefusedError
from headrace.sdk.cache import stat_of
from headrace.sdk.local_vfs import LocalVfs
from headrace.sdk.merged_tree import FileStat
from headrace.sdk.node_client import CHANGED_ATTEMPTS
from headrace.sdk.streams import Content
from headrace.sdk.vfs_reader import is_directory, version_text
from headrace.wire.api import (
    BYTES,
    SUM_HEADER,
    SUMS_BYTES_MAX,
    SUMS_HEADER,
    SUMS_WORD,
    ApiEntries,
    ApiEntry,
    EntryQuery,
    ListQuery,
    PutQuery,
    RemoveQuery,
    Rename,
    etag_of,
)

NAME_BYTES_MAX = 255
_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


def path_of(text: str) -> bytes:
    """Without empty names. UsageError for what can't be a path."""
    try:
        names = [name for name in os.fsencode(text).split(b"/") if name]
    except UnicodeEncodeError:  # lone surrogates that no byte stands for
        names = [b"\0"]
    if any(b"\0" in name or name in (b".", b"..") or len(name) > NAME_BYTES_MAX for name in names):
        raise UsageError(
            f"path {text!r}"[:300], why="a name has 1 to 255 bytes, none of them zero, and is not . or .."
        )
    if len(names) > DEPTH_MAX:
        raise UsageError(f"path {text!r}"[:300], why=f"it has more than {DEPTH_MAX} names")
    return b"/" + b"/".join(names)


class FileOperations:
    def __init__(self, paths: LocalVfs) -> None:
        self._paths = paths

    # ------------------------------------------------------------ names

    def entry(self, query: EntryQuery) -> ApiEntry:
        """PathNotFoundError."""
        at = path_of(query.path)
        whole, found = self._paths.get(at, follow=query.follow)
        row = self._row(whole if query.follow else at, whole, found)
        if not isinstance(found, Entry):
            return _with(row, id=found.st_ino, cached="written here" if row.kind == "file" else "")
        state = {} if is_directory(found) else self._paths.client.file_state(found.id)
        return _with(row, id=found.id, cached=state.get("cached", ""), origin=state.get("origin", ""))

    def page(self, query: ListQuery) -> ApiEntries:
        """NotADirectoryPathError."""
        at = path_of(query.path)
        rows = self._paths.children(at, after=os.fsencode(query.after))
        found = list(islice(rows, query.limit + 1))
        page = [self._row(join(at, name), join(at, name), one) for name, one in found[: query.limit]]
        more = len(found) > query.limit
        return ApiEntries(page, os.fsdecode(found[query.limit - 1][0]) if more else None)

    def _row(self, asked: bytes, whole: bytes, found: FileStat) -> ApiEntry:
        stat = stat_of(os.fsdecode(asked), found)
        target = os.fsdecode(self._paths.readlink(whole)) if stat.kind == "link" else ""
        return ApiEntry(
            path=stat.path,
            kind=stat.kind,
            size_bytes=stat.size_bytes,
            mtime_ns=stat.mtime_ns,
            version=stat.version,
            target=target,
        )

    def remove(self, query: RemoveQuery) -> None:
        at = path_of(query.path)
        if query.recursive:
            self._paths.remove_all(at)
        elif query.empty_directory:
            self._paths.remove_directory(at)
        elif is_directory(self._paths.get(at, follow=False)[1]):
            raise IsADirectoryPathError(query.path, why="it is a directory", hint="recursive=true")
        else:
            self._paths.remove(at)

    def make_directory(self, path: str) -> None:
        self._paths.make_directories(path_of(path))

    def rename(self, wanted: Rename) -> None:
        self._paths.rename(path_of(wanted.source), path_of(wanted.target))

    # ------------------------------------------------------------ contents

    def read(self, request: Request, path: str) -> Response:
        """With `If-Match` only of that version: RefusedError 412 when it is another."""
        found, content = self._open(path_of(path))
        try:
            return self._content(request, path, found, content)
        except BaseException:
            content.close()
            raise

    def _open(self, at: bytes) -> tuple[FileStat, Content]:
        for attempt in range(CHANGED_ATTEMPTS):
            whole, found = self._paths.get(at)
            if is_directory(found):
                raise IsADirectoryPathError(os.fsdecode(at), why="it is a directory")
            try:
                content = self._paths.content_of(whole, found)
            except (FileNotFoundError, VersionChangedError):
                if attempt + 1 == CHANGED_ATTEMPTS:
                    raise
                continue
            # of a file of the layer: of the one that was opened, which may be another by now
            return found if isinstance(found, Entry) else os.fstat(content.fd), content
        raise AssertionError

    def _content(self, request: Request, path: str, found: FileStat, content: Content) -> Response:
        etag = etag_of(version_text(found))
        wanted = request.header("if-match")
        if wanted not in ("", "*", etag) and etag not in [one.strip() for one in wanted.split(",")]:
            raise VersionChangedError(path, why="it is another version now", hint="look at it again")
        size_bytes = content.size_bytes
        mtime_ns = found.mtime_ns if isinstance(found, Entry) else found.st_mtime_ns
        headers = [("Content-Type", BYTES), ("ETag", etag), ("Accept-Ranges", "bytes")]
        if mtime_ns > 0:
            headers.append(("Last-Modified", http_date(mtime_ns)))
        asked = _asked_range(request.header("range"), size_bytes, path)
        start, end = asked or (0, size_bytes)
        if asked is not None:
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{size_bytes}"))
        response = Response(206 if asked else 200, headers, content=content, start=start, end=end)
        if request.header(SUMS_HEADER) == SUMS_WORD and 0 < end - start <= SUMS_BYTES_MAX:
            self._add_sums(response, found, content)
        return response

    def _add_sums(self, response: Response, found: FileStat, content: Content) -> None:
        """Whole blocks that are cached go out as they are, with the checksums that they were fetched with; others are
        read here, and compared with those."""
        start, end = response.start, response.end
        blocks = block_range(start, end)
        content.wait(start, end)
        known = self._paths.client.checksums(found.id, blocks) if isinstance(found, Entry) else None
        whole = start % BLOCK_SIZE_BYTES == 0 and (end % BLOCK_SIZE_BYTES == 0 or end == content.size_bytes)
        if known is not None and whole:
            sums = known
        else:
            data = content.read(start, end) if known is None else _checked(content, start, end, blocks, known)
            if len(data) != end - start:
                raise VersionChangedError("file", why=f"it ends at byte {start + len(data)} now")
            response.body, response.content = data, None
            content.close()
            sums = [xxhash.xxh3_64_intdigest(piece) for piece in pieces_of(memoryview(data), start)]
        response.headers.append((SUMS_HEADER, ",".join(f"{one:016x}" for one in sums)))

    def write(self, request: Request, query: PutQuery, pieces: Iterator[bytes]) -> None:
        """What its mode of writing promises is done on return. Refusal 422 for bytes that don't match their checksum:
        nothing is kept then."""
        at = path_of(query.path)
        told = request.header(SUM_HEADER).lower()
        with self._paths.create(at, replace=query.replace, parents=True) as out:
            digest = xxhash.xxh3_64()
            for piece in pieces:
                digest.update(piece)
                out.write(piece)
            if told and digest.hexdigest() != told:
                error = ProtocolError(
                    query.path, why="what came does not match its checksum", hint="send it again"
                )
                raise RefusedError(422, error)


def pieces_of(data: memoryview, start: int) -> Iterator[memoryview]:
    """Of bytes that begin at `start` of a file, those of each block."""
    at = 0
    while at < len(data):
        step = BLOCK_SIZE_BYTES - (start + at) % BLOCK_SIZE_BYTES
        yield data[at : at + step]
        at += step


def _checked(content: Content, start: int, end: int, blocks: range, known: list[int]) -> bytes:
    first = blocks.start * BLOCK_SIZE_BYTES
    data = content.read(first, min(content.size_bytes, blocks.stop * BLOCK_SIZE_BYTES))
    for piece, checksum in zip(pieces_of(memoryview(data), first), known, strict=True):
        if xxhash.xxh3_64_intdigest(piece) != checksum:
            raise CorruptBlockError(
                "cached file", why="a block does not match its checksum", hint="headrace fsck"
            )
    return data[start - first : end - first]


def _asked_range(text: str, size_bytes: int, path: str) -> tuple[int, int] | None:
    """Of one range; None where there is none, or what HTTP lets a server pass over. Refusal 416."""
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
            UsageError(path, why=f"it has {size_bytes} bytes, and none in {text}"),
            headers=(("Content-Range", f"bytes */{size_bytes}"),),
        )
    return start, end


def _with(row: ApiEntry, *, id: int, cached: str = "", origin: str = "") -> ApiEntry:
    return ApiEntry(
        row.path, row.kind, row.size_bytes, row.mtime_ns, row.version, row.target, int(id), cached, origin
    )
