"""Choose victims among the groups of a volume: the lowest priority first, in it the tenants furthest above their dues,
in each group by its own policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.base.priority import Priority
from headrace.store.eviction import IsPinned, Policy, build_policy
from headrace.store.groups import FileGroups

_ROUNDS_MAX = 16
Choose = Callable[[int, list[FileId]], list[FileId]]
"""Takes the number of a group and the victims of its policy. Returns the files of the group to evict instead."""


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """Bytes that are needed on a volume. incoming: the tenant that needs them, which loses its own files beyond its
    due; None if they are for nobody. choose: of plans."""

    bytes_needed: int
    is_kept: IsPinned
    incoming: str | None
    choose: Choose


class GroupPolicy:
    """The files of a volume, with a policy for each group. part: the volume's share of the node's capacity."""

    def __init__(self, name: str, groups: FileGroups, part: float) -> None:
        self._name, self._groups, self._part = name, groups, part
        self._policies = [build_policy(name)]
        self._bytes = [0]

    def _policy_of(self, id: FileId) -> Policy:
        number = self._groups.number_of(id)
        return self._policies[number if number < len(self._policies) else 0]

    def insert(self, id: FileId, size_bytes: int) -> None:
        """Add a file that is not here."""
        number = self._groups.number_of(id)
        while number >= len(self._policies):
            self._policies.append(build_policy(self._name))
            self._bytes.append(0)
        self._policies[number].insert(id, size_bytes)
        self._bytes[number] += size_bytes

    def touch(self, id: FileId) -> None:
        policy = self._policy_of(id) if len(self._policies) > 1 else self._policies[0]
        policy.touch(id)

    def remove(self, id: FileId) -> int:
        """Remove a file and return its size."""
        number = self._groups.number_of(id)
        if number >= len(self._policies):
            return 0
        size_bytes = self._policies[number].remove(id)
        self._bytes[number] -= size_bytes
        return size_bytes

    def size_of(self, id: FileId) -> int:
        policy = self._policy_of(id) if len(self._policies) > 1 else self._policies[0]
        return policy.size_of(id)

    def size_in(self, number: int, id: FileId) -> int:
        """Return the bytes of a file of that group; 0 for any other."""
        return self._policies[number].size_of(id) if number < len(self._policies) else 0

    def regroup(self, id: FileId) -> None:
        """Ask for the group of a file again, and move it there. Its uses stay known; its place in their order is
        new."""
        policy = self._policy_of(id)
        uses, size_bytes = policy.uses_of(id), self.remove(id)
        self._groups.assign(id)
        if size_bytes:
            self.insert(id, size_bytes)
            for _ in range(uses):
                self.touch(id)

    @property
    def is_divided(self) -> bool:
        return len(self._policies) > 1

    def victims(self, request: SpaceRequest) -> list[FileId]:
        """Return files that together have the bytes, or all that may go. No other tenant falls below its guarantee."""
        if not self.is_divided:
            return request.choose(0, self._policies[0].victims(request.bytes_needed, request.is_kept))
        used = self._used()
        if request.incoming is not None:
            used[request.incoming] = used.get(request.incoming, 0) + request.bytes_needed
        victims: list[FileId] = []
        bytes_left = request.bytes_needed
        for priority in sorted(Priority, reverse=True):
            if bytes_left <= 0:
                break
            for tenant, ids in self._losers(priority, bytes_left, used, request).items():
                victims += ids
                size_bytes = sum(map(self.size_of, ids))
                used[tenant] -= size_bytes
                bytes_left -= size_bytes
        return victims

    def tenant_victims(self, tenant: str, request: SpaceRequest) -> list[FileId]:
        """Return files of one tenant, the lowest priority first."""
        victims: list[FileId] = []
        bytes_left = request.bytes_needed
        for number, _ in sorted(self._members(tenant), key=lambda member: -member[1].priority):
            if bytes_left > 0:
                ids = self._victims_in(number, bytes_left, request)
                victims += ids
                bytes_left -= sum(map(self.size_of, ids))
        return victims

    def _members(self, tenant: str) -> list[tuple[int, EvictionGroup]]:
        groups = self._groups.groups[: len(self._policies)]
        return [(number, group) for number, group in enumerate(groups) if group.tenant == tenant]

    def _used(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for group, size_bytes in zip(self._groups.groups, self._bytes, strict=False):
            used[group.tenant] = used.get(group.tenant, 0) + size_bytes
        return used

    def _losers(
        self, priority: Priority, bytes_needed: int, used: Mapping[str, int], request: SpaceRequest
    ) -> dict[str, list[FileId]]:
        """Return the victims of one priority, by tenant. A group with less to give than it should lose, because files
        are kept, is asked for less, and the others for more."""
        numbers = {
            group.tenant: number
            for number, group in enumerate(self._groups.groups[: len(self._policies)])
            if group.priority == priority and self._bytes[number]
        }
        slack = {tenant: self._slack(tenant, used[tenant], request.incoming) for tenant in numbers}
        evictable = {tenant: min(self._bytes[number], slack[tenant]) for tenant, number in numbers.items()}
        victims: dict[str, list[FileId]] = {}
        for _ in range(_ROUNDS_MAX):
            losses = self._groups.division.losses(bytes_needed, used, evictable, part=self._part)
            victims.clear()
            is_short = False
            for tenant, loss_bytes in losses.items():
                if loss_bytes <= 0:
                    continue
                ids = self._victims_in(numbers[tenant], loss_bytes, request)
                size_bytes = sum(map(self.size_of, ids))
                while size_bytes > slack[tenant]:
                    size_bytes -= self.size_of(ids.pop())
                if size_bytes < loss_bytes:
                    evictable[tenant], is_short = size_bytes, True
                victims[tenant] = ids
            if not is_short:
                break
        return victims

    def _slack(self, tenant: str, used_bytes: int, incoming: str | None) -> int:
        """Return what a tenant may lose at most. Its guarantee does not bind the tenant itself."""
        if tenant == incoming:
            return used_bytes
        return max(0, used_bytes - int(self._groups.division.guaranteed_bytes(tenant) * self._part))

    def _victims_in(self, number: int, bytes_needed: int, request: SpaceRequest) -> list[FileId]:
        return request.choose(number, self._policies[number].victims(bytes_needed, request.is_kept))
