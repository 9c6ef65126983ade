"""The next session reads how many later files of an inode number one session counted."""

from __future__ import annotations

import os

import pytest

from headrace.base.model import FILE_ID_MAX
from headrace.fuse import generations
from headrace.fuse.generations import BYTES, Generations
from headrace.fuse.node_ids import NODE_SHIFT, UPPER
from tests.writing_program import written_words

NODE = UPPER | 0x20304050607
WRITES = f"""
import mmap, sys
from headrace.fuse.generations import BYTES, Generations

generations = Generations(memoryview(mmap.mmap(int(sys.argv[1]), BYTES)))
generations.begin_at(0x3030303)
generations.renew({NODE}, is_known=True, is_counted=True)
print("begun", flush=True)
while True:
    generations.renew({NODE}, is_known=True, is_counted=True)
"""


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    monkeypatch.setattr(generations, "SLOTS", 3)
    return bytearray(BYTES)


def renew(generations: Generations, inode: int, *, is_known: bool = True, is_counted: bool = True) -> int:
    return generations.renew(UPPER | inode, is_known=is_known, is_counted=is_counted)


def counts(generations: Generations, *inodes: int) -> list[int]:
    """Return how many later files of each number were counted."""
    nodes = [generations.node_of(inode) for inode in inodes]
    assert [node & FILE_ID_MAX for node in nodes] == [UPPER | inode for inode in inodes]
    assert all(generations.is_newest(node) for node in nodes)
    return [(generations.generation_of(node) << 16) + (node >> NODE_SHIFT) for node in nodes]


def test_the_next_session_has_what_the_first_one_renewed(memory: bytearray) -> None:
    first = Generations(memory)
    for inode in (11, 12, 12, 13):
        renew(first, inode)
    first.forget(UPPER | 13)
    first.forget(UPPER | 99)
    second = Generations(memory)
    assert counts(second, 11, 12, 13) == [1, 2, 0]
    assert [second.is_inherited(UPPER | inode) for inode in (11, 12, 13)] == [True, True, False]
    renew(second, 14)
    assert counts(Generations(memory), 11, 12, 14) == [1, 2, 1]


def test_what_an_earlier_session_renewed_stays_until_its_slot_is_needed(memory: bytearray) -> None:
    first = Generations(memory)
    for inode in (11, 12, 13):
        renew(first, inode)
    second = Generations(memory)
    second.forget(UPPER | 11)
    assert counts(second, 11) == [1]
    renew(second, 12)
    renew(second, 14)
    assert counts(Generations(memory), 11, 12, 13, 14) == [0, 2, 1, 1]


def test_more_numbers_than_slots_are_renewed_in_this_session_only(memory: bytearray) -> None:
    first = Generations(memory)
    for inode in range(1, 6):
        renew(first, inode)
    assert counts(first, *range(1, 6)) == [1] * 5
    assert counts(Generations(memory), *range(1, 6)) == [1, 1, 1, 0, 0]
    first.forget(UPPER | 5)
    first.forget(UPPER | 1)
    renew(first, 6)
    assert counts(Generations(memory), 1, 2, 3, 6) == [0, 1, 1, 1]


def test_a_count_is_dropped_with_the_last_node_that_the_kernel_knows(memory: bytearray) -> None:
    generations = Generations(memory)
    first = UPPER | 11
    second = renew(generations, 11)
    generations.learn(second)
    third = renew(generations, 11)
    generations.learn(third)
    assert counts(generations, 11) == [2]
    assert [generations.is_newest(node) for node in (first, second, third)] == [False, False, True]
    for node in (third, first):
        generations.forget(node)
        assert counts(generations, 11) == [2]
    generations.forget(second)
    assert counts(generations, 11) == [0]
    renew(generations, 12, is_known=False)
    generations.forget(UPPER | 12)
    assert counts(generations, 12) == [0]


def test_a_count_stays_if_not_all_lookups_were_counted(memory: bytearray) -> None:
    generations = Generations(memory)
    renew(generations, 12, is_counted=False)
    generations.forget(UPPER | 12)
    assert counts(generations, 12) == [1]
    for inode in (13, 14, 15):
        renew(generations, inode)
    assert counts(generations, 12) == [0], "its slot was needed"


def test_ids_of_the_index_have_no_later_files(memory: bytearray) -> None:
    generations = Generations(memory)
    renew(generations, 11)
    generations.learn(11)
    generations.forget(11)
    generations.forget(11)
    assert (generations.generation_of(11), generations.is_inherited(11)) == (0, False)
    assert counts(generations, 11) == [1]


def test_nodes_begin_with_the_generation_of_the_first_index(memory: bytearray) -> None:
    assert Generations(memory).begin_at(7) == 7
    assert Generations(memory).begin_at(8) == 7


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
