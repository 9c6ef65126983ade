"""Decode the tables of numbers in messages of plans: little-endian, of 4 or 8 bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from operator import lt

PLAN_BOUNDS_MAX = 1 << 16
PLAN_OFFSET_MAX = 1 << 63
"""Most bounds of extents in one message; above the offsets in a file."""


def numbers_of_bytes(typecode: str, body: bytes) -> array[int]:
    """Return little-endian numbers: "I" of 4 bytes, "Q" of 8."""
    numbers = array(typecode, body)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def bounds_by_file(counts: bytes, bounds: bytes) -> Iterator[array[int]]:
    """Yield the bounds of each file's extents. counts: the extents of each, numbers of 4 bytes."""
    offsets, start = numbers_of_bytes("Q", bounds), 0
    for count in numbers_of_bytes("I", counts):
        yield offsets[start : start + count + 1]
        start += count + 1


def count_samples(rows: int, counts: bytes) -> int:
    """Return how many samples some rows of extents are of. Raise ValueError for counts that do not fit, and for 0."""
    if not counts:
        return rows
    samples = numbers_of_bytes("I", counts) if len(counts) % 4 == 0 else array("I")
    if len(samples) != rows or min(samples) < 1:
        raise ValueError("each row of extents needs the count of its samples")
    return sum(samples)


def count_extents(files: int, counts: bytes, bounds: bytes) -> int:
    """Return how many extents some files have. Raise ValueError for tables that do not fit, and for bounds that do not
    ascend."""
    if len(counts) != 4 * files or len(bounds) % 8:
        raise ValueError("each file needs the count of its extents")
    if len(bounds) > 8 * PLAN_BOUNDS_MAX:
        raise ValueError(f"a message has more than {PLAN_BOUNDS_MAX} bounds of extents")
    extents = numbers_of_bytes("I", counts)
    if min(extents) < 1 or sum(extents) + files != len(bounds) // 8:
        raise ValueError("the bounds are not those of as many extents")
    for offsets in bounds_by_file(counts, bounds):
        if not all(map(lt, offsets, offsets[1:])) or offsets[-1] >= PLAN_OFFSET_MAX:
            raise ValueError("the bounds of extents must ascend")
    return sum(extents)
