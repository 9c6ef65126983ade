"""The writing half of an object store's origin.

A put of up to Sizes.single_max_bytes is one request, and the store decides its condition. A larger one is uploaded in
parts, and the object looked at when the last part was taken; then the store decides where it can (`conditions.py`), and
elsewhere what changes between that look and the end of the upload (its last parts, and the request that completes
it) is replaced. A store that takes a condition and doesn't heed it is found out; there the object is looked at before
each put.
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
from headrace.origin.object_calls import Stores, can_match, translated, version_of, within
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
    """full: the path in the bucket of a key. head: the origin's own. by_generation: the store compares generations
    and not ETags (GCS)."""

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
        what = f"{self._url}/{key}"
        deadline.check(what)
        check_new_key(what, key)
        check_key_length(self._url, key)
        upload = Upload(source, self._sizes, self._threads, what, deadline)
        if upload.is_single:
            result = await self._put_single(key, upload, condition, attributes, what, deadline)
        else:
            result = await self._put_parts(key, upload, condition, attributes, what, deadline)
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
        what: str,
        deadline: Deadline,
    ) -> PutResult:
        async with within(deadline, what), self._budget.hold(upload.memory_bytes):
            mode = await self._mode(key, condition, what, deadline)
            with translated(what, translate_put):
                return await upload.send(
                    self._stores.puts, self._full(key), to_metadata(attributes), tags_of(attributes), mode
                )

    async def _put_parts(
        self,
        key: str,
        upload: Upload,
        condition: Condition,
        attributes: Attributes,
        what: str,
        deadline: Deadline,
    ) -> PutResult:
        async def check() -> None:
            if condition is not None:
                check_condition(what, condition, await self._version(key, deadline))

        await check()  # before all is sent for nothing
        async with contextlib.AsyncExitStack() as held:
            async with within(deadline, what):
                await held.enter_async_context(self._budget.hold(upload.memory_bytes))
                store = await self._conditions.store_for_parts(condition)
            with translated(what, translate_put):
                return await upload.send_parts(
                    store, self._full(key), to_metadata(attributes), tags_of(attributes), check
                )

    async def _version(self, key: str, deadline: Deadline) -> Version | None:
        try:
            return (await self._head(key, deadline=deadline)).version
        except PathNotFoundError:
            return None

    async def _mode(self, key: str, condition: Condition, what: str, deadline: Deadline) -> PutMode:
        if condition is None:
            return "overwrite"
        heeds = await self._conditions.of_single()
        if isinstance(condition, Absent) and heeds.create:
            return "create"
        by_token = heeds.update and not self._by_generation
        if isinstance(condition, Version) and by_token and can_match(condition.token):
            return {"e_tag": condition.token}
        meta = await self._look(key, what)
        check_condition(what, condition, None if meta is None else version_of(meta))
        if meta is not None and heeds.update:
            if self._by_generation and meta["version"]:
                return {"version": meta["version"]}
            if not self._by_generation and can_match(meta["e_tag"] or ""):
                return {"e_tag": version_of(meta).token}
        return "overwrite"

    async def _look(self, key: str, what: str) -> ObjectMeta | None:
        try:
            with translated(what):
                return await obstore.head_async(self._stores.objects, self._full(key))
        except PathNotFoundError:
            return None

    # -- removing

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """An object store answers the removal of nothing as that of something, and obstore gives it no condition: so
        the object is looked at just before."""
        what = f"{self._url}/{key}"
        found = (await self._head(key, deadline=deadline)).version
        check_condition(what, condition, found)
        async with within(deadline, what):
            with translated(what):
                await obstore.delete_async(self._stores.objects, self._full(key))

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        """Nothing: folders are prefixes."""
        deadline.check(f"{self._url}/{key}")
        check_new_key(f"{self._url}/{key}", key)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        """Markers stay: obstore can't name a key that ends in a slash."""
        what = f"{self._url}/{key}"
        path = self._full(key)
        async with within(deadline, what):
            with translated(what):
                stream = obstore.list(self._stores.listings, prefix=path or None, chunk_size=2)
                async for metas in stream:
                    if any(meta["path"] != path for meta in metas):
                        raise DirectoryNotEmptyError(what, why="something is in it")

    def close(self) -> None:
        self._threads.close()
