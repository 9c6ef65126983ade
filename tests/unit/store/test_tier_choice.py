"""Files that rise and sink: rules, and simulations of two tiers with and without moves."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from headrace.base.model import FileId
from headrace.store.reuse_times import ReuseTimes
from headrace.store.tier_choice import RISING_MAX, TierChoice, tiers_above, tiers_below
from headrace.testing.tiered_cache import TieredCache

FAST, SLOW = 500, 2000
Trace = Callable[[int, int, int], Iterator[FileId]]


def zipf(count: int, files: int, seed: int, exponent: float = 0.9) -> Iterator[FileId]:
    weights = [1 / rank**exponent for rank in range(1, files + 1)]
    yield from map(FileId, random.Random(seed).choices(range(files), weights, k=count))


def drifting(count: int, files: int, seed: int) -> Iterator[FileId]:
    """Four times, other files become the popular ones."""
    for phase in range(4):
        for id in zipf(count // 4, files, seed + phase):
            yield FileId((id + phase * files // 4) % files)


def epochs(files: int, count: int, seed: int) -> Iterator[FileId]:
    order = [FileId(number) for number in range(files)]
    for epoch in range(count):
        random.Random(f"{seed} {epoch}").shuffle(order)
        yield from order


def run(reads: list[FileId], *, moves: bool, policy: str) -> TieredCache:
    cache = TieredCache(FAST, SLOW, moves=moves, policy=policy)
    for id in reads:
        cache.read(id)
    return cache


@pytest.mark.parametrize("trace", [zipf, drifting])
def test_moves_bring_hits_to_the_fast_tier(trace: Trace) -> None:
    reads = list(trace(60_000, 10_000, 7))
    fixed, moving = (run(reads, moves=moves, policy="s3fifo") for moves in (False, True))
    assert moving.hits[0] > 1.1 * fixed.hits[0]
    assert sum(moving.hits) > 0.98 * sum(fixed.hits)


def test_moves_follow_other_files_by_lru_too() -> None:
    reads = list(drifting(60_000, 10_000, 7))
    fixed, moving = (run(reads, moves=moves, policy="lru") for moves in (False, True))
    assert moving.hits[0] > 2 * fixed.hits[0]
    assert sum(moving.hits) > 0.98 * sum(fixed.hits)


@pytest.mark.parametrize("policy", ["s3fifo", "lru"])
def test_epochs_do_not_move_in_circles(policy: str) -> None:
    """Every file is read once an epoch, and all fit: none is worth more than another."""
    moving = run(list(epochs(2000, 8, 3)), moves=True, policy=policy)
    assert sum(moving.hits) == 7 * 2000
    assert moving.risen < 0.03 * 7 * 2000
    assert moving.hits[0] > 0.8 * 7 * 0.9 * FAST


def test_a_first_use_lets_nothing_rise() -> None:
    choice = TierChoice()
    choice.add(FileId(1), 0)
    choice.use(FileId(1), 0.5, lambda: True)  # continues the fetch
    assert choice.take_risers(9) == []
    choice.use(FileId(1), 8, lambda: True)
    assert choice.take_risers(9) == [(1, 8.0)]
    choice.use(FileId(1), 16.5, lambda: False)
    assert choice.waiting == 0


def test_a_file_in_steady_use_rises() -> None:
    choice = TierChoice()
    choice.add(FileId(1), 0)
    for tenth in range(1, 30):
        choice.use(FileId(1), tenth / 10, lambda: True)
    assert choice.take_risers(9) == [(1, 1.0)]


def test_a_riser_displaces_only_what_is_needed_later() -> None:
    choice = TierChoice()
    for id, used_s in ((1, 0), (2, 60), (3, 90)):
        choice.add(FileId(id), used_s)
    assert choice.may_displace(9, [FileId(1), FileId(2)], 100)
    assert not choice.may_displace(9, [FileId(1), FileId(3)], 100)
    assert choice.keeps(FileId(3), [FileId(1)], 100)
    assert not choice.keeps(FileId(1), [FileId(2)], 100)


def test_a_plan_lets_a_file_rise() -> None:
    choice = TierChoice()
    choice.plan(FileId(4), 30)
    choice.plan(FileId(4), 20)
    assert choice.take_risers(1) == [(4, 20)]


def test_few_wait_for_their_rise() -> None:
    choice = TierChoice()
    for number in range(RISING_MAX + 10):
        choice.plan(FileId(number), 1)
    assert choice.waiting == RISING_MAX
    assert choice.take_risers(1) == [(RISING_MAX + 9, 1)]
    choice.remove(FileId(RISING_MAX + 8))
    assert choice.take_risers(1) == [(RISING_MAX + 7, 1)]


def test_removed_files_are_forgotten() -> None:
    times = ReuseTimes()
    times.add(FileId(1), 5)
    times.use(FileId(1), 9)
    assert times.idle_s(FileId(1), 10) == 1
    times.remove(FileId(1))
    assert times.idle_s(FileId(1), 10) == times.use(FileId(1), 11) == math.inf
    times.add(FileId(2), 20)  # at the number of the other
    assert times.use(FileId(2), 23) == 3
    assert len(times) == 1


def test_the_tiers_above_and_below() -> None:
    order = ("memory", "nvme", "hdd")
    assert tiers_below("nvme", order) == ("hdd",)
    assert tiers_above("nvme", order) == ("memory",)
    assert tiers_below("hdd", order) == tiers_above("memory", order) == ()
    assert tiers_above("hdd", ("nvme",)) == tiers_below("hdd", ("nvme",)) == ("nvme",)
