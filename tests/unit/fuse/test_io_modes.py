from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from headrace.base.model import FileId, Kind
from headrace.fuse import handover_state
from headrace.fuse.abi import RESENT_BIT
from headrace.fuse.handles import Directory
from headrace.fuse.io_modes import InodeIoModes

UNIQUES = count(2, 2)


class Kernel:
    """Backing ids that are registered."""

    def __init__(self) -> None:
        self.live: set[int] = set()
        self._next = count(1)

    def register(self) -> int:
        id = next(self._next)
        self.live.add(id)
        return id


Maker = Callable[..., InodeIoModes]


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.fixture
def make(kernel: Kernel) -> Maker:
    fd = handover_state.create()

    def make_one(idle_max: int = 100) -> InodeIoModes:
        return InodeIoModes(handover_state.HandoverState(fd), kernel.live.remove, idle_max=idle_max)

    return make_one


def test_one_backing_id_per_node(kernel: Kernel, make: Maker) -> None:
    inodes = make()
    node = inodes.node_of(FileId(5), Kind.FILE)
    assert inodes.open_hit(node) == 0
    first = inodes.open_passthrough(node, kernel.register)
    assert inodes.open_hit(node) == first == inodes.open_passthrough(node, kernel.register)
    for _ in range(3):
        inodes.release_passthrough(node, next(UNIQUES))
    assert kernel.live == {first}  # kept for the next open
    inodes.evict([5])
    assert not kernel.live


def test_an_evicted_file_keeps_its_backing_id_while_open(kernel: Kernel, make: Maker) -> None:
    inodes = make()
    node = inodes.node_of(FileId(5), Kind.FILE)
    first = inodes.open_passthrough(node, kernel.register)
    inodes.evict([5])
    assert inodes.open_hit(node) == first
    assert inodes.open_cached(node) == first  # never cached beside passthrough
    for _ in range(3):
        inodes.release_passthrough(node, next(UNIQUES))
    assert not kernel.live
    assert inodes.open_cached(node) == 0


def test_a_damaged_file_is_opened_anew_beside_those_who_have_it_open(kernel: Kernel, make: Maker) -> None:
    inodes = make()
    id = FileId(7)
    node = inodes.node_of(id, Kind.FILE)
    bad = inodes.open_passthrough(node, kernel.register)
    assert inodes.open_hit(node) == bad
    assert node in inodes.damage([id])
    assert inodes.open_hit(node) == 0
    assert inodes.is_damaged(node)
    assert not inodes.may_pass(node)
    assert inodes.refuse(node)  # ESTALE: the kernel looks the name up again
    fresh = inodes.node_of(id, Kind.FILE)
    assert fresh != node
    assert not inodes.is_damaged(fresh)
    good = inodes.open_passthrough(fresh, kernel.register)
    assert good not in (0, bad)
    inodes.evict([id])
    assert {node, fresh} <= set(inodes.damage([id]))
    for unique in range(1000, 1004, 2):
        assert inodes.release_passthrough(node, unique)
    assert kernel.live == {good}
    assert inodes.release_passthrough(fresh, 1010)
    assert kernel.live == set()
    idle = inodes.node_of(id, Kind.FILE)
    inodes.open_passthrough(idle, kernel.register)
    inodes.release_passthrough(idle, 1012)
    assert idle in inodes.damage([id])
    assert kernel.live == set()
    assert inodes.node_of(id, Kind.FILE) == idle  # nobody has it open: it need not move


def test_no_passthrough_beside_cached(kernel: Kernel, make: Maker) -> None:
    inodes = make()
    node = inodes.node_of(FileId(5), Kind.FILE)
    assert inodes.open_cached(node) == 0
    assert not inodes.may_pass(node)
    assert inodes.open_passthrough(node, kernel.register) == 0
    assert inodes.refuse(node)
    fresh = inodes.node_of(FileId(5), Kind.FILE)
    assert fresh != node
    assert inodes.may_pass(fresh)
    assert not inodes.refuse(node)  # only once
    assert inodes.node_of(FileId(5), Kind.FILE) == fresh


def test_idle_backing_ids_have_a_limit(kernel: Kernel, make: Maker) -> None:
    inodes = make(idle_max=2)
    for id in range(1, 6):
        node = inodes.node_of(FileId(id), Kind.FILE)
        inodes.open_passthrough(node, kernel.register)
        inodes.release_passthrough(node, next(UNIQUES))
    assert kernel.live == {4, 5}


def test_takeover_goes_on_with_backing_ids_and_new_incarnations(kernel: Kernel, make: Maker) -> None:
    before = make()
    open_one, cached_one = before.node_of(FileId(5), Kind.FILE), before.node_of(FileId(6), Kind.FILE)
    backing_id = before.open_passthrough(open_one, kernel.register)
    before.open_cached(cached_one)
    after = make()
    assert after.node_of(FileId(5), Kind.FILE) == open_one
    assert after.open_hit(open_one) == backing_id
    assert not after.may_pass(cached_one)
    assert after.node_of(FileId(6), Kind.FILE) != cached_one
    assert after.node_of(FileId(7), Kind.DIRECTORY) == 7
    after.release_passthrough(open_one, next(UNIQUES))
    after.release_passthrough(open_one, next(UNIQUES))
    after.evict([5])
    assert not kernel.live


def test_a_damaged_file_stays_damaged_for_the_next_session(kernel: Kernel, make: Maker) -> None:
    before = make()
    node = before.node_of(FileId(7), Kind.FILE)
    bad = before.open_passthrough(node, kernel.register)
    before.damage([7])
    after = make()
    assert after.is_damaged(node)
    assert after.open_hit(node) == 0
    assert not after.may_pass(node)
    fresh = after.node_of(FileId(7), Kind.FILE)
    assert fresh != node
    assert not after.is_damaged(fresh)
    good = after.open_passthrough(fresh, kernel.register)
    assert kernel.live == {bad, good}
    last = make()
    assert last.node_of(FileId(7), Kind.FILE) == fresh
    assert (last.open_hit(node), last.open_hit(fresh)) == (0, good)
    last.release_passthrough(node, next(UNIQUES))
    assert kernel.live == {good}


@pytest.mark.parametrize("slot", [0, 2])
def test_the_newest_of_the_nodes_that_a_file_had_is_the_current_one(
    kernel: Kernel, make: Maker, slot: int
) -> None:
    """The slot of the newest one in the handover state may be before or after that of the older one."""
    before = make()
    other, old = (before.node_of(FileId(id), Kind.FILE) for id in (6, 7))
    for node in (other, old):
        before.open_passthrough(node, kernel.register)
    before.refuse(old)
    newest = before.node_of(FileId(7), Kind.FILE)
    if slot == 0:
        before.release_passthrough(other, next(UNIQUES), keep=False)
    before.open_passthrough(newest, kernel.register)
    assert before._backings[newest].slot == slot
    assert make().node_of(FileId(7), Kind.FILE) == newest


def test_a_damaged_file_that_was_just_closed_is_dropped_by_the_next_session(
    kernel: Kernel, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make()
    node = before.node_of(FileId(7), Kind.FILE)
    before.open_passthrough(node, kernel.register)
    before.damage([7])
    monkeypatch.setattr(before, "_drop", lambda node: None)  # it is killed before
    before.release_passthrough(node, next(UNIQUES))
    assert kernel.live
    assert make().counts() == (0, 0)
    assert not kernel.live


def test_a_release_that_is_asked_again_is_counted_once(kernel: Kernel, make: Maker) -> None:
    """The session died between the count and the answer, the next one before it came to it: the third must know."""
    first = make()
    node = first.node_of(FileId(5), Kind.FILE)
    for _ in range(4):
        first.open_passthrough(node, kernel.register)
    first.release_passthrough(node, 10)
    make().release_passthrough(node, 12)
    third = make()
    assert third.release_passthrough(node, 10 | RESENT_BIT)
    third.release_passthrough(node, 14 | RESENT_BIT)  # the sessions before died before they counted it
    third.evict([5])
    assert kernel.live  # one of four is open still
    third.release_passthrough(node, 16)
    assert not kernel.live


def test_a_release_that_this_session_counted_itself_is_counted_once(kernel: Kernel, make: Maker) -> None:
    inodes = make()
    node = inodes.node_of(FileId(5), Kind.FILE)
    for _ in range(2):
        inodes.open_passthrough(node, kernel.register)
    inodes.release_passthrough(node, 10)
    assert inodes.release_passthrough(node, 10 | RESENT_BIT)
    inodes.evict([5])
    assert kernel.live  # one of two is open still
    inodes.release_passthrough(node, 12)
    assert not kernel.live


def test_a_bumped_incarnation_is_never_used_again(make: Maker) -> None:
    first = make()
    nodes = set()
    for _ in range(5):
        node = first.node_of(FileId(9), Kind.FILE)
        nodes.add(node)
        first.refuse(node)
    nodes.add(first.node_of(FileId(9), Kind.FILE))
    assert len(nodes) == 6
    assert make().node_of(FileId(9), Kind.FILE) not in nodes


def test_directory_positions() -> None:
    directory = Directory()
    assert directory.seek(2) == (b"", 0)
    names = [b"n%d" % number for number in range(1, 201)]
    directory.record_page(2, names[:100])
    assert directory.seek(50) == (b"n48", 0)
    directory.record_page(102, names[100:])
    directory.record_page(202, [])
    assert directory.seek(150) == (b"n100", 48)
    assert directory.seek(202) == (b"n200", 0)
    directory.record_page(2, names[:100])
    assert directory.seek(205) == (b"n200", 3)
    directory.rewind()
    assert directory.seek(205) == (b"", 203)
