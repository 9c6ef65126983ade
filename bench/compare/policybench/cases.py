"""Tenants, admission and miss-ratio curves, on generated traces."""

from __future__ import annotations

import itertools
import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from nodebench.machine import Workplace
from nodebench.results import Results
from nodebench.telling import Telling

from headrace.base.eviction_group import EvictionGroup
from headrace.base.model import FileId
from headrace.base.priority import Priority
from headrace.policy.admission import SecondReads
from headrace.policy.dues import Entitlement
from headrace.policy.miss_ratio import MissRatioCurve
from headrace.policy.tenant_division import TenantDivision
from headrace.store.groups import OneGroup, SpaceDivision
from headrace.testing.shared_cache import SharedCache

FILES = 20_000
SCANNED = 1 << 40
"""The first id of files that are read once."""
SEED_IDS = 10_000_000
SHARED_HITS = "tenant A's hits beside a scan of 10 x the cache, of A alone"
GUARANTEE_LOST = "guaranteed space lost"
WRITES = "flash writes on a scan-heavy trace, of no admission"
HITS_LOST = "hits lost, of no admission"
CURVE_ERROR = "miss-ratio curve: mean distance from a replay"
CURVE_ERROR_MAX = "miss-ratio curve: largest distance"
POLICIES = {"S3-FIFO": "s3fifo", "LRU": "lru"}


@dataclass
class Bench(Telling):
    """scale: of all counts."""

    place: Workplace
    results: Results
    scale: float
    repeat: int

    def count(self, full: int, least: int = 400) -> int:
        return max(least, round(full * self.scale))


def popular(count: int, files: int, seed: int, exponent: float = 0.9) -> Iterator[FileId]:
    """Reads by a Zipf law, as those of a shared cache are."""
    weights = [1 / rank**exponent for rank in range(1, files + 1)]
    return map(FileId, random.Random(seed).choices(range(files), weights, k=count))


def with_scans(reads: Iterator[FileId], scans: int) -> Iterator[FileId]:
    """Yield reads, with that many files that are read once behind each."""
    number = SCANNED
    for id in reads:
        yield id
        for _ in range(scans):
            number += 1
            yield FileId(number)


def tenants(bench: Bench) -> None:
    """Tenant A reads files that have 40 % of the cache, by popularity or in shuffled epochs. Between its reads tenant B
    reads others once, as many as 10 caches hold."""
    capacity = bench.count(FILES)
    own = capacity * 2 // 5
    division = TenantDivision(
        lambda id: EvictionGroup(Priority.NORMAL, ("B" if id >= SCANNED else "A",)), capacity
    )
    division.update({"A": Entitlement(guaranteed=own)})
    divisions: dict[str, SpaceDivision] = {"by tenant": division, "one group": OneGroup()}
    for seed in range(bench.repeat):
        traces = {
            "popular": list(popular(5 * capacity, own, seed)),
            "epochs": list(epochs(own, 12, seed)),
        }
        for (name, policy), (trace, reads) in itertools.product(POLICIES.items(), traces.items()):
            alone = SharedCache(capacity, OneGroup(), policy=policy)
            hits_alone = sum(alone.read(id) for id in reads)
            for kind, chosen in divisions.items():
                cache = SharedCache(capacity, chosen, policy=policy)
                hits, lost = beside_a_scan(cache, reads, -(-10 * capacity // len(reads)), own)
                contender = f"{kind}, {name}, {trace}"
                bench.results.add(SHARED_HITS, contender, hits / hits_alone, unit="share")
                bench.results.add(GUARANTEE_LOST, contender, lost, unit="files")


def beside_a_scan(cache: SharedCache, reads: list[FileId], scans: int, own: int) -> tuple[int, int]:
    """Return A's hits, and how many files A lost within its guarantee, at most by one read of B or, in one group, in
    the end."""
    hits = lost = held = 0
    for id in with_scans(iter(reads), scans):
        is_hit = cache.read(id)
        if id < SCANNED:
            hits += is_hit
            held = cache.groups.used_bytes("A")
        else:
            lost = max(lost, min(held, own) - cache.groups.used_bytes("A"))
    if not cache.groups.tenants():
        lost = len(set(reads)) - sum(id < SCANNED for id in cache.resident)
    return hits, lost


def admission(bench: Bench) -> None:
    """Popular files, once and four times as many as fit, and behind each of their reads files that are read once."""
    capacity = bench.count(FILES)
    for seed, name, files, scans in itertools.product(range(bench.repeat), POLICIES, (1, 4), (1, 3)):
        reads = list(with_scans(popular(10 * capacity, files * capacity, seed), scans))
        hits, written = admitted(reads, capacity, name, ghosts=None)
        hits_later, written_later = admitted(
            reads, capacity, name, ghosts=SecondReads(8 * capacity, window_s=len(reads))
        )
        contender = f"{name}, popular files {files} x the cache, {scans} scanned for each read"
        bench.results.add(WRITES, contender, written_later / written, unit="share")
        bench.results.add(HITS_LOST, contender, 1 - hits_later / hits, unit="share")


def admitted(reads: list[FileId], capacity: int, name: str, *, ghosts: SecondReads | None) -> tuple[int, int]:
    """Return the hits, and how many files were written to the cache."""
    cache, hits = SharedCache(capacity, OneGroup(), policy=POLICIES[name]), 0
    for number, id in enumerate(reads):
        if ghosts is None or id in cache.resident or ghosts.is_second(id, number):
            hits += cache.read(id)
    return hits, cache.written_bytes


def curve(bench: Bench) -> None:
    """Ten sizes of a cache for each trace; files have 1 to 200 units. A replay evicts until the new file fits. Each
    run has other ids, so that other files are in the sample."""
    count = bench.count(20 * FILES)
    for seed in range(max(5, bench.repeat)):
        files = bench.count(3 * FILES)
        traces = {
            "popular": list(popular(count, files, seed)),
            "popular, half scans": list(with_scans(popular(count // 2, files, seed), 1)),
            "shuffled epochs": list(epochs(files // 2, 8, seed)),
        }
        for name, numbers in traces.items():
            reads = [FileId(number + seed * SEED_IDS) for number in numbers]
            sampled = MissRatioCurve()
            for id in reads:
                sampled.read(id, size_of(id))
            total = sum(
                size_of(id)
                for id, number in dict(zip(reads, numbers, strict=True)).items()
                if number < SCANNED
            )
            capacities = [total * tenths // 10 for tenths in range(1, 11)]
            errors = [100 * abs(sampled.miss_ratio(size) - replayed(reads, size)) for size in capacities]
            bench.results.add(CURVE_ERROR, name, sum(errors) / len(errors), unit="points")
            bench.results.add(CURVE_ERROR_MAX, name, max(errors), unit="points")


def epochs(files: int, count: int, seed: int) -> Iterator[FileId]:
    order = [FileId(number) for number in range(files)]
    for epoch in range(count):
        random.Random(f"{seed} {epoch}").shuffle(order)
        yield from order


def size_of(id: FileId) -> int:
    return 1 + id * 2_654_435_761 % (1 << 32) * 200 // (1 << 32)


def replayed(reads: list[FileId], capacity: int) -> float:
    """Return the miss ratio of an LRU cache."""
    cache: OrderedDict[FileId, int] = OrderedDict()
    used = misses = 0
    for id in reads:
        if id in cache:
            cache.move_to_end(id)
            continue
        misses += 1
        cache[id] = size_of(id)
        used += cache[id]
        while used > capacity:
            used -= cache.popitem(last=False)[1]
    return misses / len(reads)
