"""The trial of a policy on a node ends after its limit, also with very many files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import DeadlineExceededError
from headrace.node.policy_trial import FILES_A_TURN, ClusterCopies, PolicyTrial
from headrace.node.space_policy import NodeCapacity
from headrace.policy.current import CurrentPolicy
from headrace.testing.virtual_loop import running_loop
from headrace.wire.peer_messages import TryPolicy

TENANT = '[tenant.a]\npaths = ["/a/**"]\nlimit = "1GiB"\n'


class EndlessIndex:
    """An index of files without an end, each of which costs a millisecond."""

    def __init__(self) -> None:
        self.files_compared = 0

    def cached_files(self) -> Iterator[object]:
        for number in itertools.count():
            yield SimpleNamespace(id=number)

    def entry(self, id: int) -> None:
        self.files_compared += 1
        running_loop().waits.now_s += 0.001

    def path_of(self, id: int) -> None:
        self.entry(id)

    def cached(self, id: int) -> None: ...


def trial_of(index: EndlessIndex, pinned: range) -> PolicyTrial:
    space = SimpleNamespace(tiered=SimpleNamespace(order=["nvme"]), pinned=pinned)
    store: Any = SimpleNamespace(index=index, space=space)
    return PolicyTrial(store, CurrentPolicy(), NodeCapacity(1 << 30), ClusterCopies())


@pytest.mark.parametrize(
    ("question", "pinned"),
    [
        (TryPolicy("", limit_s=2), range(0)),
        (TryPolicy(TENANT, outcomes=False, limit_s=2), range(1_000_000)),
    ],
)
async def test_a_walk_over_many_files_ends(question: TryPolicy, pinned: range) -> None:
    index = EndlessIndex()
    with pytest.raises(DeadlineExceededError, match=r"\d+ files were compared in 2 s, and others remain"):
        await trial_of(index, pinned).answer(question)
    assert 2000 <= index.files_compared <= 2000 + FILES_A_TURN
