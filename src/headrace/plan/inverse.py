"""Find where a file is read next in one epoch: the inverse of its order, in at most 4 bytes a sample.

Two tables have the same methods. `DirectTable` has an entry for each file number of a range, for orders that read
about all files of the range. `HashedTable` has chains of positions, for orders of a few of many files, as those of one
rank are. A second table of positions is made for an order that reads a file twice. Memory is mapped, not allocated: a
table of 40 MB then costs its page faults step by step, and leaves the process when it is dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from headrace.plan.mapped import mapped_numbers

STEP_SAMPLES = 4096
"""The samples of one step: below a millisecond, so that an event loop may do some between other work."""

_HASH_FACTOR = 2654435761  # of Fibonacci hashing: it spreads numbers that follow each other
_SAMPLES_A_CHAIN = 8  # to 16 of them: less than 0.5 bytes a sample for the heads


def _filled(table: memoryview[int]) -> Iterator[None]:
    """Touch the pages of a table step by step: random writes to new pages would make slow steps."""
    zeros = memoryview(bytes(16 * STEP_SAMPLES)).cast("I")
    for start in range(0, len(table), len(zeros)):
        count = min(len(zeros), len(table) - start)
        table[start : start + count] = zeros[:count]
        yield


class _LaterUses:
    """Hold, for each position, where the same file is read again. Without repeats it has no table."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._table: memoryview[int] | None = None

    def add(self, position: int, later_entry: int) -> None:
        if self._table is None:
            self._table = mapped_numbers(self._count)
        self._table[position] = later_entry

    def current(self, entry: int, position: int) -> int:
        """Return the entry of the first use that is not before the position, or else that of the last use."""
        table = self._table
        while table is not None and entry <= position and table[entry - 1]:
            entry = table[entry - 1]
        return entry


class DirectTable:
    """Map each file number from first_file on to a position. Entries are positions plus 1; 0: the file is not read."""

    def __init__(self, order: array[int], first_file: int, file_count: int) -> None:
        self._order, self._first_file = order, first_file
        self._entries = mapped_numbers(file_count)
        self._later = _LaterUses(len(order))

    def steps(self) -> Iterator[None]:
        """Fill the table, one step for each value."""
        yield from _filled(self._entries)
        entries, first_file = self._entries, self._first_file
        for end in range(len(self._order), 0, -STEP_SAMPLES):
            start = max(0, end - STEP_SAMPLES)
            # backwards, so that the table ends with the first use of each file
            for entry, file in zip(range(end, start, -1), reversed(self._order[start:end]), strict=True):
                if entries[file - first_file]:
                    self._later.add(entry - 1, entries[file - first_file])
                entries[file - first_file] = entry
            yield

    def find(self, file: int, position: int) -> int:
        """Return the first position from `position` on at which the file is read; -1: none."""
        index = file - self._first_file
        if not 0 <= index < len(self._entries):
            return -1
        entry = self._entries[index]
        if entry <= position:
            entry = self._entries[index] = self._later.current(entry, position)
        return entry - 1 if entry > position else -1

    def has(self, file: int) -> bool:
        """Return whether the order reads the file at all."""
        index = file - self._first_file
        return 0 <= index < len(self._entries) and self._entries[index] > 0


class HashedTable:
    """Chain the positions of files with the same hash. A chain has each file once, at its next use."""

    def __init__(self, order: array[int]) -> None:
        self._order = order
        bits = max(0, (len(order) // _SAMPLES_A_CHAIN).bit_length() - 1)
        self._shift = 32 - bits
        self._heads = mapped_numbers(1 << bits)
        self._following = mapped_numbers(len(order))
        self._later = _LaterUses(len(order))

    def steps(self) -> Iterator[None]:
        """Fill the table, one step for each value."""
        yield from _filled(self._heads)
        yield from _filled(self._following)
        for end in range(len(self._order), 0, -STEP_SAMPLES):
            start = max(0, end - STEP_SAMPLES)
            for entry, file in zip(range(end, start, -1), reversed(self._order[start:end]), strict=True):
                self._put(entry, file)
            yield

    def find(self, file: int, position: int) -> int:
        """Return the first position from `position` on at which the file is read; -1: none."""
        before, entry = self._locate(file)
        if entry and entry <= position:
            current = self._later.current(entry, position)
            if current != entry:
                self._following[current - 1] = self._following[entry - 1]
                self._link(file, before, current)
                entry = current
        return entry - 1 if entry > position else -1

    def has(self, file: int) -> bool:
        """Return whether the order reads the file at all."""
        return self._locate(file)[1] > 0

    def _put(self, entry: int, file: int) -> None:
        """Add a use that comes before all others in the table."""
        before, later_entry = self._locate(file)
        if later_entry:
            self._later.add(entry - 1, later_entry)
            self._link(file, before, self._following[later_entry - 1])
        chain = self._chain(file)
        self._following[entry - 1] = self._heads[chain]
        self._heads[chain] = entry

    def _locate(self, file: int) -> tuple[int, int]:
        """Return the entry of the file, with the one before it in its chain; 0: none."""
        order, following = self._order, self._following
        before, entry = 0, self._heads[self._chain(file)]
        while entry and order[entry - 1] != file:
            before, entry = entry, following[entry - 1]
        return before, entry

    def _link(self, file: int, before: int, entry: int) -> None:
        if before:
            self._following[before - 1] = entry
        else:
            self._heads[self._chain(file)] = entry

    def _chain(self, file: int) -> int:
        return (file * _HASH_FACTOR & 0xFFFFFFFF) >> self._shift
