from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.model import FileId
from headrace.policy.miss_ratio import MissRatioCurve

POINTS = 0.02


def replayed(reads: list[tuple[int, int]], capacity_bytes: int) -> float:
    """Return the miss ratio of a real LRU cache, which evicts until the new file fits."""
    cache: OrderedDict[int, int] = OrderedDict()
    used = misses = 0
    for id, size_bytes in reads:
        if id in cache:
            cache.move_to_end(id)
            continue
        misses += 1
        cache[id] = size_bytes
        used += size_bytes
        while used > capacity_bytes:
            used -= cache.popitem(last=False)[1]
    return misses / len(reads)


def popular(count: int, files: int, seed: int) -> Iterator[int]:
    """Yield files by a Zipf law, as reads of a shared cache are."""
    weights = [1 / rank**0.9 for rank in range(1, files + 1)]
    yield from random.Random(seed).choices(range(files), weights, k=count)


def size_of(id: int) -> int:
    return 1 + random.Random(id).randrange(200)


@pytest.mark.parametrize("kind", ["popular", "with scans", "epochs"])
def test_the_curve_is_within_two_points_of_a_replay(kind: str) -> None:
    files = list(popular(60_000, 12_000, seed=3))
    if kind == "with scans":
        files = [number for pair in zip(files, range(10**6, 10**6 + 60_000), strict=True) for number in pair]
    elif kind == "epochs":
        order, files = list(range(10_000)), []
        for epoch in range(6):
            random.Random(epoch).shuffle(order)
            files += order
    reads = [(id, size_of(id)) for id in files]
    curve = MissRatioCurve(files_max=2048)
    for id, size_bytes in reads:
        curve.read(FileId(id), size_bytes)
    assert curve.rate < 0.25
    total_bytes = sum(dict(reads).values())
    capacities = [total_bytes * tenths // 10 for tenths in range(1, 10, 2)]
    errors = [abs(curve.miss_ratio(size) - replayed(reads, size)) for size in capacities]
    assert sum(errors) / len(errors) <= POINTS


READS = st.lists(st.integers(0, 30), min_size=1, max_size=200)


@settings(max_examples=100, deadline=None)
@given(READS, st.integers(1, 40))
def test_a_sample_of_everything_is_exact(files: list[int], capacity: int) -> None:
    """Sizes are one byte, and the bins of small distances have one distance each."""
    curve = MissRatioCurve(files_max=64)
    for id in files:
        curve.read(FileId(id), 1)
    assert curve.rate == 1
    assert curve.miss_ratio(capacity) == pytest.approx(replayed([(id, 1) for id in files], capacity))


@settings(max_examples=50, deadline=None)
@given(READS)
def test_a_larger_cache_misses_no_more(files: list[int]) -> None:
    curve = MissRatioCurve(files_max=8)
    for id in files:
        curve.read(FileId(id), 5)
    ratios = curve.miss_ratios(range(1, 200, 7))
    assert ratios == sorted(ratios, reverse=True)
    assert all(0 <= ratio <= 1 for ratio in ratios)


def test_nothing_is_known_before_the_first_read() -> None:
    assert MissRatioCurve().miss_ratio(1e12) == 1
