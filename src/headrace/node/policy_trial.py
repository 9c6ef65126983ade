"""Compare two policies by what they say about the files that a node has cached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields

from headrace.base.deadline import Deadline
from headrace.base.errors import DeadlineExceededError
from headrace.base.model import FileId
from headrace.base.namespace_path import join
from headrace.node.space_policy import NodeCapacity, chain_of
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import parse_policy
from headrace.policy.effects import FIELD_OF, Effects
from headrace.policy.resolve import PolicyResolver
from headrace.policy.text import text_of
from headrace.store.schema import CachedFile
from headrace.store.store import Store
from headrace.wire.peer_messages import (
    TRIAL_ROWS_MAX,
    TRIAL_WORD_MAX,
    PinnedTenant,
    TrialAnswer,
    TrialRow,
    TryPolicy,
)

FILES_A_TURN = 128
"""Files that are compared before others have their turn on the loop: some 5 ms."""
_NAME_OF = {field: name for name, field in FIELD_OF.items()} | {"tenant": "tenant"}


@dataclass(slots=True)
class _Sum:
    example: bytes
    files: int = 0
    bytes: int = 0
    copies: int = 0

    def add(self, size_bytes: int, copies: int) -> None:
        self.files += 1
        self.bytes += size_bytes
        self.copies += copies


@dataclass(frozen=True, slots=True)
class ClusterCopies:
    """Says how many copies of files there can be. configured: copies without a rule. members: returns the number of
    nodes. is_primary: returns whether this node is the primary owner of a path, so that it counts the copies."""

    configured: int = 1
    members: Callable[[], int] = lambda: 1
    is_primary: Callable[[bytes], bool] = lambda path: True

    def change(self, path: bytes, before: Effects, after: Effects) -> int:
        """Return how many copies of a file are made, or as a negative number, dropped."""
        if before.replicas == after.replicas or not self.is_primary(path):
            return 0
        members = self.members()
        counts = [min(members, effects.replicas or self.configured) for effects in (before, after)]
        return counts[1] - counts[0]


class _Turns:
    """Gives others their turns on the loop while files are compared, and ends after the limit."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = Deadline.after(limit_s)
        self._files = 0

    async def next_file(self) -> bool:
        """Count a file. Return whether others had a turn. Raises DeadlineExceededError."""
        self._files += 1
        if self._files % FILES_A_TURN:
            return False
        await asyncio.sleep(0)
        if self._deadline.passed():
            raise DeadlineExceededError(
                "the trial of a policy",
                why=f"{self._files} files were compared in {self._limit_s:g} s, and others remain",
                hint="`headrace policy try` on the host of a node waits longer",
            )
        return True


class PolicyTrial:
    """Says what a policy would change on this node. Nothing changes."""

    def __init__(
        self, store: Store, policy: CurrentPolicy, capacity: NodeCapacity, copies: ClusterCopies
    ) -> None:
        self._copies = copies
        self._policy = policy
        self._store = store
        self._index = store.index
        self._capacity = capacity

    async def answer(self, request: TryPolicy) -> TrialAnswer:
        """Return what the policy would mean here. Raise PolicyFaultsError for a text with faults, and
        DeadlineExceededError after the limit of the request."""
        turns = _Turns(request.limit_s)
        policy = PolicyResolver(parse_policy(request.text))
        rows = await self._rows(self._policy.resolver, policy, turns) if request.outcomes else []
        pinned = await self._pinned_above_limits(policy, turns)
        return TrialAnswer(list(self._store.space.tiered.order), pinned, rows)

    async def _pinned_above_limits(self, policy: PolicyResolver, turns: _Turns) -> list[PinnedTenant]:
        pinned: dict[str, int] = {}
        for id in list(self._store.space.pinned) if policy.document.tenants else ():
            await turns.next_file()
            path, cached = self._index.path_of(id), self._index.cached(id)
            if path is not None and cached is not None:
                tenant = policy.of(path).tenant
                for name in chain_of(tenant, policy.document.tenants) if tenant else ():
                    pinned[name] = pinned.get(name, 0) + cached.size_bytes
        return [
            PinnedTenant(name, int(entitled.limit), pinned[name])
            for name, entitled in self._capacity.entitlements(policy.document.tenants).items()
            if entitled.limit is not None and pinned.get(name, 0) > entitled.limit
        ]

    async def _rows(self, before: PolicyResolver, after: PolicyResolver, turns: _Turns) -> list[TrialRow]:
        """Return the changes of each effect with their files and bytes, those of most files first."""
        sums: dict[tuple[str, str, str], _Sum] = {}
        paths: dict[FileId, bytes | None] = {}
        for cached in self._index.cached_files():
            if await turns.next_file():
                paths.clear()
            entry = self._index.entry(cached.id)
            if entry is None:
                continue
            if entry.parent not in paths:
                paths[entry.parent] = self._index.path_of(entry.parent)
            directory = paths[entry.parent]
            if directory is None:
                continue
            path = join(directory, entry.name)
            effects = before.of(path), after.of(path)
            for change in _changes(*effects) + self._moves(cached, *effects):
                copies = self._copies.change(path, *effects) if change[0] == "replicas" else 0
                sums.setdefault(change, _Sum(path)).add(cached.size_bytes, copies)
        largest = sorted(sums.items(), key=lambda item: -item[1].files)[:TRIAL_ROWS_MAX]
        return [_row(*change, total) for change, total in largest]

    def _moves(self, cached: CachedFile, before: Effects, after: Effects) -> list[tuple[str, str, str]]:
        """Return the move of a file that lies where it may not, from tier to tier."""
        tier, present = self._store.volumes[cached.volume].tier, self._store.space.tiered.order
        allowed = [name for name in after.tiers if name in present]
        if before.tiers == after.tiers or not allowed or tier in allowed or tier not in present:
            return []
        return [("move", tier, allowed[0])]


def _changes(before: Effects, after: Effects) -> list[tuple[str, str, str]]:
    """Return the effects that differ, with both values."""
    if before == after:
        return []
    changes = []
    for field in fields(Effects):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            changes.append((_NAME_OF[field.name], text_of(old), text_of(new)))
    return changes


def _row(effect: str, before: str, after: str, total: _Sum) -> TrialRow:
    words = [word[:TRIAL_WORD_MAX] for word in (effect, before, after)]
    return TrialRow(words[0], words[1], words[2], total.files, total.bytes, total.copies, total.example)
