"""Know in which extents of files samples lie, and make orders of extents from orders of samples. No I/O.

An order of extents is not kept: it is derived from that of the samples, where it is asked for. So each epoch takes the
4 bytes a sample of its indices, and nothing if they ascend evenly.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, islice, repeat
from typing import overload

from headrace.base.errors import UsageError
from headrace.base.model import FileId
from headrace.plan.file_numbers import NO_FILE, FileNumbers

_SHORT_MAX = 1 << 16
_ROWS_A_START = 64


class ExtentMap:
    """The extents of a data set's files, and those in which each sample lies. Both are numbered in the data set:
    extents from 1 on, samples from 0 on. `numbers` has the numbers of extents in plans.

    Samples that follow each other and lie in the same extents have one row together. A row takes a byte, 2 bytes for
    each of its extents, or 4 if the data set has more than 65,535 of them, and 4 if rows have several samples.
    """

    def __init__(self, numbers: FileNumbers) -> None:
        self._numbers = numbers
        self._extents = array("I", [NO_FILE])  # their numbers in plans, by those in the data set
        self.bytes = 0
        """The bytes of all extents."""
        self.samples = 0
        """Samples whose extents are known: all from the first one on."""
        self.width = 1
        """The most extents of one sample."""
        self._row_extents = array("H")
        self._row_sizes = bytearray()
        self._row_starts = array("I")  # in _row_extents, of every 64th row
        self._row_ends: array[int] | None = (
            None  # the sample after each row; None where each sample has its own row
        )

    def __len__(self) -> int:
        return len(self._extents) - 1

    def has(self, first: int, count: int) -> bool:
        """Return whether these extents are known already. Raise UsageError if others come next."""
        if first > len(self._extents):
            raise UsageError(f"extents from {first} on", why=f"those from {len(self._extents)} on come next")
        is_known = first + count <= len(self._extents)
        if not is_known:
            self._check_no_samples(first)
        return is_known

    def divide(self, first: int, id: FileId | None, offsets: array[int]) -> None:
        """Append the extents of a file, the first of which has a number in this data set. Those that are known stay.
        No plan is made for samples of a file without an id. Raise UsageError for new ones after the samples: these may
        have come while the caller looked up the file."""
        known, count = len(self._extents) - first, len(offsets) - 1
        if known >= count:
            return
        self._check_no_samples(first)
        numbers = range(0) if id is None else self._numbers.divide(id, offsets)
        self._extents.extend(array("I", numbers or [NO_FILE] * count)[known:])
        self.bytes += offsets[-1] - offsets[known]

    def _check_no_samples(self, first: int) -> None:
        if self.samples:
            raise UsageError(f"extents from {first} on", why="all extents come before the samples")

    def place(self, first: int, width: int, extents: array[int], counts: array[int] | None) -> None:
        """Append rows of `width` extents each, 0 for no further one. counts: the samples of each row; None: 1. Samples
        that are known stay. Raise UsageError for an unknown extent, or for rows that don't follow those before."""
        if max(extents, default=0) >= len(self._extents):
            raise UsageError(f"extents of samples from {first} on", why=f"the data set has {len(self)}")
        if first > self.samples:
            raise UsageError(
                f"extents of samples from {first} on", why=f"those from {self.samples} on come next"
            )
        if not self.samples:
            self._begin(has_counts=counts is not None)
        if (counts is not None) != (self._row_ends is not None):
            raise UsageError(
                f"extents of samples from {first} on", why="either all rows have counts, or none"
            )
        rows = len(extents) // width
        ends = array("I", accumulate(counts or repeat(1, rows), initial=first))[1:]
        known = bisect_right(ends, self.samples)
        if known == rows:
            return
        self._append(width, extents[known * width :])
        if self._row_ends is not None:
            self._row_ends.extend(ends[known:])
        self.samples = ends[-1]

    def numbers_of(self, samples: Sequence[int], width: int) -> array[int]:
        """Return the numbers in plans of the extents of samples, `width` for each."""
        numbers = array("I")
        for sample in samples:
            row = self._row_of(sample)[:width]
            numbers.extend(map(self._extents.__getitem__, row))
            numbers.extend(repeat(NO_FILE, width - len(row)))
        return numbers

    def _begin(self, *, has_counts: bool) -> None:
        """Choose how rows are kept."""
        self._row_extents = array("H" if len(self._extents) <= _SHORT_MAX else "I")
        self._row_ends = array("I") if has_counts else None

    def _append(self, width: int, extents: array[int]) -> None:
        """Append rows of extents."""
        self.width = max(self.width, width)
        sizes = bytes(
            map(sum, zip(*(map(bool, extents[place::width]) for place in range(width)), strict=True))
        )
        starts = accumulate(sizes, initial=len(self._row_extents))
        skipped = -len(self._row_sizes) % _ROWS_A_START
        self._row_starts.extend(islice(starts, skipped, len(sizes), _ROWS_A_START))
        self._row_sizes += sizes
        self._row_extents.extend(array(self._row_extents.typecode, filter(None, extents)))

    def _row_of(self, sample: int) -> array[int]:
        if sample >= self.samples:
            return self._row_extents[:0]
        row = sample if self._row_ends is None else bisect_right(self._row_ends, sample)
        part = row // _ROWS_A_START
        start = self._row_starts[part] + sum(self._row_sizes[part * _ROWS_A_START : row])
        return self._row_extents[start : start + self._row_sizes[row]]


class ExtentOrder(Sequence[int]):
    """The order of extents in which a reader reads samples, `width` numbers for each sample, NO_FILE where it has
    fewer."""

    def __init__(self, samples: array[int] | range, extents: ExtentMap, width: int) -> None:
        self._samples, self._extents, self._width = samples, extents, width

    def __len__(self) -> int:
        return len(self._samples) * self._width

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ExtentOrder)
            and self._extents is other._extents
            and self._width == other._width
            and self._samples == other._samples
        )

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> array[int]: ...
    def __getitem__(self, index: int | slice) -> int | array[int]:
        if isinstance(index, int):
            start, _, _ = slice(index, None).indices(len(self))
            return self[start : start + 1][0]
        start, end, step = index.indices(len(self))
        if step != 1:
            raise ValueError("a part of an order of extents has no steps")
        first = start // self._width
        samples = self._samples[first : -(-end // self._width)]
        skipped = first * self._width
        return self._extents.numbers_of(samples, self._width)[start - skipped : max(start, end) - skipped]


def spaced_range(samples: array[int]) -> range | None:
    """Return the range that an order is if all its samples are spaced as the first two. None if the last one shows that
    they are not; the caller compares the others."""
    count = len(samples)
    step = samples[1] - samples[0] if count > 1 else 0
    if step == 0 or samples[0] + step * (count - 1) != samples[-1]:
        return None
    return range(samples[0], samples[-1] + (1 if step > 0 else -1), step)
