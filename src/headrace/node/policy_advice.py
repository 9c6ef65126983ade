"""Sample what programs on this host open, and advise how to size the cache and what to change in the policy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence

from headrace.base.model import FileId
from headrace.base.printable import printable
from headrace.namespace.mounts import MountTable
from headrace.node.origin_costs import OriginCosts
from headrace.node.space_policy import NodeCapacity
from headrace.policy.advice import (
    Advice,
    Outlook,
    ReadDataSet,
    UnmatchedRules,
    advise_capacity,
    advise_data_sets,
    advise_tenants,
    outlook,
    tenant_dues,
)
from headrace.policy.current import CurrentPolicy
from headrace.policy.document import PolicyRule
from headrace.policy.read_sample import ReadSample
from headrace.store.index import Index

FILES_A_TURN = 128
CACHED_FILES_MAX = 100_000
"""Cached files whose paths are compared with the rules."""
MATCHES_A_TURN, MATCHES_MAX = 1000, 2_000_000
"""Matches of a path with a rule, of some microseconds each: between two pauses, and for one answer."""
MATCHES_A_FILE = 8
"""Cost of the look-up of a path, in matches."""
DATA_SETS_MAX = 20


class ReadStatistics:
    """Learns of each opened file; looks at a sample of them. costs: is told the sizes of opened files."""

    def __init__(self, index: Index, mounts: MountTable, policy: CurrentPolicy, costs: OriginCosts) -> None:
        self.sample = ReadSample()
        self._index = index
        self._mounts = mounts
        self._policy = policy
        self._costs = costs

    def note_opens(self, ids: Sequence[FileId]) -> None:
        """Note that programs opened these files."""
        for read in self.sample.take(ids):
            entry, path = self._index.entry(read.id), self._index.path_of(read.id)
            location = None if path is None else self._mounts.find(path)
            if entry is None or path is None or location is None:
                continue
            size_bytes = entry.version.size_bytes
            tenant = self._policy.of(path).tenant
            self.sample.record(read, size_bytes, tenant)
            self._costs.note_opened(location[0], tenant, size_bytes * read.weight)


class PolicyAdvisor:
    """Gives advice from the statistics of a node. capacity: the caches of all nodes count, because a node reads from
    them all."""

    def __init__(
        self, statistics: ReadStatistics, index: Index, mounts: MountTable, capacity: NodeCapacity
    ) -> None:
        self._sample = statistics.sample
        self._index = index
        self._mounts = mounts
        self._capacity = capacity

    async def advise(self, policy: CurrentPolicy) -> tuple[list[Outlook], list[Advice]]:
        """Return what the cache and each tenant would hit, and advice."""
        capacity_bytes = self._capacity.cluster_bytes
        document = policy.resolver.document
        whole = outlook("", self._sample.whole, capacity_bytes)
        entitlements = self._capacity.cluster_entitlements(document.tenants)
        curves = {name: curve for name, curve in self._sample.tenants.items() if name in entitlements}
        spaces = tenant_dues(capacity_bytes, entitlements, curves)
        tenants = [outlook(name, curve, spaces[name]) for name, curve in sorted(curves.items())]
        unmatched = await self._unmatched(document.rules)
        advice = [
            *advise_capacity(whole),
            *advise_tenants(tenants, curves),
            *advise_data_sets(await self._data_sets(), capacity_bytes),
            *unmatched.advise(),
        ]
        return [whole, *tenants], advice

    async def _unmatched(self, rules: Sequence[PolicyRule]) -> UnmatchedRules:
        """Return the rules that match none of the files that are cached or were read."""
        unmatched, matches, pause = UnmatchedRules(rules), 0, MATCHES_A_TURN
        for id in self._known_ids():
            if not unmatched.rules or matches > MATCHES_MAX:
                break
            path = self._index.path_of(id)
            if path is not None:
                matches += len(unmatched.rules) + MATCHES_A_FILE
                unmatched.look_at(path)
            if matches > pause:
                pause = matches + MATCHES_A_TURN
                await asyncio.sleep(0)
        return unmatched

    def _known_ids(self) -> Iterator[FileId]:
        yield from list(self._sample.whole.sampled_files)
        for count, cached in enumerate(self._index.cached_files()):
            if count == CACHED_FILES_MAX:
                return
            yield cached.id

    async def _data_sets(self) -> list[ReadDataSet]:
        """Return the directories below the mounts by the size of what was read there, the largest ones first."""
        sums: dict[str, int] = {}
        for count, id in enumerate(list(self._sample.whole.sampled_files)):
            if count % FILES_A_TURN == 0:
                await asyncio.sleep(0)
            entry, path = self._index.entry(id), self._index.path_of(id)
            location = None if path is None else self._mounts.find(path)
            if entry is not None and location is not None:
                mount, key = location
                first, slash, _ = key.partition("/")
                name = printable(os.path.join(mount.path, first) if slash else mount.path)
                sums[name] = sums.get(name, 0) + entry.version.size_bytes
        rate = self._sample.whole.rate
        largest = sorted(sums.items(), key=lambda item: -item[1])[:DATA_SETS_MAX]
        return [ReadDataSet(name, round(size_bytes / rate)) for name, size_bytes in largest]
