"""Number the files of plans, and the extents of large ones: orders hold 4 bytes a sample, where a file id has 8."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b

from headrace.base.model import FileId

NO_FILE = 0
"""The number of a sample whose file is not known."""
FILES_MAX = 100_000_000
EXTENTS_MAX = 16_000_000
"""Most extents of all files, with DIVISION_EXTENTS for each division. The hook makes them 1 MiB long at least."""
DIVISION_EXTENTS = 32
"""Extents that take as much memory as a division of a file, with one extent: up to 560 bytes."""
_SPREAD = (
    0x9E3779B97F4A7C15  # 2^64 over the golden ratio: consecutive ids fall far apart (Knuth, volume 3, 6.4)
)
_MASK = (1 << 64) - 1
_PARTS_BITS = 12


@dataclass(frozen=True, slots=True)
class _Division:
    """A file as extents with consecutive numbers. bounds: where they begin, ascending, and where the last one ends."""

    id: FileId
    first: int
    bounds: array[int]

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.bounds) - 1)


class FileNumbers:
    """Numbers for file ids, from 1 on, the same for all plans. 14 to 20 bytes a file.

    A file of which samples are parts is divided into extents. Each of them has a number of its own, and the file as a
    whole may have none. 16 bytes an extent, and up to 560 a division.

    The table has 4,096 parts, and each grows for itself, so that no insert takes long: 2 ms with 10,000,000 files.
    Other threads may look up while one thread inserts.
    """

    def __init__(self, files_max: int = FILES_MAX) -> None:
        self._files_max = files_max
        self._ids = array("Q", [0])
        self._parts = [_NO_SLOTS] * (1 << _PARTS_BITS)
        self._counts = array("I", bytes(4 << _PARTS_BITS))
        self._divisions: list[_Division] = []
        self._firsts: list[int] = []  # of the divisions, ascending
        self._of_file: dict[FileId, dict[bytes, _Division]] = {}  # by a hash of the bounds
        self._extents = 0

    def __len__(self) -> int:
        return len(self._ids) - 1

    def id_of(self, number: int) -> FileId:
        return FileId(self._ids[number])

    def number_of(self, id: FileId) -> int:
        """Return the number of a file, or NO_FILE."""
        hashed = id * _SPREAD & _MASK
        slots = self._parts[hashed >> (64 - _PARTS_BITS)]
        return slots[self._slot_of(slots, hashed, id)]

    def add(self, id: FileId) -> int:
        """Return the number of a file, a new one if it has none. NO_FILE if there are too many."""
        number = self.number_of(id)
        if number or len(self) >= self._files_max:
            return number
        hashed = id * _SPREAD & _MASK
        part = hashed >> (64 - _PARTS_BITS)
        if 3 * self._counts[part] >= 2 * len(self._parts[part]) - 2:
            self._grow(part)
        number = len(self._ids)
        self._ids.append(id)
        slots = self._parts[part]
        slots[self._slot_of(slots, hashed, id)] = number
        self._counts[part] += 1
        return number

    def divide(self, id: FileId, bounds: array[int]) -> range:
        """Return the numbers of a file's extents: those it has, if it was divided so before. An empty range
        if there are too many. bounds: two or more ascending offsets of 8 bytes (`array("Q")`), kept without a copy."""
        digest = blake2b(bounds, digest_size=16).digest()
        known = self._of_file.get(id, {}).get(digest)
        if known is not None:
            return known.numbers
        count = len(bounds) - 1
        cost = count + DIVISION_EXTENTS
        if self._extents + cost > EXTENTS_MAX or len(self) + count > self._files_max:
            return range(0)
        division = _Division(id, len(self._ids), bounds)
        self._extents += cost
        self._ids.extend(array("Q", [id]) * count)
        self._divisions.append(division)
        self._firsts.append(division.first)
        self._of_file.setdefault(id, {})[digest] = division
        return division.numbers

    def extent_of(self, number: int) -> tuple[int, int] | None:
        """Return where an extent begins and ends in its file; None for the number of a whole file."""
        division = self._divisions[bisect_right(self._firsts, number) - 1] if self._firsts else None
        if division is None or number not in division.numbers:
            return None
        index = number - division.first
        return division.bounds[index], division.bounds[index + 1]

    def is_divided(self, id: FileId) -> bool:
        """Return whether a file has extents with numbers."""
        return id in self._of_file

    def _grow(self, part: int) -> None:
        smaller = self._parts[part]
        slots = array("I", bytes(8 * max(2, len(smaller))))
        for number in smaller:
            if number:
                id = FileId(self._ids[number])
                slots[self._slot_of(slots, id * _SPREAD & _MASK, id)] = number
        self._parts[part] = slots

    def _slot_of(self, slots: array[int], hashed: int, id: FileId) -> int:
        """Return the slot of a file, or the free one where it belongs."""
        mask = len(slots) - 1
        slot = hashed >> 20 & mask
        while (number := slots[slot]) and self._ids[number] != id:
            slot = slot + 1 & mask
        return slot


_NO_SLOTS = array("I", [NO_FILE])
