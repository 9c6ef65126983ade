"""Decide which tenants give way when a volume needs space. `store/groups.py` says how the store asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.policy.dues import DEFAULT_ENTITLEMENT, Entitlement, FairPart, divide


class TenantDivision:
    """Divides the space of a node. group_of: takes a file id; may be called under the store's lock, and must not block.
    usable_bytes: of the node, up to the low watermark: guarantees that are more together shrink in proportion."""

    def __init__(self, group_of: Callable[[FileId], EvictionGroup], usable_bytes: int) -> None:
        self.group_of = group_of
        self._usable_bytes = usable_bytes
        self._entitlements: Mapping[str, Entitlement] = {}

    def update(self, entitlements: Mapping[str, Entitlement]) -> None:
        """Replace what the tenants may have, in bytes of this node. Call `CacheSpace.regroup` afterwards."""
        guaranteed = sum(entitlement.guaranteed for entitlement in entitlements.values())
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
        self, bytes_needed: int, used: Mapping[str, int], evictable: Mapping[str, int], *, part: float
    ) -> dict[str, int]:
        """Return what each tenant loses: those furthest above their dues are lowered to one level."""
        parts = {}
        for tenant, evictable_bytes in evictable.items():
            entitlement = self._entitlements.get(tenant, DEFAULT_ENTITLEMENT)
            parts[tenant] = FairPart(
                entitlement.guaranteed * part,
                entitlement.share,
                used[tenant] - evictable_bytes,
                used[tenant],
            )
        left = divide(sum(used[tenant] for tenant in parts) - bytes_needed, parts)
        return {
            tenant: min(evictable[tenant], math.ceil(used[tenant] - left[tenant] - 1e-3)) for tenant in parts
        }
