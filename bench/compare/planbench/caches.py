"""Caches of a simulation: which files of one size are resident, by policy. A file is a number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from headrace.base.model import FileId
from headrace.plan.eviction import PlannedVictims
from headrace.plan.orders import MergedOrders
from headrace.store.eviction import Policy, build_policy


class SimulatedCache(Protocol):
    resident: set[int]

    def read(self, file: int) -> bool:
        """Note a read by a job, which may admit the file. Whether it was a hit."""
        ...


class PolicyCache:
    """Is a cache with a policy of the store: lru or s3fifo."""

    def __init__(self, name: str, capacity: int) -> None:
        self.resident: set[int] = set()
        self._capacity = capacity
        self._policy: Policy = build_policy(name)

    def read(self, file: int) -> bool:
        if file in self.resident:
            self._policy.touch(FileId(file))
            return True
        if len(self.resident) >= self._capacity:
            (victim,) = self._policy.victims(1, lambda _: False)
            self._policy.remove(victim)
            self.resident.discard(victim)
        self._policy.insert(FileId(file), 1)
        self.resident.add(file)
        return False


class FixedCache:
    """Never evicts."""

    def __init__(self, capacity: int) -> None:
        self.resident: set[int] = set()
        self._capacity = capacity

    def read(self, file: int) -> bool:
        if file in self.resident:
            return True
        if len(self.resident) < self._capacity:
            self.resident.add(file)
        return False


class PlannedCache:
    """Is a cache with the plans' victims. A file that is needed after all resident ones is read and not kept."""

    def __init__(self, orders: MergedOrders, capacity: int) -> None:
        self.resident: set[int] = set()
        self._capacity = capacity
        self._victims = PlannedVictims(orders, lambda file: int(file in self.resident))

    def read(self, file: int) -> bool:
        if file in self.resident:
            return True
        if len(self.resident) >= self._capacity:
            if not self._victims.may_admit(file):
                return False
            for victim in self._victims.victims(1, lambda _: False):
                self.resident.discard(victim)
        self.resident.add(file)
        self._victims.insert(file)
        return False

    def catch_up(self) -> None:
        while not self._victims.catch_up():
            pass


class FewestReadersCache:
    """Evicts the file that the fewest jobs have still to read in their epochs, the oldest of them first."""

    def __init__(self, capacity: int, jobs: int, files: int) -> None:
        self.resident: set[int] = set()
        self._capacity = capacity
        self._left = [jobs] * files
        self._queues: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(jobs + 1)]

    def read(self, file: int) -> bool:
        was_resident = file in self.resident
        if was_resident:
            del self._queues[self._left[file]][file]
        elif len(self.resident) >= self._capacity:
            queue = next(queue for queue in self._queues if queue)
            victim, _ = queue.popitem(last=False)
            self.resident.discard(victim)
        self._left[file] -= 1
        self._queues[self._left[file]][file] = None
        self.resident.add(file)
        return was_resident

    def begin_epoch(self, files: Iterable[int]) -> None:
        """A job will read all files again."""
        for file in files:
            if file in self.resident:
                del self._queues[self._left[file]][file]
                self._queues[self._left[file] + 1][file] = None
            self._left[file] += 1
