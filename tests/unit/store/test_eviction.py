from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.model import FileId
from headrace.store.eviction import S3Fifo, build_policy

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "touch", "remove", "victims"]), st.integers(0, 20), st.integers(1, 100)
    ),
    max_size=80,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["lru", "s3fifo"]), OPERATIONS, st.sets(st.integers(0, 20), max_size=5))
def test_accounts_hold_and_pinned_stay(
    name: str, operations: list[tuple[str, int, int]], pinned: set[int]
) -> None:
    policy = build_policy(name)
    model: dict[int, int] = {}
    for operation, number, size in operations:
        id = FileId(number)
        if operation == "insert":
            policy.insert(id, size)
            model[number] = size
        elif operation == "touch":
            policy.touch(id)
        elif operation == "remove":
            assert policy.remove(id) == model.pop(number, 0)
        else:
            victims = policy.victims(size * 3, pinned.__contains__)
            assert len(set(victims)) == len(victims)
            assert not set(victims) & pinned
            free = {file_id: model[file_id] for file_id in model if file_id not in pinned}
            assert set(victims) <= set(free)
            assert sum(model[file_id] for file_id in victims) >= min(size * 3, sum(free.values()))
            for file_id in victims:
                assert policy.remove(file_id) == model.pop(file_id)
        assert all(policy.size_of(FileId(n)) == model.get(n, 0) for n in range(21))


def test_lru_drops_the_longest_unused() -> None:
    policy = build_policy("lru")
    for n in range(4):
        policy.insert(FileId(n), 10)
    policy.touch(FileId(0))
    assert policy.victims(15, lambda _: False) == [1, 2]


def test_a_scan_does_not_wash_out_what_is_used() -> None:
    policy = S3Fifo()
    hot = [FileId(n) for n in range(50)]
    for id in hot:
        policy.insert(id, 1)
        policy.touch(id)
    gone: set[FileId] = set()
    for n in range(1000, 3000):
        policy.insert(FileId(n), 1)
        for victim in policy.victims(1, lambda _: False) if n >= 1050 else []:
            policy.remove(victim)
            gone.add(victim)
        if n % 50 == 0:
            for id in hot:
                policy.touch(id)
    assert not gone & set(hot)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError):
        build_policy("clairvoyant")
