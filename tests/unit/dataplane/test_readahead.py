"""Pure arithmetic decides how far ahead to fetch."""

from __future__ import annotations

import random

from headrace.base.model import BLOCK_SIZE_BYTES
from headrace.dataplane.readahead import ReadAhead

MIB = BLOCK_SIZE_BYTES
GIB = 1 << 30


def reader(size_bytes: int) -> ReadAhead:
    return ReadAhead(size_bytes, window_bytes_max=64 * MIB, whole_file_after_bytes=32 * MIB)


def test_a_sequential_reader_gets_a_growing_window_and_then_the_whole_file() -> None:
    ahead = reader(10 * GIB)
    widths = []
    for block in range(33):
        start, end = ahead.note(block * MIB, (block + 1) * MIB)
        widths.append(end - start)
    assert widths[0] == 8 * MIB
    assert widths == sorted(widths)
    assert widths[-1] == 64 * MIB
    assert ahead.wants_whole


def test_random_small_reads_of_a_huge_file_fetch_next_to_nothing_ahead() -> None:
    ahead = reader(100 * GIB)
    chance = random.Random(1)
    fetched_ahead = 0
    for _ in range(1000):
        offset = chance.randrange(MIB, 100 * GIB - 8192)
        start, end = ahead.note(offset, offset + 8192)
        fetched_ahead += end - start
    assert fetched_ahead < 100 * MIB  # two reads close together by chance look like a stream
    assert not ahead.wants_whole


def test_a_quarter_of_the_file_in_any_order_is_in_earnest() -> None:
    ahead = reader(100 * MIB)
    for block in range(99, 73, -1):
        ahead.note(block * MIB, (block + 1) * MIB)
    assert ahead.wants_whole


def test_one_read_of_as_much_is_in_earnest_at_once() -> None:
    ahead = reader(10 * GIB)
    ahead.note(5 * GIB, 5 * GIB + 32 * MIB - 1)
    assert not ahead.wants_whole
    ahead.note(0, 32 * MIB)
    assert ahead.wants_whole


def test_the_window_ends_with_the_file() -> None:
    start, end = reader(3 * MIB).note(0, MIB)
    assert (start, end) == (MIB, 3 * MIB)
