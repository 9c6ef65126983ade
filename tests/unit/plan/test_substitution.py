"""Cached samples first, within an epoch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headrace.base.errors import UsageError
from headrace.plan.substitution import CachedFirstOrder, merged_state


def nothing(positions: Sequence[int]) -> list[bool]:
    return [False] * len(positions)


def test_cached_positions_come_first_and_others_in_order() -> None:
    order = CachedFirstOrder(10)
    assert order.take(4, lambda positions: [position in (5, 8) for position in positions]) == [5, 8, 0, 1]
    assert order.take(4, nothing) == [2, 3, 4, 6]
    assert order.take(4, nothing) == [7, 9]
    assert order.take(4, nothing) == []


def test_without_a_cached_position_the_order_is_the_seeded_one() -> None:
    order = CachedFirstOrder(1000, rank=1, world=2)
    positions = [order.share[offset] for _ in range(50) for offset in order.take(10, nothing)]
    assert positions == list(range(1, 1000, 2))


def test_a_search_is_bounded_and_goes_round() -> None:
    order, checked = CachedFirstOrder(1000), list[int]()

    def only_last(positions: Sequence[int]) -> list[bool]:
        checked.append(len(positions))
        return [position == 999 for position in positions]

    batches = [order.take(10, only_last) for _ in range(20)]
    assert max(checked) == 80
    assert 999 in [offset for batch in batches[:13] for offset in batch]


def test_a_state_continues_with_what_was_not_read() -> None:
    order = CachedFirstOrder(20, rank=0, world=2)
    order.mark_read(order.take(4, nothing))
    order.take(4, nothing)
    resumed = CachedFirstOrder(20, rank=0, world=2)
    resumed.restore(order.state())
    assert resumed.take(99, nothing) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(UsageError, match="rank 0 of 2, not of rank 1 of 2"):
        CachedFirstOrder(20, rank=1, world=2).restore(order.state())


def test_a_state_of_a_million_samples_is_small() -> None:
    order = CachedFirstOrder(1_000_000)
    order.mark_read(range(0, 1_000_000, 3))
    state = order.state()
    assert len(state["before"]) + len(state["read"]) < 200_000


def test_states_of_all_ranks_are_needed_for_another_world_size() -> None:
    orders = [CachedFirstOrder(10, rank=rank, world=2) for rank in range(2)]
    for order in orders:
        order.mark_read(order.take(2, nothing))
    states = [order.state() for order in orders]
    before = merged_state(states, drop_last=True)
    assert list(CachedFirstOrder(10, before=before).share) == [4, 5, 6, 7, 8, 9]
    for wrong in ([], states[:1], [states[0], states[0]], [states[0], {**states[1], "count": 11}]):
        with pytest.raises(UsageError, match="states of a loader"):
            merged_state(wrong, drop_last=True)


@pytest.mark.parametrize(
    "damage", [{"read": "?"}, {"read": "AAAA"}, {"read": 5}, {"count": "many"}, {"before": None}]
)
def test_a_damaged_state_is_refused(damage: dict[str, object]) -> None:
    order = CachedFirstOrder(10)
    with pytest.raises(UsageError, match="state of a loader"):
        order.restore({**order.state(), **damage})
