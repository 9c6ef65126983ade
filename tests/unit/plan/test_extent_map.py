"""Extents of samples, and orders of them: what is kept in few bytes says what was given."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.model import FileId
from headrace.plan.extent_map import ExtentMap, ExtentOrder, spaced_range
from headrace.plan.file_numbers import NO_FILE, FileNumbers
from headrace.plan.orders import PlannedStream

EXTENTS = 9


def divided(extents: int = EXTENTS) -> ExtentMap:
    """Return a map whose extents have the numbers 2, 3, … in plans: another file has the first one."""
    numbers = FileNumbers()
    numbers.add(FileId(1))
    extent_map = ExtentMap(numbers)
    extent_map.divide(1, FileId(7), array("Q", range(extents + 1)))
    return extent_map


ROWS = st.lists(st.lists(st.integers(1, EXTENTS), max_size=3), min_size=1, max_size=200)


@given(ROWS, st.integers(1, 50), st.booleans(), st.randoms())
def test_samples_have_the_extents_that_were_given(
    rows: list[list[int]], rows_at_once: int, has_counts: bool, chance: random.Random
) -> None:
    extent_map, expected = divided(), list[list[int]]()
    for start in range(0, len(rows), rows_at_once):
        part = rows[start : start + rows_at_once]
        width = max(1, *map(len, part))
        flat = array("I", (number for row in part for number in (*row, *[0] * (width - len(row)))))
        counts = array("I", (chance.randint(1, 3) for _ in part)) if has_counts else None
        first = len(expected)
        for row, count in zip(part, counts or [1] * len(part), strict=True):
            expected += [row] * count
        extent_map.place(first, width, flat, counts)
        extent_map.place(first, width, flat, counts)  # of another process of the job
    assert extent_map.samples == len(expected)
    samples = array("I", chance.choices(range(len(expected)), k=70))
    for width in (1, extent_map.width):
        padded = [[*(number + 1 for number in expected[sample]), *[NO_FILE] * width] for sample in samples]
        wanted = [number for row in padded for number in row[:width]]
        order = ExtentOrder(samples, extent_map, width)
        assert list(order) == wanted
        start, end = sorted(chance.choices(range(len(wanted) + 1), k=2))
        assert list(order[start:end]) == wanted[start:end]
        assert order == ExtentOrder(array("I", samples), extent_map, width)
        assert order != ExtentOrder(samples[1:], extent_map, width)


def test_a_part_that_overlaps_what_is_known_adds_the_rest() -> None:
    extent_map = divided()
    extent_map.place(0, 1, array("I", [1, 2]), array("I", [3, 2]))
    extent_map.place(1, 1, array("I", [9, 9, 3]), array("I", [1, 4, 2]))
    assert extent_map.samples == 8
    assert list(ExtentOrder(range(8), extent_map, 1)) == [2, 2, 2, 3, 3, 10, 4, 4]


def test_samples_beyond_what_is_known_have_no_extent() -> None:
    assert list(ExtentOrder(range(3), divided(), 2)) == [NO_FILE] * 6


def test_rows_that_do_not_follow_and_mixed_counts_are_refused() -> None:
    extent_map = divided()
    for first, extents in ((1, [1]), (0, [EXTENTS + 1])):
        with pytest.raises(UsageError):
            extent_map.place(first, 1, array("I", extents), None)
    extent_map.place(0, 1, array("I", [1]), None)
    with pytest.raises(UsageError, match="counts"):
        extent_map.place(1, 1, array("I", [1]), array("I", [5]))


def test_more_than_65535_extents_have_numbers_of_4_bytes() -> None:
    extent_map = divided(70_000)
    extent_map.place(0, 2, array("I", [70_000, 1, 65_536, 0]), None)
    assert list(ExtentOrder(range(2), extent_map, 2)) == [70_001, 2, 65_537, NO_FILE]


def test_a_stream_of_extents_needs_no_table() -> None:
    extent_map = divided()
    extent_map.place(0, 1, array("I", [1, 2, 3]), array("I", [2, 2, 2]))
    stream = PlannedStream(ExtentOrder(array("I", [5, 0, 2]), extent_map, 1), 1)
    assert stream.is_built
    assert list(stream.upcoming(1, 9)) == [2, 3]
    assert stream.next_position(4) is None
    assert not stream.knows(4)
    assert [number for _, number in stream.deadlines()] == [4, 2, 3]


@pytest.mark.parametrize(
    ("samples", "spaced"),
    [
        ([], None),
        ([4], None),
        ([4, 4], None),
        ([4, 5, 6], range(4, 7)),
        ([9, 6, 3, 0], range(9, -1, -3)),
        ([0, 2, 5], None),
        ([0, 1, 3, 3], range(4)),  # the caller compares the others
    ],
)
def test_the_first_two_and_the_last_sample_say_a_range(samples: list[int], spaced: range | None) -> None:
    assert spaced_range(array("I", samples)) == spaced


def test_windows_of_tokens_take_few_bytes() -> None:
    """64 windows of each extent: a row of 7 bytes for 64 samples, and the 4 bytes of each extent's number."""
    extents = 70_000
    extent_map = divided(extents)
    extent_map.place(0, 1, array("I", range(1, extents + 1)), array("I", [64] * extents))
    tables = (extent_map._row_extents, extent_map._row_starts, extent_map._row_ends, extent_map._extents)
    kept = sum(table.itemsize * len(table) for table in tables if table is not None)
    assert kept + len(extent_map._row_sizes) < 0.25 * extent_map.samples
    assert extent_map.samples == list(accumulate([64] * extents))[-1]


def test_no_extents_are_added_after_the_samples() -> None:
    """A file may be looked up while another program of the same data set already describes samples."""
    extent_map = divided()
    assert not extent_map.has(EXTENTS + 1, 70_000)
    extent_map.place(0, 1, array("I", [1]), None)
    with pytest.raises(UsageError, match="come before the samples"):
        extent_map.divide(EXTENTS + 1, FileId(8), array("Q", range(70_001)))
    assert len(extent_map) == EXTENTS
    with pytest.raises(UsageError, match="the data set has"):
        extent_map.place(1, 1, array("I", [70_000]), None)
    extent_map.place(1, 1, array("I", [2]), None)
    assert list(extent_map.numbers_of([0, 1], 1)) == [2, 3]
