"""Simulate a cache of several tenants with the groups and policies of the store, without a disk."""

from __future__ import annotations

from headrace.base.model import FileId
from headrace.store.borrowed_first import BorrowedFirst
from headrace.store.group_policy import SpaceRequest
from headrace.store.groups import FileGroups, SpaceDivision, Tenants


class SharedCache:
    """A cache of one volume. resident: the bytes of each file. written_bytes: of all files that were cached."""

    def __init__(self, capacity_bytes: int, division: SpaceDivision, *, policy: str = "s3fifo") -> None:
        self.resident: dict[FileId, int] = {}
        self.written_bytes = self.used_bytes = 0
        self.groups = FileGroups(division)
        self.pinned: set[FileId] = set()
        self._capacity_bytes = capacity_bytes
        self._policy = BorrowedFirst(policy, self.groups, 1.0)

    def read(self, id: FileId, size_bytes: int = 1) -> bool:
        """Read a file, and cache it if it fits. Return whether it was a hit."""
        if id in self.resident:
            self._policy.touch(id)
            return True
        self.groups.assign(id)
        tenants = self.groups.tenants_of(id)
        for tenant in reversed(tenants):
            excess_bytes = self.groups.excess_bytes(tenant, size_bytes)
            if excess_bytes:
                self._evict(self._policy.tenant_victims(self._request(excess_bytes, tenants, tenant)))
        over_bytes = self.used_bytes + size_bytes - self._capacity_bytes
        if over_bytes > 0:
            self._evict(self._policy.victims(self._request(over_bytes, tenants)))
        is_beyond = any(self.groups.excess_bytes(tenant, size_bytes) for tenant in tenants)
        if is_beyond or self.used_bytes + size_bytes > self._capacity_bytes:
            self.groups.forget(id)
            return False
        self.resident[id] = size_bytes
        self.used_bytes += size_bytes
        self.written_bytes += size_bytes
        self.groups.charge(id, size_bytes)
        self._policy.insert(id, size_bytes, borrowed=False)
        return False

    def trim(self, bytes_needed: int) -> None:
        """Evict as at the high watermark: for nobody."""
        self._evict(self._policy.victims(self._request(bytes_needed, None)))

    def regroup(self, id: FileId) -> None:
        self.groups.charge(id, -self.resident[id])
        self._policy.regroup(id)
        self.groups.charge(id, self.resident[id])

    def tenant_bytes(self) -> dict[str, int]:
        """Count the bytes of each tenant's files; those of none are of the tenant ""."""
        counted: dict[str, int] = {}
        for id, size_bytes in self.resident.items():
            for tenant in self.groups.tenants_of(id) or ("",):
                counted[tenant] = counted.get(tenant, 0) + size_bytes
        return counted

    def _request(
        self, bytes_needed: int, incoming: Tenants | None, within: str | None = None
    ) -> SpaceRequest:
        return SpaceRequest(bytes_needed, self.pinned.__contains__, incoming, lambda _, ids: ids, within)

    def _evict(self, ids: list[FileId]) -> None:
        for id in ids:
            size_bytes = self._policy.remove(id)
            self.groups.charge(id, -size_bytes)
            self.groups.forget(id)
            self.used_bytes -= size_bytes
            del self.resident[id]
