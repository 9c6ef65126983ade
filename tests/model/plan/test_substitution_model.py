"""Each sample of an epoch is read once, whatever is cached, wherever it is resumed, with any number of ranks."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.plan.substitution import CachedFirstOrder, merged_state

STEPS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 5), st.sampled_from(["", "resume", "drop", "reshard"])),
    max_size=25,
)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 4), st.booleans(), STEPS, st.randoms())
def test_each_position_is_read_once(
    count: int,
    world: int,
    second_world: int,
    drop_last: bool,
    steps: list[tuple[int, int, str]],
    random_source: Any,
) -> None:
    def are_cached(positions: Any) -> list[bool]:
        return [random_source.random() < 0.3 for _ in positions]

    def ranks_of(size: int, before: bytes) -> list[CachedFirstOrder]:
        return [
            CachedFirstOrder(count, rank=rank, world=size, drop_last=drop_last, before=before)
            for rank in range(size)
        ]

    reads: Counter[int] = Counter()
    before, orders = b"", ranks_of(world, b"")
    spare = world - 1
    for number, batch_size, event in steps:
        rank = number % len(orders)
        order = orders[rank]
        offsets = order.take(batch_size, are_cached)
        if event == "drop":  # workers had read ahead, and the training ended
            state = json.loads(json.dumps(order.state()))
        else:
            order.mark_read(offsets)
            reads.update(order.share[offset] for offset in offsets)
            state = json.loads(json.dumps(order.state()))
        if event in ("drop", "resume"):
            orders[rank] = CachedFirstOrder(
                count, rank=rank, world=len(orders), drop_last=drop_last, before=before
            )
            orders[rank].restore(state)
        if event == "reshard":
            before = merged_state([each.state() for each in orders], drop_last=drop_last)
            orders = ranks_of(second_world, before)
            spare += second_world - 1
    for order in orders:
        while offsets := order.take(3, are_cached):
            order.mark_read(offsets)
            reads.update(order.share[offset] for offset in offsets)
        assert len(order) == 0
    assert len({len(order.share) for order in orders}) == 1
    if drop_last:
        assert set(reads.values()) <= {1}
        assert len(reads) >= count - (len(orders) - 1)
    else:
        assert set(reads) == set(range(count))
        assert sum(reads.values()) <= count + spare
