"""Number the files of plans: orders hold 4 bytes a sample, where a file id has 8."""

from __future__ import annotations

from array import array

from headrace.base.model import FileId

NO_FILE = 0
"""The number of a sample whose file is not known."""
_SPREAD = (
    0x9E3779B97F4A7C15  # 2^64 over the golden ratio: consecutive ids fall far apart (Knuth, volume 3, 6.4)
)
_MASK = (1 << 64) - 1


class FileNumbers:
    """Numbers for file ids, from 1 on, the same for all plans. 16 bytes a file."""

    def __init__(self) -> None:
        self._ids = array("Q", [0])
        self._groups: list[FileGroup] = []

    def __len__(self) -> int:
        return len(self._ids) - 1

    def id_of(self, number: int) -> FileId:
        return FileId(self._ids[number])

    def number_of(self, id: FileId) -> int:
        """Return the number of a file, or NO_FILE."""
        for group in self._groups:
            number = group.find(id)
            if number:
                return number
        return NO_FILE

    def group(self, capacity: int) -> FileGroup:
        """Return a group for the files of one data set, at most `capacity` of them."""
        group = FileGroup(self, self._ids, capacity)
        self._groups.append(group)
        return group


class FileGroup:
    """The files of one data set: a table of numbers by id, which never grows, so that no insert takes long."""

    def __init__(self, numbers: FileNumbers, ids: array[int], capacity: int) -> None:
        self._numbers = numbers
        self._ids = ids
        self._left = capacity
        self._bits = max(4, (2 * capacity).bit_length())
        self._slots = array("I", bytes(4 << self._bits))

    def add(self, id: FileId) -> int:
        """Return the number of a file, a new one if it has none. NO_FILE if the group is full."""
        number = self._numbers.number_of(id)
        if number or self._left <= 0:
            return number
        self._left -= 1
        number = len(self._ids)
        self._ids.append(id)
        self._slots[self._slot_of(id)] = number
        return number

    def find(self, id: FileId) -> int:
        return self._slots[self._slot_of(id)]

    def _slot_of(self, id: FileId) -> int:
        """Return the slot of a file, or the free one where it belongs."""
        mask = (1 << self._bits) - 1
        slot = (id * _SPREAD & _MASK) >> (64 - self._bits)
        while (number := self._slots[slot]) and self._ids[number] != id:
            slot = slot + 1 & mask
        return slot
