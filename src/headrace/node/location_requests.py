"""Answer why a file is where it is: by the ring, by a rule, because it is hot, or because this node borrowed it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.base.errors import UsageError
from headrace.base.model import Entry
from headrace.base.namespace_path import check_path
from headrace.namespace.tree import NameTree
from headrace.policy.current import CurrentPolicy
from headrace.policy.effects import AUTO_REPLICAS
from headrace.ring.view import SEGMENT_BYTES
from headrace.store.store import Store
from headrace.wire.location_messages import FileLocation, LocationAsk, LocationShown, Role

if TYPE_CHECKING:
    from headrace.node.cluster_services import ClusterServices


class LocationRequests:
    """Answers for one node. cluster: None without one."""

    def __init__(
        self, tree: NameTree, store: Store, policy: CurrentPolicy, cluster: ClusterServices | None
    ) -> None:
        self._tree = tree
        self._store = store
        self._policy = policy
        self._cluster = cluster
        self.handlers: Mapping[type, Any] = {LocationAsk: self._show}

    async def _show(self, request: LocationAsk) -> LocationShown:
        path = request.path
        try:
            check_path(path)
        except ValueError as error:
            raise UsageError(f"path {os.fsdecode(path)[:300]}", why=str(error)) from error
        entry = self._tree.entry_at(path)
        owners: list[str] = []
        holders: list[str] = []
        copies, copies_by = 1, "this node has no cluster"
        if self._cluster is not None:
            wanted, pinned = self._cluster.copies_of(path)
            copies, copies_by = max(wanted, pinned), "pin" if pinned > wanted else self._decided_by(path)
            owners, holders = self._cluster.owners_of(path, copies)
        cached = None if entry is None else self._store.index.cached(entry.id)
        size_bytes = 0 if entry is None else entry.version.size_bytes
        location = FileLocation(
            segments=max(1, -(-size_bytes // SEGMENT_BYTES)),
            copies=copies,
            copies_by=copies_by,
            owners=owners,
            holders=holders,
            role="" if cached is None else self._role(owners, holders),
            pinned=cached is not None and cached.pinned,
            sealed=entry is not None and entry.id in self._store.sealed,
            waiting=entry is not None and self._is_waiting(entry),
        )
        return LocationShown(location)

    def _decided_by(self, path: bytes) -> str:
        """Return what decided the number of copies of a file in a cluster that no pin has more of."""
        for decision in self._policy.resolver.explain(path):
            if decision.effect == "replicas" and decision.rule:
                follows = ", reads" if decision.value == AUTO_REPLICAS else ""
                return f"rule {decision.rule}, line {decision.line}{follows}"
        return "configuration"

    def _role(self, owners: list[str], holders: list[str]) -> Role:
        """Return the role of this node for a file that it has."""
        me = "" if self._cluster is None else self._cluster.node_id
        if not owners or me == owners[0]:
            return "primary owner"
        if me in owners:
            return "owner"
        return "holder" if me in holders else "borrower"

    def _is_waiting(self, entry: Entry) -> bool:
        return self._cluster is not None and self._cluster.will_offer(entry.id)
