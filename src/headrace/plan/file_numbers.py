"""Number the files of plans: orders hold 4 bytes a sample, where a file id has 8."""

from __future__ import annotations

from array import array

from headrace.base.model import FileId

NO_FILE = 0
"""The number of a sample whose file is not known."""
FILES_MAX = 100_000_000
_SPREAD = (
    0x9E3779B97F4A7C15  # 2^64 over the golden ratio: consecutive ids fall far apart (Knuth, volume 3, 6.4)
)
_MASK = (1 << 64) - 1
_PARTS_BITS = 12


class FileNumbers:
    """Numbers for file ids, from 1 on, the same for all plans. 14 to 20 bytes a file.

    The table has 4,096 parts, and each grows for itself, so that no insert takes long: 2 ms with 10,000,000 files.
    Other threads may look up while one thread inserts.
    """

    def __init__(self, files_max: int = FILES_MAX) -> None:
        self._files_max = files_max
        self._ids = array("Q", [0])
        self._parts = [_NO_SLOTS] * (1 << _PARTS_BITS)
        self._counts = array("I", bytes(4 << _PARTS_BITS))

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
