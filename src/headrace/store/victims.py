"""Choose the files to evict when space is needed, kind by kind. `steps` has the order; the policy is `eviction.py`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from headrace.base.model import FileId
from headrace.store.group_policy import SpaceRequest
from headrace.store.index import Index
from headrace.store.usage import Accounts
from headrace.store.volume import Volume

_PARTIALS_SEARCHED = 1000  # of all tenants, for the files of one: a search for more would hold the lock
SUPERSEDED_SEARCHED = 4096
"""Superseded files of all volumes that are looked at for one: some 10 ms. A data set that was replaced leaves
millions."""
Step = Callable[[Volume, int, FileId | None], list[FileId]]
"""Takes a volume, the bytes needed and the file that needs them, which stays. Returns files that together have the
bytes, or all there are."""


class Victims:
    """The victims of a store. is_open: whether a file is being filled now. Called under the store's lock."""

    def __init__(self, index: Index, accounts: Accounts, is_open: Callable[[FileId], bool]) -> None:
        self._index = index
        self._accounts = accounts
        self._is_open = is_open
        self.steps: tuple[Step, ...] = (
            self.superseded_on,
            self.partial_idle,
            self.of_policy,
            self.partial_open,
        )
        """Superseded files first, then idle incomplete ones, then the policy's, then those being filled."""

    def superseded_on(self, volume: Volume, bytes_needed: int, keep: FileId | None = None) -> list[FileId]:
        """Return superseded files, the first ones first. Those of other volumes come last then, so that the next search
        begins with what this one has not looked at."""
        victims: dict[FileId, None] = {}
        remaining: list[FileId] = []
        for _ in range(min(SUPERSEDED_SEARCHED, len(self._index.superseded))):
            if bytes_needed <= 0:
                break
            id = self._index.superseded.popleft()
            cached = self._index.cached(id)
            if cached is None:
                continue
            if id in self._accounts.sealed:
                continue  # `SealedFiles.renew` puts it back
            # even if it is pinned: it no longer has a name by which it could be unpinned
            if cached.volume == volume.number and id != keep:
                bytes_needed -= 0 if id in victims else self._bytes_of(id, volume)
                victims[id] = None
            else:
                remaining.append(id)
        self._index.superseded.extend(remaining)
        return list(victims)

    def _bytes_of(self, id: FileId, volume: Volume) -> int:
        partial_bytes = self._accounts.partial_bytes(id)
        policy = self._accounts.policies[volume.number]
        return policy.size_of(id) if partial_bytes is None else partial_bytes

    def partial_idle(self, volume: Volume, bytes_needed: int, keep: FileId | None = None) -> list[FileId]:
        return self._partials(volume, bytes_needed, keep, opened=False)

    def partial_open(self, volume: Volume, bytes_needed: int, keep: FileId | None = None) -> list[FileId]:
        return self._partials(volume, bytes_needed, keep, opened=True)

    def all_idle(self, volume: Volume) -> list[FileId]:
        """Return every file of a volume that is not being filled."""
        return self.of_policy(volume, volume.used_bytes) + self.partial_idle(volume, volume.used_bytes)

    def of_policy(self, volume: Volume, bytes_needed: int, keep: FileId | None = None) -> list[FileId]:
        return self._accounts.policies[volume.number].victims(self._request(volume, bytes_needed, keep))

    def of_tenant(self, volume: Volume, tenant: str, bytes_needed: int, keep: FileId | None) -> list[FileId]:
        """Return files of one tenant and its children as a step does: idle incomplete ones, then owned ones by the
        policies of its groups."""
        groups, policy = self._accounts.groups, self._accounts.policies[volume.number]
        victims: list[FileId] = []
        for id, number, size_bytes in islice(self._accounts.partials(), _PARTIALS_SEARCHED):
            if bytes_needed <= 0:
                break
            is_idle = id != keep and number == volume.number and not self._must_stay(id)
            if is_idle and id not in policy and tenant in groups.tenants_of(id):
                victims.append(id)
                bytes_needed -= size_bytes
        if bytes_needed > 0:
            victims += policy.tenant_victims(self._request(volume, bytes_needed, keep, tenant))
        return victims

    def _request(
        self, volume: Volume, bytes_needed: int, keep: FileId | None, within: str | None = None
    ) -> SpaceRequest:
        def is_kept(id: FileId) -> bool:
            return id == keep or self._must_stay(id)

        choose = partial(self._accounts.choose, volume.number, is_kept)
        incoming = None if keep is None else self._accounts.groups.tenants_of(keep)
        return SpaceRequest(bytes_needed, is_kept, incoming, choose, within)

    def _must_stay(self, id: FileId) -> bool:
        return self._accounts.is_kept(id) or self._is_open(id)

    def _partials(
        self, volume: Volume, bytes_needed: int, keep: FileId | None, *, opened: bool
    ) -> list[FileId]:
        victims: list[FileId] = []
        policy = self._accounts.policies[volume.number]
        for id, number, size_bytes in self._accounts.partials():
            if bytes_needed <= 0:
                break
            if (
                id == keep
                or self._accounts.is_kept(id)
                or number != volume.number
                or (not opened and id in policy)
            ):
                continue
            if self._is_open(id) == opened and not self._is_guaranteed(id, keep):
                victims.append(id)
                bytes_needed -= size_bytes
        return victims

    def _is_guaranteed(self, id: FileId, keep: FileId | None) -> bool:
        """Return whether a tenant of a file has no more than its guarantee, and the space is for another one."""
        groups = self._accounts.groups
        incoming = () if keep is None else groups.tenants_of(keep)
        return any(
            tenant not in incoming and groups.used_bytes(tenant) <= groups.division.guaranteed_bytes(tenant)
            for tenant in groups.tenants_of(id)
        )
