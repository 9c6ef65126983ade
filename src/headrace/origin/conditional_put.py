"""Probe which preconditions of a put a store enforces itself.

The node tries them once with a temporary object of a hidden name, before the first put that has a condition. It
probes single requests and multipart uploads separately. A process that is killed during the probe leaves its object
behind; a probe a day later removes it.

obstore gives a multipart upload no condition. On S3 the request that completes an upload takes If-Match and
If-None-Match. Such an upload therefore gets a client of its own that sends the header with each request. The probe
shows whether the store enforces it there and ignores it elsewhere. (Azure signs these headers, and GCS has no
conditions for parts, so neither is probed.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore

from headrace.base.errors import ConflictError, HeadraceError, OriginDeniedError
from headrace.origin.object_calls import Stores, WithHeaders, can_match, translated
from headrace.origin.object_pages import ObjectPages
from headrace.origin.obstore_errors import translate_put
from headrace.origin.origin import HIDDEN, Absent, Condition, hidden_name

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

_WRONG_TOKEN = '"0x1"'
_NEW = {"if-none-match": "*"}
STALE = timedelta(days=1)
"""Age after which an object of a probe is a leftover of a killed process."""
LEFT_MAX = 1000
"""Most leftover objects that one probe examines: the first page of a listing."""


@dataclass(frozen=True, slots=True)
class Support:
    """Names the conditions that a store enforces: `create` (no object yet) and `update` (a given version)."""

    create: bool
    update: bool


class ConditionalPuts:
    """Probes and remembers a store's support. `full` returns the path of a key in the bucket. `by_generation`: the
    store compares generations instead of ETags (GCS)."""

    def __init__(self, url: str, stores: Stores, full: Callable[[str], str], *, by_generation: bool) -> None:
        self._url = url
        self._target = f"{url} (probe of its conditions)"
        self._stores = stores
        self._full = full
        self._by_generation = by_generation
        self._probing = asyncio.Lock()
        self._single: Support | None = None
        self._parts: Support | None = None

    async def of_single(self) -> Support:
        """Return the support for single requests. Raise a retryable HeadraceError if the store can't be probed
        now."""
        async with self._probing:
            if self._single is None:
                self._single = await self._probe_single()
        return self._single

    async def store_for_parts(self, condition: Condition) -> ObjectStore:
        """Return a client that enforces the condition in multipart uploads if the store supports that, else one that
        does not."""
        conditional = self._stores.conditional
        if conditional is None or condition is None:
            return self._stores.parts
        async with self._probing:
            if self._parts is None:
                self._parts = await self._probe_parts(conditional)
        support = self._parts or Support(create=False, update=False)
        if isinstance(condition, Absent):
            return conditional(_NEW, retries=True) if support.create else self._stores.parts
        if support.update and can_match(condition.token):
            return conditional({"if-match": condition.token}, retries=True)
        return self._stores.parts

    async def _probe_single(self) -> Support:
        path = self._probe_path()
        try:
            await self._put(self._stores.puts, path, "overwrite")
        except OriginDeniedError:
            return Support(create=False, update=False)  # the put itself will show if only this name is denied
        wrong: PutMode = {"version": "1"} if self._by_generation else {"e_tag": _WRONG_TOKEN}
        try:
            create = await self._refused(self._stores.puts, path, "create")
            update = await self._refused(self._stores.puts, path, wrong)
            await self._sweep(path)
        finally:
            await self._remove(path)
        if not (create and update):
            log.warning(
                "origin enforces no conditions, versions are compared before each put url=%s create=%s update=%s",
                self._url,
                create,
                update,
            )
        return Support(create, update)

    async def _probe_parts(self, conditional: WithHeaders) -> Support | None:
        """Probe multipart uploads; a condition that holds must also let an upload through. Return None if the store
        can't be probed now."""
        old, new = self._probe_path(), self._probe_path()

        async def refused(headers: dict[str, str], path: str) -> bool:
            return await self._refused(conditional(headers, retries=False), path, None)

        try:
            token = await self._put(self._stores.puts, old, "overwrite")
            create = await refused(_NEW, old) and not await refused(_NEW, new)
            wrong, right = {"if-match": _WRONG_TOKEN}, {"if-match": token}
            update = await refused(wrong, old) and not await refused(right, old)
        except HeadraceError as error:
            log.info("conditions of multipart uploads can't be probed url=%s why=%s", self._url, error)
            return None if error.retryable else Support(create=False, update=False)
        finally:
            await self._remove(old)
            await self._remove(new)
        log.info("conditions of multipart uploads url=%s create=%s update=%s", self._url, create, update)
        return Support(create, update)

    async def _sweep(self, own: str) -> None:
        """Remove the objects that probes of killed processes left. `own` is an object that was put just now, so its
        time is the store's current time."""
        first = self._full(HIDDEN)
        try:
            with translated(self._target):
                pages = ObjectPages(
                    self._stores.listings,
                    prefix=self._full("") or None,
                    offset=first,
                    chunk_size=LEFT_MAX,
                )
                metas = list(await anext(pages))
            for path in stale([meta for meta in metas if meta["path"].startswith(first)], own):
                await self._remove(path)
        except StopAsyncIteration:
            pass
        except HeadraceError as error:
            log.info("leftovers of earlier probes can't be listed url=%s why=%s", self._url, error)

    def _probe_path(self) -> str:
        return self._full(hidden_name())

    async def _put(self, store: ObjectStore, path: str, mode: PutMode | None) -> str:
        """Put the temporary object and return its token; in parts if mode is None."""
        with translated(self._target, translate_put):
            if mode is None:
                result = await obstore.put_async(store, path, b"trial", use_multipart=True)
            else:
                result = await obstore.put_async(store, path, b"trial", mode=mode, use_multipart=False)
        return result["e_tag"] or ""

    async def _refused(self, store: ObjectStore, path: str, mode: PutMode | None) -> bool:
        """Return whether the store rejected the put because of its condition. For a single request, another permanent
        error means that the store takes no conditions, and counts as no; for parts it is raised."""
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
            with translated(self._target):
                await obstore.delete_async(self._stores.objects, path)
        except FileNotFoundError:
            pass
        except HeadraceError as error:
            log.warning("temporary object of a probe was not removed path=%s why=%s", ascii(path), error)


def stale(metas: Sequence[ObjectMeta], own: str) -> list[str]:
    """Return the paths of objects that are older than any probe. `own` is the path of one that was put just now;
    without it no age is known."""
    now = next((meta["last_modified"] for meta in metas if meta["path"] == own), None)
    return [meta["path"] for meta in metas if now is not None and meta["last_modified"] < now - STALE]
