"""The hot segments, and the nodes that hold copies of them."""

from __future__ import annotations

import random

from headrace.policy import heat
from headrace.policy.heat import HALF_LIFE_S, ReadHeat, SegmentRead

MIB = 1 << 20
NODES = [f"n{number}" for number in range(8)]
PLENTY = 1 << 40


def segment(key: int = 1, size_bytes: int = MIB) -> SegmentRead:
    return SegmentRead(key, file=key, size_bytes=size_bytes)


def holders(table: ReadHeat, now_s: float, *, key: int = 1, extra_bytes_max: int = PLENTY) -> tuple[str, ...]:
    hot = table.decide(NODES, extra_bytes_max=extra_bytes_max, now_s=now_s)
    return hot[key].holders if key in hot else ()


def test_a_segment_that_is_read_often_gains_its_readers_as_holders() -> None:
    table = ReadHeat()
    for reader in ("n1", "n2", "n2"):
        table.note(segment(), reader, MIB, 0.0)
    assert holders(table, 0.0) == ()
    table.note(segment(), "n2", MIB, 1.0)
    table.note(segment(), "n1", MIB, 1.0)
    assert holders(table, 1.0) == ("n2", "n1")
    assert holders(table, 1.0) == ("n2", "n1")  # the same reads count once


def test_parts_count_by_their_share() -> None:
    table = ReadHeat()
    for _ in range(39):
        table.note(segment(), "n1", MIB // 10, 0.0)
    assert holders(table, 0.0) == ()
    for _ in range(3):
        table.note(segment(), "n1", MIB // 10, 0.0)
    assert holders(table, 0.0) == ("n1",)


def test_reads_fade() -> None:
    table = ReadHeat()
    table.note(segment(), "n1", MIB, 0.0)
    assert table.reads(1, HALF_LIFE_S) == 0.5
    assert table.reads(2, 0.0) == 0.0
    for number in range(20):
        table.note(segment(), "n1", MIB, number * 2 * HALF_LIFE_S)
        assert holders(table, number * 2 * HALF_LIFE_S) == ()


def test_a_cold_segment_loses_its_holders_later_than_it_gained_them() -> None:
    table = ReadHeat()
    for reader in NODES[1:5]:
        table.note(segment(), reader, MIB, 0.0)
        table.note(segment(), reader, MIB, 0.0)
    assert len(holders(table, 0.0)) == 3
    assert len(holders(table, 1.5 * HALF_LIFE_S)) == 3
    counts = [len(holders(table, number * HALF_LIFE_S)) for number in range(2, 12)]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 0


def test_a_steady_rate_makes_no_copy_come_and_go() -> None:
    """The owner serves a part of the readers: one in as many as there are copies."""
    table, random_ = ReadHeat(), random.Random(1)
    count, changes = 0, 0
    for second in range(6 * 3600):
        if random_.random() < 0.2 / (1 + count):
            table.note(segment(), random_.choice(NODES), MIB, float(second))
        now = len(holders(table, float(second)))
        changes, count = changes + (now != count), now
    assert count == 8 and changes <= 8  # every node reads it, so each has it


def test_bytes_of_copies_are_bounded_and_the_hottest_have_them() -> None:
    table = ReadHeat()
    for key, reads in ((1, 8), (2, 30)):
        for _ in range(reads):
            for reader in NODES[:2]:
                table.note(segment(key), reader, MIB, 0.0)
    hot = table.decide(NODES, extra_bytes_max=3 * MIB, now_s=0.0)
    assert {key: len(row.holders) for key, row in hot.items()} == {2: 2, 1: 1}
    assert table.decide(NODES, extra_bytes_max=0, now_s=0.0) == {}


def test_a_node_that_left_holds_nothing() -> None:
    table = ReadHeat()
    for reader in ("n1", "n2", "gone"):
        for _ in range(4):
            table.note(segment(), reader, MIB, 0.0)
    assert set(holders(table, 0.0)) == {"n1", "n2"}
    left = table.decide(["n2"], extra_bytes_max=PLENTY, now_s=0.0)
    assert left[1].holders == ("n2",)


def test_memory_is_bounded_and_what_is_hot_is_not_forgotten() -> None:
    table = ReadHeat()
    for _ in range(8):
        table.note(segment(0), "n1", MIB, 0.0)
    assert holders(table, 0.0, key=0) == ("n1",)
    for key in range(1, 3 * heat.KNOWN_MAX):
        table.note(segment(key), f"n{key % 100}", MIB, float(key) / 1000)
        assert len(table) <= heat.KNOWN_MAX
    assert holders(table, 30.0, key=0) == ("n1",)
    for number in range(100):
        table.note(segment(0), f"reader-{number}", MIB, 30.0)
    assert len(table._counted[0].by_reader) <= heat.READERS_MAX


def test_the_number_of_hot_segments_and_of_holders_is_bounded() -> None:
    table, nodes = ReadHeat(), [f"n{number}" for number in range(40)]
    for key in range(heat.HOT_MAX + 50):
        for _ in range(5):
            table.note(segment(key, 1), "n1", 1, 0.0)
    for reader in nodes:
        for _ in range(8):
            table.note(segment(9, 1), reader, 1, 0.0)
    hot = table.decide(nodes, extra_bytes_max=PLENTY, now_s=0.0)
    assert len(hot) == heat.HOT_MAX
    assert len(hot[9].holders) <= heat.HOLDERS_MAX


def test_a_clock_that_stands_still_or_jumps_back_is_no_error() -> None:
    table = ReadHeat()
    table.note(segment(), "n1", 0, 5.0)
    table.note(segment(2, 0), "n1", 0, 5.0)
    table.note(segment(), "n1", MIB, 4.0)
    assert holders(table, 3.0) == ()
