"""Sort the cache files into groups, by priority and tenant. The tenants' policy lies above the store, which is handed
this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId

Tenants = tuple[str, ...]
"""A tenant after its parents, as in EvictionGroup."""


class SpaceDivision(Protocol):
    """Knows the group of each file, and what each tenant may have. Its answers may change: see `CacheSpace.regroup`.
    Called from any thread, under the store's lock."""

    def group_of(self, id: FileId) -> EvictionGroup: ...

    def admits(self, id: FileId, *, is_read: bool = True) -> bool:
        """Return whether a file enters the cache. is_read: this call counts as a read of it."""
        ...

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        """Return the tiers where a file may lie, by preference; () for any."""
        ...

    def guaranteed_bytes(self, tenant: str) -> int:
        """Return the bytes on this node below which other tenants evict nothing of this one."""
        ...

    def limit_bytes(self, tenant: str) -> int | None:
        """Return the bytes on this node that a tenant never exceeds; None for no limit."""
        ...

    def losses(
        self, bytes_needed: int, used: Mapping[Tenants, int], evictable: Mapping[Tenants, int], *, part: float
    ) -> dict[Tenants, int]:
        """Return how many bytes each tenant loses: what is needed, or all that is evictable.

        used: bytes of each tenant on a volume, without its children; the volume has `part` of the node's capacity.
        evictable: the most that each may lose, at most what it uses; nothing where it is missing.
        """
        ...


class OneGroup:
    """The division of a store without tenants and priorities: every file is in one group."""

    def group_of(self, id: FileId) -> EvictionGroup:
        return FIRST_GROUP

    def admits(self, id: FileId, *, is_read: bool = True) -> bool:
        return True

    def tiers_of(self, id: FileId) -> tuple[str, ...]:
        return ()

    def guaranteed_bytes(self, tenant: str) -> int:
        return 0

    def limit_bytes(self, tenant: str) -> int | None:
        return None

    def losses(
        self, bytes_needed: int, used: Mapping[Tenants, int], evictable: Mapping[Tenants, int], *, part: float
    ) -> dict[Tenants, int]:
        return {tenants: min(size_bytes, bytes_needed) for tenants, size_bytes in evictable.items()}


FIRST_GROUP = EvictionGroup()
"""The group of files without a tenant and with the usual priority. Its files need no memory here."""


class FileGroups:
    """Remember the group of each cache file as a number, and the bytes that each tenant uses on all disks."""

    def __init__(self, division: SpaceDivision) -> None:
        self.division = division
        self.groups = [FIRST_GROUP]
        self._numbers_by_group = {FIRST_GROUP: 0}
        self._numbers: dict[FileId, int] = {}  # of files outside the first group
        self._used: dict[str, int] = {}

    def assign(self, id: FileId) -> int:
        """Ask for the group of a file, remember it and return its number."""
        group = self.division.group_of(id)
        number = self._numbers_by_group.get(group)
        if number is None:
            number = self._numbers_by_group[group] = len(self.groups)
            self.groups.append(group)
        if number:
            self._numbers[id] = number
        else:
            self._numbers.pop(id, None)
        return number

    def forget(self, id: FileId) -> None:
        self._numbers.pop(id, None)

    def number_of(self, id: FileId) -> int:
        return self._numbers.get(id, 0)

    def tenants_of(self, id: FileId) -> Tenants:
        return self.groups[self._numbers.get(id, 0)].tenants

    def charge(self, id: FileId, count: int) -> None:
        """Add bytes to what the tenant of a file uses; a negative count frees them."""
        for tenant in self.tenants_of(id):
            self._used[tenant] = self._used.get(tenant, 0) + count

    def tenants(self) -> set[str]:
        """Return the tenants that have, or had, a file."""
        return {tenant for group in self.groups for tenant in group.tenants}

    def used_bytes(self, tenant: str) -> int:
        """Return the bytes of the files of a tenant and its children, also of those that are being written."""
        return self._used.get(tenant, 0)

    def excess_bytes(self, tenant: str, count: int = 0) -> int:
        """Return by how much a tenant is above its limit with `count` bytes more; 0 if it is not."""
        limit_bytes = self.division.limit_bytes(tenant)
        if limit_bytes is None:
            return 0
        return max(0, self.used_bytes(tenant) + count - limit_bytes)
