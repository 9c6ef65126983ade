"""Decide which tenants give way when a volume needs space. `store/groups.py` says how the store asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.policy.dues import DEFAULT_ENTITLEMENT, NO_TENANT, Entitlement, FairPart, divide

Tenants = tuple[str, ...]
"""A tenant after its parents, as in EvictionGroup."""


class TenantDivision:
    """Divides the space of a node. group_of: takes a file id; may be called under the store's lock, and must not block.
    usable_bytes: of the node, up to the low watermark: guarantees that are more together shrink in proportion."""

    def __init__(self, group_of: Callable[[FileId], EvictionGroup], usable_bytes: int) -> None:
        self.group_of = group_of
        self._usable_bytes = usable_bytes
        self._entitlements: Mapping[str, Entitlement] = {}

    def admits(self, id: FileId, *, is_read: bool = True) -> bool:
        return True

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        return ()

    def update(
        self, entitlements: Mapping[str, Entitlement], parents: Mapping[str, str] | None = None
    ) -> None:
        """Replace what the tenants may have, in bytes of this node. parents: of tenants that have one; their guarantees
        are within the parent's. Call `CacheSpace.regroup` afterwards."""
        guaranteed = sum(
            entitlement.guaranteed
            for tenant, entitlement in entitlements.items()
            if tenant not in (parents or {})
        )
        kept = min(1.0, self._usable_bytes / guaranteed) if guaranteed else 1.0
        self._entitlements = {
            tenant: Entitlement(
                int(entitlement.guaranteed * kept),
                None if entitlement.limit is None else int(entitlement.limit),
                entitlement.share,
            )
            for tenant, entitlement in entitlements.items()
        }

    def guaranteed_bytes(self, tenant: str) -> int:
        return int(self._entitlements.get(tenant, DEFAULT_ENTITLEMENT).guaranteed)

    def limit_bytes(self, tenant: str) -> int | None:
        limit = self._entitlements.get(tenant, DEFAULT_ENTITLEMENT).limit
        return None if limit is None else int(limit)

    def losses(
        self, bytes_needed: int, used: Mapping[Tenants, int], evictable: Mapping[Tenants, int], *, part: float
    ) -> dict[Tenants, int]:
        """Return what each tenant loses: those furthest above their dues are lowered to one level. Parents are compared
        first, with all that their children use; then the children of each."""
        losses: dict[Tenants, int] = {}
        pending = [(bytes_needed, 0, list(used))]
        while pending:
            bytes_needed, depth, candidates = pending.pop()
            children: dict[str, list[Tenants]] = {}
            for tenants in candidates:
                children.setdefault(tenants[depth] if depth < len(tenants) else NO_TENANT, []).append(tenants)
            for name, loss_bytes in self._shared_loss(bytes_needed, children, used, evictable, part).items():
                if len(children[name]) > 1 and loss_bytes:
                    pending.append((loss_bytes, depth + 1, children[name]))
                elif loss_bytes:
                    losses[children[name][0]] = loss_bytes
        return losses

    def _shared_loss(
        self,
        bytes_needed: int,
        children: Mapping[str, list[Tenants]],
        used: Mapping[Tenants, int],
        evictable: Mapping[Tenants, int],
        part: float,
    ) -> dict[str, int]:
        """Divide a loss among the tenants of one parent."""
        parts: dict[str, FairPart] = {}
        for name, members in children.items():
            used_bytes = sum(used[tenants] for tenants in members)
            least_bytes = used_bytes - sum(evictable.get(tenants, 0) for tenants in members)
            entitlement = self._entitlements.get(name, DEFAULT_ENTITLEMENT)
            parts[name] = FairPart(entitlement.guaranteed * part, entitlement.share, least_bytes, used_bytes)
        left = divide(sum(part.most for part in parts.values()) - bytes_needed, parts)
        return {
            name: min(int(part.most - part.least), math.ceil(part.most - left[name] - 1e-3))
            for name, part in parts.items()
        }
