"""Let the policy divide the space of a node: which files give way first, and what each tenant may have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from headrace.base.clock import monotonic_s
from headrace.base.errors import HeadraceError
from headrace.base.eviction_group import EvictionGroup
from headrace.base.listeners import Listeners
from headrace.base.model import FileId
from headrace.base.tasks import OwnedTasks
from headrace.policy.admission import SecondReads
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import Tenant
from headrace.policy.dues import Entitlement
from headrace.policy.effects import CacheAdmission
from headrace.policy.tenant_division import TenantDivision
from headrace.ring.view import ClusterView
from headrace.store.groups import FIRST_GROUP
from headrace.store.index import Index
from headrace.store.space import CacheSpace

log = logging.getLogger(__name__)

SHARE_STEP = 0.01
"""Changes of a node's share that are too small to count: they would move no tenant by more than a hundredth."""


FIRST_READS = 1 << 20
FIRST_READ_S = 7 * 86400.0
"""First reads that are remembered, in 8 MiB, and for how long."""


class NodeCapacity:
    """The cache of a node, and its share of its cluster's. Sizes of tenants are those of the cluster, and each node
    keeps to its part of them. size_bytes: of the node's cache."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.changed: Listeners[[]] = Listeners()
        self.members: int | None = None
        """Nodes of the cluster; None before that is known, or without one."""
        self._share = 1.0

    def note_view(self, node_id: str, view: ClusterView) -> None:
        """Note the members of the cluster. node_id: of this node."""
        self.members = len(view.nodes)
        own = view.nodes.get(node_id)
        total_bytes = sum(node.capacity_bytes for node in view.nodes.values())
        share = own.capacity_bytes / total_bytes if own is not None and total_bytes else self._share
        if abs(share - self._share) > SHARE_STEP * self._share:
            self._share = share
            self.changed()

    @property
    def cluster_bytes(self) -> float:
        """Return the size of the caches of all nodes."""
        return self.size_bytes / self._share

    def entitlements(self, tenants: Mapping[str, Tenant]) -> dict[str, Entitlement]:
        """Return what each tenant may have on this node."""
        return entitlements_of(tenants, self.size_bytes, share=self._share)

    def cluster_entitlements(self, tenants: Mapping[str, Tenant]) -> dict[str, Entitlement]:
        """Return what each tenant may have on all nodes together."""
        return entitlements_of(tenants, self.cluster_bytes, share=1.0)


def entitlements_of(
    tenants: Mapping[str, Tenant], whole_bytes: float, *, share: float
) -> dict[str, Entitlement]:
    """Return what each tenant may have of a cache of that size. A share of a tenant with a parent is one of what the
    parent has. share: the part of the cluster's caches that this cache is."""
    entitlements: dict[str, Entitlement] = {}

    def part_of(amount: int | float, whole: float) -> float:
        return amount * (whole if isinstance(amount, float) else share)

    def entitle(tenant: Tenant) -> Entitlement:
        if tenant.name not in entitlements:
            whole = Entitlement(whole_bytes, whole_bytes)
            parent = entitle(tenants[tenant.parent]) if tenant.parent else whole
            limit_whole = whole_bytes if parent.limit is None else parent.limit
            limit = None if tenant.limit is None else part_of(tenant.limit, limit_whole)
            guaranteed = part_of(tenant.guaranteed, parent.guaranteed)
            entitlements[tenant.name] = Entitlement(guaranteed, limit, tenant.share)
        return entitlements[tenant.name]

    for tenant in tenants.values():
        entitle(tenant)
    return entitlements


class PolicyDivision(TenantDivision):
    """Divides a store by the policy. usable_bytes: as of TenantDivision."""

    def __init__(
        self, policy: CurrentPolicy, capacity: NodeCapacity, index: Index, *, usable_bytes: int
    ) -> None:
        super().__init__(self._group_of, usable_bytes)
        self._policy = policy
        self._capacity = capacity
        self._index = index
        self._is_divided = self._is_selective = self._has_tiers = False
        self._chains: dict[str, tuple[str, ...]] = {}
        self._second_reads = SecondReads(FIRST_READS, window_s=FIRST_READ_S, start_s=monotonic_s())
        self._apply()
        policy.changed.add(lambda _: self._apply())
        capacity.changed.add(self._apply)

    def admits(self, id: FileId, *, is_read: bool = True) -> bool:
        if not self._is_selective:
            return True
        path = self._index.path_of(id)
        admit = CacheAdmission.ALWAYS if path is None else self._policy.of(path).admit
        if admit is CacheAdmission.SECOND_READ:
            return is_read and self._second_reads.is_second(id, monotonic_s())
        return admit is CacheAdmission.ALWAYS

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        path = self._index.path_of(id) if self._has_tiers else None
        return () if path is None else self._policy.of(path).tiers

    def _apply(self) -> None:
        document = self._policy.resolver.document
        self._has_tiers = any("tiers" in rule.effects for rule in document.rules)
        self._is_selective = any("admit" in rule.effects for rule in document.rules)
        self._is_divided = bool(document.tenants) or any(
            "priority" in rule.effects for rule in document.rules
        )
        self._chains = {name: chain_of(name, document.tenants) for name in document.tenants}
        entitlements = self._capacity.entitlements(document.tenants)
        self.update(
            entitlements, {name: tenant.parent for name, tenant in document.tenants.items() if tenant.parent}
        )

    def _group_of(self, id: FileId) -> EvictionGroup:
        path = self._index.path_of(id) if self._is_divided else None
        if path is None:
            return FIRST_GROUP
        effects = self._policy.of(path)
        return EvictionGroup(effects.priority, self._chains.get(effects.tenant, ()))


def chain_of(name: str, tenants: Mapping[str, Tenant]) -> tuple[str, ...]:
    """Return the name of a tenant after those of its parents."""
    chain = [name]
    while parent := tenants[chain[0]].parent:
        chain.insert(0, parent)
    return tuple(chain)


class Regrouping:
    """Sorts the cached files into the groups of a changed policy, a few hundred at a time."""

    def __init__(self, space: CacheSpace, policy: CurrentPolicy) -> None:
        self._space = space
        self._tasks = OwnedTasks()
        self._changed = asyncio.Event()
        policy.changed.add(lambda _: self._changed.set())

    def start(self) -> None:
        self._tasks.start(self._run())

    async def stop(self) -> None:
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._regroup()
            except HeadraceError as error:
                log.warning("cached files stay in the groups of an earlier policy error=%s", error)

    async def _regroup(self) -> None:
        """Pass all cached files, or stop when the policy changes again."""
        last: FileId | None = FileId(0)
        while last is not None and not self._changed.is_set():
            last = self._space.regroup(last)
            await asyncio.sleep(0)
