"""Pages of an object listing that can be awaited for a limited time.

A page that nobody awaits any more leaves its request in obstore's listing. If the response then arrives, and Python
frees the listing on one of its own threads, the connection can't return to the client's pool: the pool breaks, and
every later request of that client fails (obstore 0.12). So one more page is requested and cancelled, which holds
the listing on obstore's own threads, where it is freed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import obstore

if TYPE_CHECKING:
    from obstore import ListStream, ObjectMeta
    from obstore.store import ObjectStore


class ObjectPages:
    """Iterates over the pages of one listing. A page that was cancelled ends the listing: no other may be read."""

    def __init__(
        self, store: ObjectStore, *, prefix: str | None, chunk_size: int, offset: str | None = None
    ) -> None:
        """Begin a listing. Raise the errors of `obstore.list`."""
        # Only this attribute may refer to the listing: a traceback keeps the local variables of its frames.
        self._listing: ListStream[Sequence[ObjectMeta]] | None = obstore.list(
            store, prefix=prefix, offset=offset, chunk_size=chunk_size
        )

    def __aiter__(self) -> ObjectPages:
        return self

    async def __anext__(self) -> Sequence[ObjectMeta]:
        """Return the next page, of at most `chunk_size` objects. Raise the errors of obstore, and ValueError after a
        page was cancelled."""
        if self._listing is None:
            raise ValueError("a page of this listing was cancelled")
        try:
            return await self._listing.__anext__()
        except asyncio.CancelledError:
            self._free()
            raise

    def _free(self) -> None:
        if self._listing is not None:
            page = cast("asyncio.Future[object]", self._listing.__anext__())
            self._listing = None
            page.cancel()
