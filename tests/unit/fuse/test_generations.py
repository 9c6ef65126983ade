"""The next session reads the generations of nodes that one session kept."""

from __future__ import annotations

import os

import pytest

from headrace.fuse import generations
from headrace.fuse.generations import BYTES, Generations
from tests.writing_program import written_words

NODE = 0x1020304050607
WRITES = f"""
import mmap, sys
from headrace.fuse.generations import BYTES, Generations

generations = Generations(memoryview(mmap.mmap(int(sys.argv[1]), BYTES)))
generations.begin_at(0x3030303)
generations.renew({NODE})
print("begun", flush=True)
while True:
    generations.renew({NODE})
"""


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


def test_a_removed_file_stays_removed_for_the_next_session_until_a_later_one_is_sent(
    memory: bytearray,
) -> None:
    first = Generations(memory)
    first.begin_at(7)
    first.remove(11, counted=True)
    second = Generations(memory)
    assert (first.inherits, second.inherits) == (False, True)
    assert (second.is_removed(11), second.of(11)) == (True, 1)
    second.sent(11)
    third = Generations(memory)
    assert (third.is_removed(11), third.of(11)) == (False, 1)
    third.remove(11, counted=True)
    third.renew(11)
    assert [(each.is_removed(11), each.of(11)) for each in (third, Generations(memory))] == [(False, 3)] * 2


def test_a_removed_file_is_dropped_with_its_last_lookup_if_that_is_known(memory: bytearray) -> None:
    generations = Generations(memory)
    generations.remove(11, counted=True)
    generations.remove(12, counted=False)
    for node in (11, 12):
        generations.forget(node)
    assert [(generations.is_removed(node), generations.of(node)) for node in (11, 12)] == [
        (False, 0),
        (True, 1),
    ]
    for node in (13, 14, 15):
        generations.remove(node, counted=True)
    assert (generations.is_removed(12), generations.of(12)) == (False, 0), "its slot was needed"
    assert [Generations(memory).is_removed(node) for node in (12, 13, 14, 15)] == [False, True, True, True]


def test_a_session_may_be_killed_within_any_write() -> None:
    fd = os.memfd_create("generations", os.MFD_CLOEXEC)
    os.ftruncate(fd, BYTES)
    renewals = 1
    with written_words(WRITES, fd) as words:
        while renewals < 500_000:
            assert words[2] == NODE
            before, renewals = renewals, words[3]
            assert renewals >= before
    os.close(fd)
