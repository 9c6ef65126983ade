"""Simulate a cache of two tiers with the policies of the store and its choice of moves, without a disk."""

from __future__ import annotations

from headrace.base.model import FileId
from headrace.store.eviction import Policy, build_policy
from headrace.store.reuse_times import ReuseTimes
from headrace.store.tier_choice import TierChoice

LOW, START, HIGH = 0.90, 0.925, 0.95
READS_A_BATCH = 20
"""Reads between two looks for files to move."""
RISES_A_BATCH = 8


class TieredCache:
    """A fast and a slow tier of so many files; each read takes a second. moves: files sink and rise, else they stay
    where they were placed. hits: in the fast and in the slow tier."""

    def __init__(self, fast: int, slow: int, *, moves: bool, policy: str = "s3fifo") -> None:
        self.hits = [0, 0]
        self.sunk = self.risen = 0
        self._capacities = (fast, slow)
        self._policies: tuple[Policy, Policy] = (build_policy(policy), build_policy(policy))
        self._tier_of: dict[FileId, int] = {}
        self._used = [0, 0]
        self._moves = moves
        self._choice = TierChoice(ReuseTimes(same_use_s=0.5))
        self._now_s = 0.0

    def read(self, id: FileId) -> None:
        self._now_s += 1
        tier = self._tier_of.get(id)
        if tier is None:
            self._fill(id)
        else:
            self.hits[tier] += 1
            self._policies[tier].touch(id)
            self._choice.use(id, self._now_s, lambda: tier == 1)
        if self._moves and self._now_s % READS_A_BATCH == 0:
            self._sink()
            self._rise()

    def _fill(self, id: FileId) -> None:
        tier = 0 if self._used[0] < HIGH * self._capacities[0] else 1
        if tier == 1 and self._used[1] >= HIGH * self._capacities[1]:
            self._evict(1, 1)
        self._place(id, tier)
        self._choice.add(id, self._now_s)

    def _place(self, id: FileId, tier: int) -> None:
        self._tier_of[id] = tier
        self._used[tier] += 1
        self._policies[tier].insert(id, 1)

    def _take(self, id: FileId) -> None:
        tier = self._tier_of.pop(id)
        self._used[tier] -= 1
        self._policies[tier].remove(id)

    def _evict(self, tier: int, count: int) -> None:
        for id in self._coldest(tier, count):
            self._take(id)
            self._choice.remove(id)

    def _coldest(self, tier: int, count: int) -> list[FileId]:
        return self._policies[tier].victims(count, lambda _: False)

    def _sink(self) -> None:
        if self._used[0] > START * self._capacities[0]:
            for id in self._coldest(0, int(self._used[0] - LOW * self._capacities[0])):
                self._move_down(id)

    def _move_down(self, id: FileId) -> None:
        self._take(id)
        if self._used[1] >= HIGH * self._capacities[1]:
            colder = self._coldest(1, 1)
            if not self._choice.keeps(id, colder, self._now_s):
                self._choice.remove(id)
                return
            self._evict(1, 1)
        self._place(id, 1)
        self.sunk += 1

    def _rise(self) -> None:
        for id, next_use_s in self._choice.take_risers(RISES_A_BATCH):
            if self._tier_of.get(id) != 1:
                continue
            if self._used[0] >= LOW * self._capacities[0]:
                displaced = self._coldest(0, 1)
                if not self._choice.may_displace(next_use_s, displaced, self._now_s):
                    continue
                for cold in displaced:
                    self._move_down(cold)
            self._take(id)
            self._place(id, 0)
            self._policies[0].touch(id)
            self.risen += 1
