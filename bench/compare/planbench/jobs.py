"""Jobs of a simulation: seeded epochs over one data set, read in turn, one sample a job."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator

from headrace.plan.orders import MergedOrders, PlannedStream
from headrace.plan.substitution import CachedFirstOrder

from .caches import FewestReadersCache, PlannedCache, SimulatedCache

BATCH = 16


def epoch_order(files: int, job: int, epoch: int) -> array[int]:
    order = list(range(files))
    random.Random(f"{job} {epoch}").shuffle(order)
    return array("I", order)


def trace(files: int, jobs: int, epochs: int) -> Iterator[tuple[int, int, int]]:
    """(job, epoch, file) of each read."""
    for epoch in range(epochs):
        orders = [epoch_order(files, job, epoch) for job in range(jobs)]
        for position in range(files):
            for job in range(jobs):
                yield job, epoch, orders[job][position]


def misses(cache: SimulatedCache, files: int, jobs: int, epochs: int) -> list[int]:
    """Return the misses of each epoch, in files."""
    counts = [0] * epochs
    for _, epoch, file in trace(files, jobs, epochs):
        counts[epoch] += not cache.read(file)
    return counts


class PlannedJobs:
    """Jobs whose present epoch and the next one are known."""

    def __init__(self, files: int, jobs: int) -> None:
        self.orders = MergedOrders()
        self._files = files
        for job in range(jobs):
            self.orders.add(job, PlannedStream(epoch_order(files, job, 0), 1))
        self._positions = [0] * jobs

    def misses(self, cache: PlannedCache, epochs: int) -> list[int]:
        counts = [0] * epochs
        begun = -1
        for number, (job, epoch, file) in enumerate(trace(self._files, len(self._positions), epochs)):
            if epoch != begun:
                begun = epoch
                self._learn(epoch + 1)
                cache.catch_up()
            self._positions[job] += 1
            self.orders.advance(job, self._positions[job])
            counts[epoch] += not cache.read(file)
            if number % 64 == 0:
                cache.catch_up()
        return counts

    def _learn(self, epoch: int) -> None:
        for job, stream in enumerate(self.orders.streams):
            stream.extend(epoch_order(self._files, job, epoch))
        while not self.orders.build(1 << 20):
            pass


def substituted_misses(cache: SimulatedCache, files: int, jobs: int, epochs: int) -> list[int]:
    """Return the misses of each epoch of jobs that read cached samples first, a batch a job in turn."""
    counts = [0] * epochs
    for epoch in range(epochs):
        orders = [epoch_order(files, job, epoch) for job in range(jobs)]
        shares = [CachedFirstOrder(files) for _ in range(jobs)]
        if epoch and isinstance(cache, FewestReadersCache):
            for _ in range(jobs):
                cache.begin_epoch(range(files))
        while any(shares):
            for order, share in zip(orders, shares, strict=True):
                offsets = share.take(
                    BATCH, lambda positions, order=order: [order[p] in cache.resident for p in positions]
                )
                for offset in offsets:
                    counts[epoch] += not cache.read(order[share.share[offset]])
    return counts
