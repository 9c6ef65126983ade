"""Serve S3, GCS and Azure Blob as an origin, over an obstore store.

obstore's own retries are off for single objects, because `retry.py` retries. The client for listings keeps a few,
because a listing can't be resumed from outside. Bytes come as a view of obstore's buffer, without a copy.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import obstore

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    HeadraceError,
    NotSupportedError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.base.tasks import all_of
from headrace.origin.listing_checks import FULL_PAGE, ListingChecks, ReceivedKeys
from headrace.origin.metadata import extras_of, from_metadata
from headrace.origin.non_ascii_headers import read_non_ascii
from headrace.origin.object_calls import (
    Stores,
    can_match,
    head_object,
    stored_version,
    translated,
    version_of,
    within,
)
from headrace.origin.object_pages import ObjectPages
from headrace.origin.object_write import ObjectWriter
from headrace.origin.obstore_errors import NOT_ASCII, translate_listing
from headrace.origin.origin import HIDDEN, Condition, ListPage, PutSource, check_range
from headrace.origin.retry_after import RetryAfter
from headrace.origin.upload import Sizes

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ObjectMeta

log = logging.getLogger(__name__)

PAGE = FULL_PAGE
WASTE_MAX = 200
"""Keys below subdirectories that a listing may read beyond the number of listed names."""
EMPTY_MAX = 16
"""Empty objects that a listing may query beyond a hundredth of the listed names."""


@dataclass(slots=True)
class _Walk:
    """Holds the progress of a listing's walk. `listed` are hashes of the paths of its files: 8 bytes each instead of
    100."""

    listed: array[int] = field(default_factory=lambda: array("q"))
    directories: set[str] = field(default_factory=set)
    empty_files: set[str] = field(default_factory=set)
    deep: int = 0
    empty: int = 0

    def is_waste(self, more: int) -> bool:
        """Return whether the walk spent more than it listed. The limits are guesses, which cost a small directory at
        most a few requests."""
        count = len(self.listed) + more
        return self.deep > count + WASTE_MAX or self.empty > EMPTY_MAX + count // 100


class ObjectStoreOrigin:
    """Serves an object store as an origin. `prefix` precedes every key in the bucket, without slashes around it; "" for
    none."""

    writable = True

    def __init__(self, url: str, stores: Stores, prefix: str, *, sizes: Sizes = Sizes()) -> None:  # noqa: B008 - frozen
        self.url = url
        self._stores = stores
        self._prefix = prefix
        self._bucket_exists = False
        self._retry_after = RetryAfter(stores.objects)
        self._checks = ListingChecks(url, stores, self._full, can_continue=url.startswith(("s3:", "gs:")))
        self._writer = ObjectWriter(
            url, stores, self._full, self.head, sizes=sizes, by_generation=url.startswith("gs:")
        )

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        target = self._where(key)
        if not key or key.endswith("/"):
            raise PathNotFoundError(target, why="no such object")
        async with within(deadline, target):
            try:
                with translated(target):
                    result = await head_object(self._stores.objects, self._full(key))
            except PathNotFoundError:
                await self._check_bucket(target)
                raise
        version = stored_version(result.meta, target)
        self._bucket_exists = True
        return ObjectInfo(key, version, from_metadata(result.attributes))

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        target = self._where(key)
        check_range(target, start, end, version)
        options: GetOptions = {"range": (start, end)}
        if can_match(version.token):
            options["if_match"] = version.token
        async with within(deadline, target):
            try:
                with translated(target):
                    result = await obstore.get_async(self._stores.objects, self._full(key), options=options)
                    _same_version(result.meta, version, target)
                    body = await self._body(result, end - start)
            except PathNotFoundError:
                raise VersionChangedError(target, why="the object was removed") from None
            except NotSupportedError as error:
                if error.why != NOT_ASCII:
                    raise
                arrived = await read_non_ascii(
                    *(self._stores.objects, self._full(key), target, start, end),
                    version=version,
                    deadline=deadline,
                )
                if arrived is None:
                    raise
                return arrived
        if result.range != (start, end) or len(body) != end - start:
            raise OriginUnavailableError(target, why=f"received {len(body)} of {end - start} bytes")
        return Arrived(body, extras_of(result.attributes))

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        """List a directory.

        The listing begins as a walk over all keys below, page by page, which needs no memory. Keys deeper than the
        directory are dropped, and only reveal its subdirectories. If they outnumber the listed names, the rest comes
        in one delimited listing, which obstore holds in memory: some 850 bytes for each child. Measured with a
        million files: 15 MiB walked (also with a directory and an empty file among them), 850 MiB delimited.

        Raise OriginError if the store can't list all names, and OriginUnavailableError if no store made the listing.
        """
        target = self._where(key)
        walk, received, is_complete = _Walk(), ReceivedKeys(), False
        try:
            async with contextlib.aclosing(self._stream(key, target, deadline)) as pages:
                gave_up = False
                async for metas in pages:
                    self._checks.receive(received, metas)
                    page = None if gave_up else await self._page(key, metas, walk, deadline)
                    if page is not None:
                        yield page
                        continue
                    gave_up = True
                    if not self._checks.needs_second_page:
                        break
                else:
                    await self._checks.check_end(key, received, deadline)
                    is_complete = not gave_up
        except NotSupportedError:
            pass  # obstore refuses some name, perhaps far below: the delimited listing may succeed
        if not is_complete:
            async for page in self._delimited(key, target, walk, deadline):
                yield page
        self._bucket_exists = True

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        return await self._writer.put(
            key, source, condition=condition, attributes=attributes, deadline=deadline
        )

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        await self._writer.remove(key, condition=condition, deadline=deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._writer.make_directory(key, deadline=deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        await self._writer.remove_directory(key, deadline=deadline)

    async def requested_pause_s(self, key: str, error: HeadraceError) -> float:
        """Return the seconds for which the store requests a pause, after a call about a key failed; 0 for none."""
        return await self._retry_after.requested_s(self._full(key), error) if key else 0.0

    async def close(self) -> None:
        self._writer.close()

    async def _stream(
        self, key: str, target: str, deadline: Deadline
    ) -> AsyncGenerator[list[ObjectMeta], None]:
        with translated(target, translate_listing):
            pages = ObjectPages(self._stores.listings, prefix=self._full(key) or None, chunk_size=PAGE)
        while True:
            async with within(deadline, target):
                try:
                    with translated(target, translate_listing):
                        metas = list(await anext(pages))
                except StopAsyncIteration:
                    return
            own = self._full(key)
            yield [meta for meta in metas if meta["path"] != own]  # without the directory's own marker

    async def _delimited(
        self, key: str, target: str, walk: _Walk, deadline: Deadline
    ) -> AsyncIterator[ListPage]:
        """Yield the children that the walk has not listed."""
        async with within(deadline, target):
            with translated(target, translate_listing):
                listing = await obstore.list_with_delimiter_async(
                    self._stores.listings, prefix=self._full(key) or None
                )
        names = [path.rstrip("/").rpartition("/")[2] for path in listing["common_prefixes"]]
        directories = [name for name in names if name and name not in walk.directories]
        objects = [meta for meta in listing["objects"] if not _is_hidden(meta["path"])]
        listed = set(walk.listed)
        for start in range(0, max(len(objects), len(directories)), PAGE):
            infos = [
                self._info(meta) for meta in objects[start : start + PAGE] if hash(meta["path"]) not in listed
            ]
            yield ListPage(tuple(infos), tuple(directories[start : start + PAGE]))

    async def _page(
        self, key: str, metas: list[ObjectMeta], walk: _Walk, deadline: Deadline
    ) -> ListPage | None:
        """Return a page of children; None, with nothing listed, if the walk is no longer worthwhile."""
        below = self._full(key)
        objects: list[ObjectMeta] = []
        empty: list[ObjectMeta] = []
        directories: dict[str, None] = {}
        for meta in metas:
            name, slash, _ = (meta["path"][len(below) + 1 :] if below else meta["path"]).partition("/")
            if slash:
                walk.deep += 1
                directories[name] = None
            elif not name.startswith(HIDDEN):
                (objects if meta["size"] else empty).append(meta)
        walk.empty += len(empty)
        if walk.is_waste(len(objects)):
            return None
        for meta, is_file in zip(empty, await self._are_files(empty, walk, deadline), strict=True):
            if is_file:
                objects.append(meta)
            else:
                directories[meta["path"].rpartition("/")[2]] = None
        walk.listed.extend(hash(meta["path"]) for meta in objects)
        fresh = tuple(name for name in directories if name not in walk.directories)
        walk.directories.update(fresh)
        return ListPage(tuple(self._info(meta) for meta in objects), fresh)

    async def _are_files(self, metas: list[ObjectMeta], walk: _Walk, deadline: Deadline) -> list[bool]:
        """Return which empty objects are files and which are directory markers. obstore drops the marker's slash, so
        only a HEAD can distinguish them. If both exist, the second is the marker."""

        async def exists(meta: ObjectMeta) -> bool:
            target = f"{self.url} {meta['path']}"
            async with within(deadline, target):
                with translated(target):
                    try:
                        head = await obstore.head_async(self._stores.listings, meta["path"])
                    except FileNotFoundError:
                        return False
            return head["size"] == 0

        flags = await all_of([exists(meta) for meta in metas])
        files = []
        for meta, is_file in zip(metas, flags, strict=True):
            files.append(is_file and meta["path"] not in walk.empty_files)
            if is_file:
                walk.empty_files.add(meta["path"])
        return files

    async def _body(self, result: GetResult, size_bytes: int) -> memoryview:
        """Return the body of an answer to a request for `size_bytes`, as a view of obstore's buffer. Of a longer body,
        return no more than what came with the requested bytes: `bytes_async` is faster (decision 82), but would hold
        all that a hostile server sends until the deadline. Raise obstore's errors."""
        return memoryview(await anext(result.stream(min_chunk_size=max(1, size_bytes)), b""))

    def _info(self, meta: ObjectMeta) -> ObjectInfo:
        path = meta["path"]
        return ObjectInfo(path[len(self._prefix) + 1 :] if self._prefix else path, version_of(meta))

    def _full(self, key: str) -> str:
        if not self._prefix:
            return key
        return f"{self._prefix}/{key}" if key else self._prefix

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    async def _check_bucket(self, target: str) -> None:
        """Check that the bucket exists, until it did once. HEAD has no body: it returns 404 for a missing bucket as
        for a missing object."""
        if self._bucket_exists:
            return
        with translated(target, translate_listing):
            async for _ in ObjectPages(self._stores.puts, prefix=".headrace-none", chunk_size=1):
                break
        self._bucket_exists = True


def _is_hidden(path: str) -> bool:
    return path.rpartition("/")[2].startswith(HIDDEN)


def _same_version(meta: ObjectMeta, version: Version, target: str) -> None:
    """Compare the response's own headers, and so detect a server that ignores If-Match."""
    current = version_of(meta)
    is_same = current.token == version.token if version.token else current.mtime_ns == version.mtime_ns
    if current.size_bytes != version.size_bytes or not is_same:
        raise VersionChangedError(target, why="the origin has another version")
