"""Fetch listings and single names from the node that owns a directory. The owner lists it at the origin once for all
nodes."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from headrace.base.deadline import Deadline
from headrace.base.errors import HeadraceError
from headrace.ring.view import ClusterView, NodeInfo
from headrace.wire.peer_messages import Names

if TYPE_CHECKING:
    from headrace.peer.client import PeerClient

log = logging.getLogger(__name__)


class OwnerListingClient:
    """Implement `SharedNames` of namespace/tree.py with calls to peers. `timeout_s` bounds one listing; the lookup of
    a single name gets a tenth of it."""

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

    def ours(self, path: bytes) -> bool:
        return self._owner(path) is None

    def listing(self, path: bytes, *, anew: bool) -> AsyncIterator[Names] | None:
        owner = self._owner(path)
        if owner is None:
            return None
        deadline = Deadline.after(self._timeout_s)
        return self._peers.list(owner, path, anew=anew, epoch=self._view().epoch, deadline=deadline)

    async def lookup(self, path: bytes, name: bytes) -> Names | None:
        owner = self._owner(path)
        if owner is None:
            return None
        deadline = Deadline.after(self._timeout_s / 10)
        try:
            return await self._peers.lookup(owner, path, name, epoch=self._view().epoch, deadline=deadline)
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
