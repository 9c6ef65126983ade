"""Serve a web server as an origin: files by their URL, directories by the index pages that servers make (nginx,
Apache, `python -m http.server`). An index names its files without reliable sizes, so each file is queried."""

from __future__ import annotations

import asyncio
import logging
import os
import urllib.parse
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import obstore

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    HeadraceError,
    NotSupportedError,
    OriginUnavailableError,
    PathNotFoundError,
)
from headrace.base.model import Arrived, ObjectInfo, Version
from headrace.base.namespace_path import NAME_BYTES_MAX
from headrace.base.tasks import all_of
from headrace.origin.object_calls import Stores, translated, version_of, within
from headrace.origin.object_store import ObjectStoreOrigin
from headrace.origin.obstore_errors import is_unauthenticated
from headrace.origin.origin import ListPage, hidden_name, is_path
from headrace.origin.read_only import ReadOnlyCalls

if TYPE_CHECKING:
    from obstore import GetResult

log = logging.getLogger(__name__)

INDEX_BYTES_MAX = 64 << 20
"""Largest index page that is parsed."""
HEADS_AT_A_TIME = 32
"""Most HEAD requests of one listing at a time."""
LINES_A_LISTING = 20
"""Most files of one listing that the log names because they are left out."""
_PAGE = 256
TAG_LEAST = 4
"""Least characters of a page for each of its tags. The parser takes a microsecond for each `<`, whatever follows."""
_FREE = 4096


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links.extend(value for name, value in attrs if name == "href" and value)


def index_names(page: str, path: str) -> list[str]:
    """Return the children that an index page links to, each once; directories end with a slash. `path` is the page's
    own, unquoted, with slashes at both ends. Links to other places, to parents and to sort orders are ignored, as are
    names that no file can have. Raise ValueError if the page can't be parsed."""
    if page.count("<") * TAG_LEAST > len(page) + _FREE:
        raise ValueError("it has more tags than text")
    links = _Links()
    try:
        links.feed(page)
    except AssertionError as error:  # from the parser, for some broken declarations
        raise ValueError(str(error)) from error
    names: dict[str, None] = {}
    for link in links.links:
        try:
            parts = urllib.parse.urlsplit(link)
        except ValueError:
            continue
        if parts.scheme or parts.netloc or not parts.path:
            continue
        name = urllib.parse.unquote(parts.path, errors="surrogateescape")
        if name.startswith(path):
            name = name[len(path) :]
        name = name.removeprefix("./")
        bare = name.removesuffix("/")
        if is_path(bare) and bare and "/" not in bare and len(os.fsencode(bare)) <= NAME_BYTES_MAX:
            names[name] = None
    return list(names)


async def _limited_body(result: GetResult) -> bytes | None:
    """Return the body of an index page; None if it is longer than INDEX_BYTES_MAX. With chunks, it may be longer than
    the answer says. Raise obstore's errors."""
    page = bytearray()
    async for piece in result.stream():
        page += memoryview(piece)
        if len(page) > INDEX_BYTES_MAX:
            return None
    return bytes(page)


class _LeftOutFiles:
    """Logs the files that one listing leaves out: the first ones by name, and then their number. An index may link to
    a million."""

    def __init__(self) -> None:
        self._count = 0

    def add_missing(self, url: str) -> None:
        self._count += 1
        if self._count <= LINES_A_LISTING:
            log.warning("index links to a missing file url=%s", ascii(url))

    def add_refused(self, url: str, why: str) -> None:
        self._count += 1
        if self._count <= LINES_A_LISTING:
            log.warning("index links to a file that the server refuses url=%s why=%s", ascii(url), why)

    def end(self) -> None:
        if self._count > LINES_A_LISTING:
            log.warning("index links to files that are left out count=%d", self._count)


class WebOrigin(ReadOnlyCalls, ObjectStoreOrigin):
    """Serves a web server as an origin. `prefix` is the path of the attached URL. A URL of one file is a directory with
    that file in it."""

    def __init__(self, url: str, stores: Stores, prefix: str) -> None:
        super().__init__(url, stores, prefix)
        self._bucket_exists = True
        self._only = ""

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        """Return a file. A server answers for a directory with its index: a page without a date and an ETag, which
        files have."""
        target = self._where(key)
        if not key or key.endswith("/"):
            raise PathNotFoundError(target, why="no such object")
        async with within(deadline, target):
            with translated(target):
                result = await obstore.get_async(
                    self._stores.objects, self._full(key), options={"head": True}
                )
        version = version_of(result.meta)
        if not version.token and not version.mtime_ns:
            raise PathNotFoundError(
                target, why="the server names no version of it (a directory or a generated page)"
            )
        return ObjectInfo(key, version)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        try:
            return await super().read_range(key, start, end, version=version, deadline=deadline)
        except NotSupportedError as error:
            raise NotSupportedError(
                self._where(key),
                why="this web server does not serve ranges",
                hint="use a server that does, for example nginx",
            ) from error

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        try:
            names = await self._index(key, deadline)
        except PathNotFoundError:
            if key:
                return
            raise BucketNotFoundError(self.url, why="the server has no such path") from None
        except NotSupportedError:
            only = await self._only_file(deadline) if not key else None
            if only is None:
                raise
            yield ListPage((only,), ())
            return
        directories = [name[:-1] for name in names if name.endswith("/")]
        for start in range(0, len(directories), _PAGE):
            yield ListPage((), tuple(directories[start : start + _PAGE]))
        files = [f"{key}/{name}" if key else name for name in names if not name.endswith("/")]
        left_out = _LeftOutFiles()
        for start in range(0, len(files), _PAGE):
            yield ListPage(tuple(await self._infos(files[start : start + _PAGE], left_out, deadline)), ())
        left_out.end()

    async def _body(self, result: GetResult, size_bytes: int) -> memoryview:
        """Return the body, or a part of it that is longer than `size_bytes`. For a range, obstore accepts a body of
        any length, and a web server may ignore the range."""
        pieces = result.stream(min_chunk_size=size_bytes)
        body = memoryview(await anext(pieces, b""))
        rest = await anext(pieces, b"")
        return memoryview(bytes(body) + bytes(rest)) if rest else body

    def _full(self, key: str) -> str:
        if self._only and key == self._only:
            return self._prefix
        return super()._full(key)

    async def _index(self, key: str, deadline: Deadline) -> list[str]:
        """Return the names of a directory's index page. The page of a captive portal answers for every name: raise
        OriginUnavailableError if a name that can't exist has the same page."""
        target = self._where(key)
        names = await self._page_names(key, key, deadline)
        if names is None:
            raise NotSupportedError(target, why="the server shows no index of this directory")
        missing = hidden_name()
        try:
            others = await self._page_names(f"{key}/{missing}" if key else missing, key, deadline)
        except HeadraceError as error:
            if error.retryable:
                raise
            return names
        if others == names:
            raise OriginUnavailableError(target, why="the server answers with the same page for every name")
        return names

    async def _page_names(self, key: str, directory: str, deadline: Deadline) -> list[str] | None:
        """Return the children of a directory to which the page of a key links; None if its answer is no page."""
        target = self._where(key)
        async with within(deadline, target):
            with translated(target):
                result = await obstore.get_async(self._stores.listings, self._full(key))
            kind = str(result.attributes.get("Content-Type", ""))
            if not kind.startswith("text/html") or result.meta["size"] > INDEX_BYTES_MAX:
                return None
            with translated(target):
                page = await _limited_body(result)
        if page is None:
            return None
        path = f"/{self._full(directory)}/" if self._full(directory) else "/"
        text = page.decode("utf-8", errors="surrogateescape")
        try:
            async with within(deadline, target):
                return await asyncio.to_thread(index_names, text, path)  # 64 MiB take 10 s
        except ValueError as error:
            raise NotSupportedError(target, why=f"the server's index can't be parsed: {error}") from error

    async def _only_file(self, deadline: Deadline) -> ObjectInfo | None:
        name = self._prefix.rpartition("/")[2]
        if not name:
            return None
        self._only = name
        try:
            return await self.head(name, deadline=deadline)
        except PathNotFoundError:
            self._only = ""
            return None

    async def _infos(self, keys: list[str], left_out: _LeftOutFiles, deadline: Deadline) -> list[ObjectInfo]:
        """Query files. Those that are missing, and single ones that the server refuses, are left out with a warning.
        Raise the error of a refusal if no file answers: the credentials may be wrong, or HEAD not allowed."""
        slots = asyncio.Semaphore(HEADS_AT_A_TIME)
        refused: list[HeadraceError] = []

        async def head_or_none(key: str) -> ObjectInfo | None:
            async with slots:
                try:
                    return await self.head(key, deadline=deadline)
                except PathNotFoundError:
                    left_out.add_missing(self._where(key))
                except HeadraceError as error:
                    if error.retryable or is_unauthenticated(error):
                        raise
                    refused.append(error)
                    left_out.add_refused(self._where(key), error.why)
                return None

        heads = await all_of([head_or_none(key) for key in keys])
        infos = [info for info in heads if info is not None]
        if refused and not infos:
            raise refused[0]
        return infos
