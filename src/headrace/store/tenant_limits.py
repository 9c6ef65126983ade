"""Keep each tenant's files within its limit on this node, over all disks."""

from __future__ import annotations

from headrace.base.errors import NoSpaceError
from headrace.base.model import FileId
from headrace.store.file_registry import FileRegistry
from headrace.store.victims import Victims
from headrace.store.volume import Volume

_SPARE_OF_LIMIT = 64


class TenantLimits:
    """The limits of the tenants of a store. Called under its lock; deleting files blocks for the disk."""

    def __init__(self, files: FileRegistry, disks: list[Volume], victims: Victims) -> None:
        self._files, self._disks, self._victims = files, disks, victims
        self._groups = files.accounts.groups

    def make_room(self, id: FileId, count: int) -> list[FileId]:
        """Evict files of the tenants that a file belongs to, so that it can grow by `count` bytes. Return them. Nothing
        is evicted for a file that is larger than a limit."""
        tenants = self._groups.tenants_of(id)
        limits = {tenant: self._groups.division.limit_bytes(tenant) for tenant in tenants}
        if any(limit_bytes is not None and count > limit_bytes for limit_bytes in limits.values()):
            return []
        evicted: list[FileId] = []
        for tenant in reversed(tenants):  # what its own limit frees counts for its parents
            excess_bytes = self._groups.excess_bytes(tenant, count)
            if excess_bytes:
                spare_bytes = min(count, (limits[tenant] or 0) // _SPARE_OF_LIMIT)
                evicted += self._evict(tenant, excess_bytes + spare_bytes, keep=id)
        return evicted

    def check(self, id: FileId, count: int) -> None:
        """Raise NoSpaceError if a file can't grow by `count` bytes within the limits of its tenants."""
        for tenant in self._groups.tenants_of(id):
            if self._groups.excess_bytes(tenant, count):
                raise NoSpaceError(
                    f"tenant {tenant} is at its limit",
                    why=f"{count} bytes are needed and none of its cached files can be evicted",
                    hint="unpin files of the tenant, or raise its limit",
                )

    def trim(self, step_bytes: int) -> list[FileId]:
        """Evict a step of what each tenant has above its limit: the limit was lowered, or written files were added.
        Return the ids."""
        evicted: list[FileId] = []
        for tenant in self._groups.tenants():
            excess_bytes = self._groups.excess_bytes(tenant)
            if excess_bytes:
                evicted += self._evict(tenant, min(excess_bytes, step_bytes))
        return evicted

    def _evict(self, tenant: str, bytes_needed: int, *, keep: FileId | None = None) -> list[FileId]:
        evicted: list[FileId] = []
        for volume in reversed(self._disks):  # the lowest tier first
            if bytes_needed <= 0:
                break
            if volume.is_failing:
                continue
            ids = self._victims.of_tenant(volume, tenant, bytes_needed, keep)
            for id in ids:
                self._files.forget_writer(id)
            bytes_needed -= self._files.forget(ids)
            evicted += ids
        return evicted
