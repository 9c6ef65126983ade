"""Which conditions of a put a store decides by itself: found by trying, with an object of a hidden name, once each for
puts in one request and for uploads in parts, before the first that has a condition. A process that is killed meanwhile
leaves its object behind: one that tries a day later removes it.

obstore gives an upload in parts no condition. On S3 the request that completes one takes If-Match and If-None-Match,
so such an upload gets a client of its own that sends that header with each of its requests; the trial tells whether
the store heeds it there, and takes no offence elsewhere. (Azure signs these headers, and GCS has no conditions for
parts: there it isn't tried.)
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore

from headrace.base.errors import ConflictError, HeadraceError, OriginDeniedError
from headrace.origin.object_calls import Stores, WithHeaders, can_match, translated
from headrace.origin.obstore_errors import translate_put
from headrace.origin.origin import HIDDEN, Absent, Condition

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

_WRONG_TOKEN = '"0x1"'
_NEW = {"if-none-match": "*"}
STALE = timedelta(days=1)
LEFT_MAX = 1000
"""Objects that others left and that are looked at, of one trial: the first page of a listing."""


@dataclass(frozen=True, slots=True)
class Support:
    create: bool
    update: bool


class ConditionalPuts:
    """full: the path in the bucket of a key. by_generation: the store compares generations and not ETags (GCS)."""

    def __init__(self, url: str, stores: Stores, full: Callable[[str], str], *, by_generation: bool) -> None:
        self._url = url
        self._what = f"{url} (a trial of its conditions)"
        self._stores = stores
        self._full = full
        self._by_generation = by_generation
        self._trying = asyncio.Lock()
        self._single: Support | None = None
        self._parts: Support | None = None

    async def of_single(self) -> Support:
        """A retryable HeadraceError when the store can't be asked now."""
        async with self._trying:
            if self._single is None:
                self._single = await self._try_single()
        return self._single

    async def store_for_parts(self, condition: Condition) -> ObjectStore:
        """One that decides the condition, where that works; else the one that does not."""
        conditional = self._stores.conditional
        if conditional is None or condition is None:
            return self._stores.parts
        async with self._trying:
            if self._parts is None:
                self._parts = await self._try_parts(conditional)
        heeds = self._parts or Support(create=False, update=False)
        if isinstance(condition, Absent):
            return conditional(_NEW, retries=True) if heeds.create else self._stores.parts
        if heeds.update and can_match(condition.token):
            return conditional({"if-match": condition.token}, retries=True)
        return self._stores.parts

    async def _try_single(self) -> Support:
        path = self._trial_path()
        try:
            await self._put(self._stores.puts, path, "overwrite")
        except OriginDeniedError:
            return Support(create=False, update=False)  # perhaps only this name; the put itself will tell
        wrong: PutMode = {"version": "1"} if self._by_generation else {"e_tag": _WRONG_TOKEN}
        try:
            create = await self._refused(self._stores.puts, path, "create")
            update = await self._refused(self._stores.puts, path, wrong)
            await self._sweep(path)
        finally:
            await self._remove(path)
        if not (create and update):
            log.warning(
                "origin heeds no conditions, its objects are looked at before each put url=%s create=%s update=%s",
                self._url,
                create,
                update,
            )
        return Support(create, update)

    async def _try_parts(self, conditional: WithHeaders) -> Support | None:
        """A condition that holds must let an upload through, too. None: the store can't be asked now."""
        old, new = self._trial_path(), self._trial_path()

        async def refused(headers: dict[str, str], path: str) -> bool:
            return await self._refused(conditional(headers, retries=False), path, None)

        try:
            token = await self._put(self._stores.puts, old, "overwrite")
            create = await refused(_NEW, old) and not await refused(_NEW, new)
            wrong, right = {"if-match": _WRONG_TOKEN}, {"if-match": token}
            update = await refused(wrong, old) and not await refused(right, old)
        except HeadraceError as error:
            log.info("conditions of uploads in parts can't be tried url=%s why=%s", self._url, error)
            return None if error.retryable else Support(create=False, update=False)
        finally:
            await self._remove(old)
            await self._remove(new)
        log.info("conditions of uploads in parts url=%s create=%s update=%s", self._url, create, update)
        return Support(create, update)

    async def _sweep(self, own: str) -> None:
        """Removes what trials of killed processes left. own: an object that was put just now, so its time is what the
        store's clock says."""
        first = self._full(HIDDEN)
        try:
            with translated(self._what):
                stream = obstore.list(
                    self._stores.listings,
                    prefix=self._full("") or None,
                    offset=first,
                    chunk_size=LEFT_MAX,
                )
                found = list(await stream.__anext__())
            for path in stale([meta for meta in found if meta["path"].startswith(first)], own):
                await self._remove(path)
        except StopAsyncIteration:
            pass
        except HeadraceError as error:
            log.info("what earlier trials left is not looked for url=%s why=%s", self._url, error)

    def _trial_path(self) -> str:
        return self._full(f"{HIDDEN}{secrets.token_hex(8)}")

    async def _put(self, store: ObjectStore, path: str, mode: PutMode | None) -> str:
        """Its token. In parts when mode is None."""
        with translated(self._what, translate_put):
            if mode is None:
                result = await obstore.put_async(store, path, b"trial", use_multipart=True)
            else:
                result = await obstore.put_async(store, path, b"trial", mode=mode, use_multipart=False)
        return result["e_tag"] or ""

    async def _refused(self, store: ObjectStore, path: str, mode: PutMode | None) -> bool:
        """Whether the condition was found not to hold. In one request, an error that is none of a condition's means
        that the store can't be asked with one, and counts as no; in parts it is raised."""
        try:
            await self._put(store, path, mode)
        except ConflictError:
            return True
        except HeadraceError as error:
            if error.retryable or mode is None:
                raise
        return False

    async def _remove(self, path: str) -> None:
        try:
            with translated(self._what):
                await obstore.delete_async(self._stores.objects, path)
        except FileNotFoundError:
            pass
        except HeadraceError as error:
            log.warning("trial object stays path=%s why=%s", ascii(path), error)


def stale(metas: Sequence[ObjectMeta], own: str) -> list[str]:
    """Paths of those that are older than a trial takes. own: the path of one that was put just now; without it no age
    is known."""
    now = next((meta["last_modified"] for meta in metas if meta["path"] == own), None)
    return [meta["path"] for meta in metas if now is not None and meta["last_modified"] < now - STALE]
