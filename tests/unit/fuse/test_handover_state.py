"""The next session reads what a session leaves to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headrace.fuse import handover_state
from headrace.fuse.abi import RESENT_BIT
from headrace.fuse.handover_state import HandoverState
from headrace.fuse.node_ids import NODE_SHIFT, UPPER
from tests.writing_program import written_words

SLOTS = 8
WRITES = """
import itertools, sys
from headrace.fuse.handover_state import HandoverState

state = HandoverState(int(sys.argv[1]))
state.save(init_flags=0x5555555555, mode="passthrough")
state.raise_incarnation(0x4444)
print("begun", flush=True)
for number in itertools.count(0x1010101):
    slot = state.add(number << 32 | number, number)
    state.count(slot, 0x2020202)
    state.raise_incarnation(7)
    state.keep_names(b"a" * 0x222)
    state.releases.record(number << 32 | number)
    state.remove(slot)
"""


def twice(number: int) -> bool:
    """Return whether both halves of a word are the same, as the program stored it."""
    return number >> 32 == number & 0xFFFFFFFF


@pytest.fixture
def fd(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(handover_state, "SLOTS", SLOTS)
    memory = handover_state.create()
    yield memory
    os.close(memory)


def test_the_first_session_inherits_nothing(fd: int) -> None:
    state = HandoverState(fd)
    assert (state.init_flags, state.mode, state.incarnation) == (0, "", 0)
    assert state.inherited_slots() == []
    assert os.get_inheritable(fd) is False


def test_the_next_session_inherits_what_init_negotiated(fd: int) -> None:
    first = HandoverState(fd)
    first.save(init_flags=1 << 37 | 5, mode="passthrough")
    assert first.next_incarnation() == 1
    second = HandoverState(fd)
    assert (second.init_flags, second.mode, second.incarnation) == (1 << 37 | 5, "passthrough", 1)
    assert second.next_incarnation() == 2


def test_the_next_session_inherits_slots_with_their_counts(fd: int) -> None:
    first = HandoverState(fd)
    slots = [first.add(node, backing_id) for node, backing_id in ((11, 1), (12, 2), (13, 3))]
    first.count(slots[1], 7)
    first.count(slots[2], 0)
    first.remove(slots[0])
    assert sorted(HandoverState(fd).inherited_slots()) == [(slots[1], 12, 2, 7), (slots[2], 13, 3, 0)]


def test_no_slot_is_given_twice(fd: int) -> None:
    first = HandoverState(fd)
    slots = [first.add(10 + number, number) for number in range(SLOTS)]
    assert sorted(slots) == list(range(SLOTS))
    assert first.add(99, 99) == -1
    first.remove(3)
    assert first.add(99, 99) == 3
    second = HandoverState(fd)
    assert second.add(100, 100) == -1
    assert len(second.inherited_slots()) == SLOTS


def test_slots_that_nobody_used_take_no_memory() -> None:
    """Nor time at the start of a session, which would look at 65,536 of them."""
    fd = handover_state.create()
    try:
        first = HandoverState(fd)
        assert [first.add(10 + number, number) for number in range(3)] == [0, 1, 2]
        first.remove(1)
        second = HandoverState(fd)
        assert sorted(second.inherited_slots()) == [(0, 10, 0, 1), (2, 12, 2, 1)]
        assert [second.add(20 + number, number) for number in range(3)] == [1, 3, 4]
        assert os.fstat(fd).st_blocks * 512 < 65_536
    finally:
        os.close(fd)


def test_an_incarnation_is_never_used_again_until_they_wrap(fd: int) -> None:
    state = HandoverState(fd)
    assert state.raise_incarnation(40) == 40
    assert state.raise_incarnation(7) == 7, "another file's"
    assert HandoverState(fd).next_incarnation() == 41
    state = HandoverState(fd)
    assert state.raise_incarnation(0xFFFF) == 0xFFFF
    assert HandoverState(fd).next_incarnation() == 1


def test_the_last_releases_are_remembered_in_order(fd: int) -> None:
    def known(state: HandoverState) -> list[int]:
        return [unique for unique in range(2, 206, 2) if state.releases.is_repeated(unique | RESENT_BIT)]

    state = HandoverState(fd)
    for unique in range(2, 202, 2):
        state.releases.record(unique)
    assert known(state) == known(HandoverState(fd)) == [*range(74, 202, 2)]
    assert not state.releases.is_repeated(200), "only what the kernel marks is resent"
    second = HandoverState(fd)
    second.releases.record(202 | RESENT_BIT)
    assert known(HandoverState(fd)) == [*range(76, 204, 2)], "the oldest is replaced"
    assert known(second) == [*range(74, 204, 2)], "what it inherited may be resent at any time"


def test_a_state_that_an_earlier_version_made_is_extended(fd: int) -> None:
    os.ftruncate(fd, handover_state._GENERATIONS_AT)
    first = HandoverState(fd)
    first.generations.renew(UPPER | 7, is_known=True, is_counted=True)
    first.exchanges.record(8)
    second = HandoverState(fd)
    assert second.generations.node_of(7) == (1 << NODE_SHIFT) + (UPPER | 7)
    assert second.exchanges.is_repeated(8 | RESENT_BIT)
    assert not second.releases.is_repeated(8 | RESENT_BIT)


def test_a_session_may_be_killed_within_any_write(fd: int) -> None:
    nodes: set[int] = set()
    slot, release, names = (
        offset // 8
        for offset in (handover_state._SLOTS_AT, handover_state._RELEASES_AT, handover_state._NAMES_AT)
    )
    with written_words(WRITES, fd) as words:
        while len(nodes) < 300:
            assert (words[1], words[2]) == (0x4444, 0x5555555555)
            assert words[names] in (0, 0x222)
            assert twice(words[release])
            node, counted = words[slot], words[slot + 1]
            assert twice(node)
            if node and node == words[slot]:  # the same one as before
                assert counted & 0xFFFFFFFF == node & 0xFFFFFFFF
                assert counted >> 32 in (1, 0x2020202)
                nodes.add(node)


def test_a_state_of_another_format_is_no_state(fd: int) -> None:
    HandoverState(fd).save(init_flags=5, mode="splice")
    os.pwrite(fd, b"HRFUSE9\0", 0)
    assert HandoverState(fd).mode == ""
