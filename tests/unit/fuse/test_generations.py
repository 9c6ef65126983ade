"""What one session keeps of the generations of nodes, as the next one reads it."""

from __future__ import annotations

import pytest

from headrace.fuse import generations
from headrace.fuse.generations import BYTES, Generations


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    monkeypatch.setattr(generations, "SLOTS", 3)
    return bytearray(BYTES)


def test_the_next_session_has_what_the_first_one_renewed(memory: bytearray) -> None:
    first = Generations(memory)
    for node in (11, 12, 12, 13):
        first.renew(node)
    first.forget(13)
    first.forget(99)
    second = Generations(memory)
    assert [second.of(node) for node in (11, 12, 13)] == [1, 2, 0]
    second.renew(14)
    assert [Generations(memory).of(node) for node in (11, 12, 14)] == [1, 2, 1]


def test_what_an_earlier_session_renewed_stays_until_its_slot_is_needed(memory: bytearray) -> None:
    first = Generations(memory)
    for node in (11, 12, 13):
        first.renew(node)
    second = Generations(memory)
    second.forget(11)
    assert second.of(11) == 1
    second.renew(12)
    second.renew(14)
    assert [Generations(memory).of(node) for node in (11, 12, 13, 14)] == [0, 2, 1, 1]


def test_more_nodes_than_slots_are_renewed_in_this_session_only(memory: bytearray) -> None:
    first = Generations(memory)
    for node in range(1, 6):
        first.renew(node)
    assert [first.of(node) for node in range(1, 6)] == [1] * 5
    assert [Generations(memory).of(node) for node in range(1, 6)] == [1, 1, 1, 0, 0]
    first.forget(5)
    first.forget(1)
    first.renew(6)
    assert [Generations(memory).of(node) for node in (1, 2, 3, 6)] == [0, 1, 1, 1]


def test_nodes_begin_with_the_generation_of_the_first_index(memory: bytearray) -> None:
    assert Generations(memory).begin_at(7) == 7
    assert Generations(memory).begin_at(8) == 7
