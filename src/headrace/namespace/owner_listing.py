"""Share listings between nodes: the node that owns a directory lists it at the origin once for all nodes."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from headrace.base import boot_clock
from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.base.model import FileId
from headrace.namespace.pending_rows import PendingRows
from headrace.ring.view import ClusterView, NodeInfo
from headrace.store.index import Index
from headrace.wire.peer_messages import Names

if TYPE_CHECKING:
    from headrace.peer.client import PeerClient

log = logging.getLogger(__name__)

NAMES_A_PAGE = 1000


class OwnerNames:
    """Answer peers for the directories that this node owns, with the origin's rows."""

    def __init__(self, index: Index, pending: PendingRows) -> None:
        self._index = index
        self._pending = pending

    def pages(self, directory: FileId) -> Iterator[Names]:
        """Yield the rows of a directory in pages. The index must have its listing. Rows may change before the next page
        is taken. The pages are good as long as the listing from which the first one came, at most."""
        path, until_ns = self._index.path_of(directory) or b"", self._index.fresh_until_ns(directory)
        children = self._pending.at_origin(path, directory, self._index.children(directory))
        is_last = False
        while not is_last:
            rows = [*islice(children, NAMES_A_PAGE)]
            is_last = len(rows) < NAMES_A_PAGE
            good_for_s = _seconds_until(min(until_ns, self._index.fresh_until_ns(directory)))
            yield Names(rows=rows, good_for_s=good_for_s, last=is_last)

    def page_of(self, directory: FileId, name: bytes) -> Names:
        """Return the row of a single name."""
        entry = self._index.lookup(directory, name)
        row = self._pending.row_at_origin(self._index.path_of(directory) or b"", name, entry)
        good_for_s = _seconds_until(self._index.fresh_until_ns(directory))
        return Names(rows=[] if row is None else [row], good_for_s=good_for_s, last=True)


class OwnerListingClient:
    """Query the owners of directories. `timeout_s` bounds one listing; the lookup of a single name gets a tenth of
    it."""

    def __init__(
        self,
        me: str,
        peers: PeerClient,
        *,
        view: Callable[[], ClusterView],
        replicas: int,
        timeout_s: float,
    ) -> None:
        self._me = me
        self._peers = peers
        self._view = view
        self._replicas = replicas
        self._timeout_s = timeout_s

    def owns(self, path: bytes) -> bool:
        """Return whether this node is the directory's owner, or the first owner that can be reached."""
        return self._owner(path) is None

    def listing(self, path: bytes, *, anew: bool) -> AsyncIterator[Names] | None:
        """Return the owner's listing in pages; None if this node is the owner, or no owner can be reached. Reading it
        raises HeadraceError if the owner fails."""
        owner = self._owner(path)
        if owner is None:
            return None
        deadline = Deadline.after(self._timeout_s)
        return self._peers.list(owner, path, anew=anew, epoch=self._view().epoch, deadline=deadline)

    async def lookup(self, path: bytes, name: bytes, *, anew: bool = False) -> Names | None:
        """Return one name from the owner; None if the caller must ask the origin. anew: the owner looks it up at the
        origin, however fresh its listing is."""
        owner = self._owner(path)
        if owner is None:
            return None
        deadline = Deadline.after(self._timeout_s / 10)
        try:
            return await self._peers.lookup(
                owner, path, name, epoch=self._view().epoch, anew=anew, deadline=deadline
            )
        except HeadraceError as error:
            log.info("lookup at the owner of the directory failed path=%s error=%s", os.fsdecode(path), error)
            return None

    def _owner(self, path: bytes) -> NodeInfo | None:
        """Return the first owner that can be reached; None if this node comes before it in the ring, or none can be
        reached."""
        for owner in self._view().owners(path, replicas=self._replicas):
            if owner.id == self._me:
                return None
            if self._peers.usable(owner):
                return owner
        return None


def _seconds_until(time_ns: int) -> float:
    """Return the seconds until a time of CLOCK_BOOTTIME; 0 if it has passed."""
    return max(0.0, (time_ns - boot_clock.now_ns()) / 1e9)
