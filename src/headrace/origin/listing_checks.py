"""Detect listings that an object store did not make, or broke off, where obstore finds no fault in them.

A page of a proxy or a captive portal is a listing without names for obstore. A store without ListObjectsV2 answers
with its first names only, and with no token that continues the listing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.base.clock import monotonic_s
from headrace.base.deadline import Deadline
from headrace.base.errors import OriginDeniedError, OriginError, OriginUnavailableError, PathNotFoundError
from headrace.origin.object_calls import Stores, head_object, translated, within
from headrace.origin.object_pages import ObjectPages
from headrace.origin.obstore_errors import translate_listing
from headrace.origin.origin import hidden_name

if TYPE_CHECKING:
    from obstore import ObjectMeta

FULL_PAGE = 1000
"""Names in a full page of a listing. A listing that was broken off has as many."""
PROVED_FOR_S = 1.0
"""Seconds for which an answer shows that the store itself answers: a tree of new directories is listed meanwhile."""
_BELOW = "/ "
"""Follows the path of a directory marker in a key that sorts behind the marker, and before what the directory has."""


class ReceivedKeys:
    """Counts the keys of one listing, and remembers where they end."""

    def __init__(self) -> None:
        self.count = 0
        self.last_path = ""
        self._may_be_marker = False

    def add(self, metas: Sequence[ObjectMeta]) -> None:
        self.count += len(metas)
        if metas:
            self.last_path, self._may_be_marker = metas[-1]["path"], not metas[-1]["size"]

    @property
    def fills_pages(self) -> bool:
        """Return whether the store may have more keys. The directory's own marker is not counted."""
        return self.count % FULL_PAGE in (0, FULL_PAGE - 1)

    @property
    def offset(self) -> str:
        """Return a path behind the last key. obstore drops the slash of a marker."""
        return f"{self.last_path}{_BELOW}" if self._may_be_marker else self.last_path


class ListingChecks:
    """Checks the listings of one store. `full` returns the path of a key in the bucket. can_continue: whether the store
    can begin a listing at a key (S3, GCS)."""

    def __init__(self, url: str, stores: Stores, full: Callable[[str], str], *, can_continue: bool) -> None:
        self._url = url
        self._stores = stores
        self._full = full
        self.needs_second_page = can_continue
        """True until a listing of this store had a second page: then the store continues its listings."""
        self._proved_until_s = float("-inf")

    def receive(self, received: ReceivedKeys, metas: Sequence[ObjectMeta]) -> None:
        """Record the next keys of a listing, FULL_PAGE at most."""
        if received.count:
            self.needs_second_page = False
        received.add(metas)
        if metas:
            self._proved_until_s = monotonic_s() + PROVED_FOR_S

    async def check_end(self, key: str, received: ReceivedKeys, deadline: Deadline) -> None:
        """Check a listing that came to its end. Raise OriginUnavailableError if no store made it, or if the store has
        more names; OriginError if the store can't list more names."""
        if not received.count:
            await self._check_is_store(key, deadline)
        elif self.needs_second_page and received.fills_pages:
            await self._check_is_last(key, received, deadline)

    async def _check_is_store(self, key: str, deadline: Deadline) -> None:
        """Query an object that can't exist, unless the store answered just now: it says that it has none."""
        if monotonic_s() < self._proved_until_s:
            return
        target = f"{self._url}/{key}"
        name = hidden_name()
        async with within(deadline, target):
            try:
                with translated(target):
                    await head_object(self._stores.listings, self._full(f"{key}/{name}" if key else name))
            except (PathNotFoundError, OriginDeniedError):
                self._proved_until_s = monotonic_s() + PROVED_FOR_S
                return
        raise OriginUnavailableError(target, why="the answer is not that of an object store")

    async def _check_is_last(self, key: str, received: ReceivedKeys, deadline: Deadline) -> None:
        target = f"{self._url}/{key}"
        async with within(deadline, target):
            with translated(target, translate_listing):
                pages = ObjectPages(
                    self._stores.listings,
                    prefix=self._full(key) or None,
                    offset=received.offset,
                    chunk_size=2,
                )
                paths: list[str] = []
                async for metas in pages:
                    paths = [meta["path"] for meta in metas]
                    break
        if any(path < received.last_path for path in paths):
            raise OriginError(
                target,
                why="the store breaks off its listings",
                hint="use a store, or a release of it, with ListObjectsV2",
            )
        if any(path > received.last_path for path in paths):
            raise OriginUnavailableError(target, why="the store broke off the listing")
