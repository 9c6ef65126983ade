"""Write to an object store: the writing half of its origin.

A put of up to Sizes.single_max_bytes is one request, and the store enforces its condition. A larger file is uploaded
in parts, and its object is compared after the last part was read; then the store enforces the condition where it can
(`conditional_put.py`). Elsewhere a change between that comparison and the end of the upload (its last parts, and the
request that completes it) is overwritten. A probe detects a store that accepts a condition without enforcing it;
there the object is compared before each put.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import obstore

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    DirectoryNotEmptyError,
    PathNotFoundError,
)
from headrace.base.model import Attributes, ObjectInfo, Version
from headrace.origin.conditional_put import ConditionalPuts
from headrace.origin.metadata import tags_of, to_metadata
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
from headrace.origin.obstore_errors import translate_put
from headrace.origin.origin import (
    Absent,
    Condition,
    PutSource,
    check_condition,
    check_key_length,
    check_new_key,
)
from headrace.origin.threads import Threads
from headrace.origin.upload import ByteBudget, Sizes, Upload

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode, PutResult

Head = Callable[..., Awaitable[ObjectInfo]]


class ObjectWriter:
    """Puts and removes objects. `full` returns the path of a key in the bucket. `head` is the origin's method.
    `by_generation`: the store compares generations instead of ETags (GCS)."""

    def __init__(
        self,
        url: str,
        stores: Stores,
        full: Callable[[str], str],
        head: Head,
        *,
        sizes: Sizes,
        by_generation: bool,
    ) -> None:
        self._url = url
        self._stores = stores
        self._full = full
        self._head = head
        self._sizes = sizes
        self._by_generation = by_generation
        self._threads = Threads()
        self._budget = ByteBudget(sizes.memory_max_bytes)
        self._conditions = ConditionalPuts(url, stores, full, by_generation=by_generation)

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        target = f"{self._url}/{key}"
        deadline.check(target)
        check_new_key(target, key)
        check_key_length(self._url, key)
        upload = Upload(source, self._sizes, self._threads, target, deadline)
        if upload.is_single:
            result = await self._put_single(key, upload, condition, attributes, target, deadline)
        else:
            result = await self._put_parts(key, upload, condition, attributes, target, deadline)
        token = result["e_tag"] or ""
        if not can_match(token):
            return await self._head(key, deadline=deadline)
        return ObjectInfo(key, Version(source.size_bytes, int(time.time()) * 10**9, token), attributes)

    async def _put_single(
        self,
        key: str,
        upload: Upload,
        condition: Condition,
        attributes: Attributes,
        target: str,
        deadline: Deadline,
    ) -> PutResult:
        async with within(deadline, target), self._budget.reserve(upload.memory_bytes):
            mode = await self._mode(key, condition, target, deadline)
            with translated(target, translate_put):
                return await upload.send(
                    self._stores.puts, self._full(key), to_metadata(attributes), tags_of(attributes), mode
                )

    async def _put_parts(
        self,
        key: str,
        upload: Upload,
        condition: Condition,
        attributes: Attributes,
        target: str,
        deadline: Deadline,
    ) -> PutResult:
        async def check() -> None:
            if condition is not None:
                check_condition(target, condition, await self._version(key, deadline))

        await check()  # before any part is sent in vain
        async with contextlib.AsyncExitStack() as stack:
            async with within(deadline, target):
                await stack.enter_async_context(self._budget.reserve(upload.memory_bytes))
                store = await self._conditions.store_for_parts(condition)
            with translated(target, translate_put):
                return await upload.send_parts(
                    store, self._full(key), to_metadata(attributes), tags_of(attributes), check
                )

    async def _version(self, key: str, deadline: Deadline) -> Version | None:
        try:
            return (await self._head(key, deadline=deadline)).version
        except PathNotFoundError:
            return None

    async def _mode(self, key: str, condition: Condition, target: str, deadline: Deadline) -> PutMode:
        if condition is None:
            return "overwrite"
        support = await self._conditions.of_single()
        if isinstance(condition, Absent) and support.create:
            return "create"
        by_token = support.update and not self._by_generation
        if isinstance(condition, Version) and by_token and can_match(condition.token):
            return {"e_tag": condition.token}
        meta = await self._meta_of(key, target)
        check_condition(target, condition, None if meta is None else stored_version(meta, target))
        return self._mode_that_matches(meta) if meta is not None and support.update else "overwrite"

    def _mode_that_matches(self, meta: ObjectMeta) -> PutMode:
        if self._by_generation and meta["version"]:
            return {"version": meta["version"]}
        if not self._by_generation and can_match(meta["e_tag"] or ""):
            return {"e_tag": version_of(meta).token}
        return "overwrite"

    async def _meta_of(self, key: str, target: str) -> ObjectMeta | None:
        try:
            with translated(target):
                return (await head_object(self._stores.objects, self._full(key))).meta
        except PathNotFoundError:
            return None

    # -- removal

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """Remove an object. An object store reports success even for a missing object, and obstore gives the removal
        no condition, so the version is compared just before."""
        target = f"{self._url}/{key}"
        current = (await self._head(key, deadline=deadline)).version
        check_condition(target, condition, current)
        async with within(deadline, target):
            with translated(target):
                await obstore.delete_async(self._stores.objects, self._full(key))

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        """Check the key only: directories are prefixes."""
        deadline.check(f"{self._url}/{key}")
        check_new_key(f"{self._url}/{key}", key)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        """Check that the directory is empty. Markers stay: obstore can't name a key that ends in a slash."""
        target = f"{self._url}/{key}"
        path = self._full(key)
        async with within(deadline, target):
            with translated(target):
                async for metas in ObjectPages(self._stores.listings, prefix=path or None, chunk_size=2):
                    if any(meta["path"] != path for meta in metas):
                        raise DirectoryNotEmptyError(target, why="the directory is not empty")

    def close(self) -> None:
        self._threads.close()
