"""Choose victims among the groups of a volume: the lowest priority first, in it the tenants furthest above their dues,
in each group by its own policy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from headrace.base.model import FileId
from headrace.base.priority import Priority
from headrace.store.eviction import IsPinned, Policy, build_policy
from headrace.store.groups import FileGroups, Tenants

_ROUNDS_MAX = 16
Choose = Callable[[int, list[FileId]], list[FileId]]
"""Takes the number of a group and the victims of its policy. Returns the files of the group to evict instead."""


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """Bytes that are needed on a volume. incoming: the tenant that needs them, which loses its own files beyond its
    due; None if they are for nobody. choose: of plans. within: a tenant; only its files, and its children's, may go."""

    bytes_needed: int
    is_kept: IsPinned
    incoming: Tenants | None
    choose: Choose
    within: str | None = None


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
        if not self.is_divided and request.within is None:
            return request.choose(0, self._policies[0].victims(request.bytes_needed, request.is_kept))
        used = self._used()
        if request.incoming is not None:
            used[request.incoming] = used.get(request.incoming, 0) + request.bytes_needed
        victims: list[FileId] = []
        bytes_left = request.bytes_needed
        for priority in sorted(Priority, reverse=True):
            if bytes_left <= 0:
                break
            for tenants, ids in self._losers(priority, bytes_left, used, request).items():
                victims += ids
                size_bytes = sum(map(self.size_of, ids))
                used[tenants] -= size_bytes
                bytes_left -= size_bytes
        return victims

    def _used(self) -> dict[Tenants, int]:
        used: dict[Tenants, int] = {}
        for group, size_bytes in zip(self._groups.groups, self._bytes, strict=False):
            used[group.tenants] = used.get(group.tenants, 0) + size_bytes
        return used

    def _losers(
        self, priority: Priority, bytes_needed: int, used: Mapping[Tenants, int], request: SpaceRequest
    ) -> dict[Tenants, list[FileId]]:
        """Return the victims of one priority, by tenant. A group with less to give than it should lose, because files
        are kept, is asked for less, and the others for more."""
        numbers = {
            group.tenants: number
            for number, group in enumerate(self._groups.groups[: len(self._policies)])
            if group.priority == priority and self._bytes[number]
            if request.within is None or request.within in group.tenants
        }
        held = _with_children(used)
        evictable = {
            tenants: min(self._bytes[number], self._slack(tenants, held, request.incoming))
            for tenants, number in numbers.items()
        }
        victims: dict[Tenants, list[FileId]] = {}
        for _ in range(_ROUNDS_MAX):
            losses = self._groups.division.losses(bytes_needed, used, evictable, part=self._part)
            victims.clear()
            is_short, left = False, dict(held)
            for tenants, loss_bytes in losses.items():
                if loss_bytes <= 0:
                    continue
                ids = self._victims_in(numbers[tenants], loss_bytes, request)
                size_bytes = sum(map(self.size_of, ids))
                slack_bytes = self._slack(tenants, left, request.incoming)
                while size_bytes > slack_bytes:
                    size_bytes -= self.size_of(ids.pop())
                for tenant in tenants:
                    left[tenant] -= size_bytes
                if size_bytes < loss_bytes:
                    evictable[tenants], is_short = size_bytes, True
                victims[tenants] = ids
            if not is_short:
                break
        return victims

    def _slack(self, tenants: Tenants, held: Mapping[str, int], incoming: Tenants | None) -> int:
        """Return what a tenant may lose at most. A guarantee does not bind who has it, or is within it."""
        guaranteed_bytes = self._groups.division.guaranteed_bytes
        return min(
            (
                max(0, held[tenant] - int(guaranteed_bytes(tenant) * self._part))
                for tenant in tenants
                if tenant not in (incoming or ())
            ),
            default=sys.maxsize,
        )

    def _victims_in(self, number: int, bytes_needed: int, request: SpaceRequest) -> list[FileId]:
        return request.choose(number, self._policies[number].victims(bytes_needed, request.is_kept))


def _with_children(used: Mapping[Tenants, int]) -> dict[str, int]:
    """Return the bytes of each tenant and its children."""
    held: dict[str, int] = {}
    for tenants, size_bytes in used.items():
        for tenant in tenants:
            held[tenant] = held.get(tenant, 0) + size_bytes
    return held
