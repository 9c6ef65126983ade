"""Look paths up in the content list of a seal, without holding it in memory.

The node has unpacked the list, and the file has the offset of each entry (`seal/unpacked_list.py`). All programs of a
host map the same file. Entries are in the order of a walk, so a path is found by bisection.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Iterator
from typing import cast

from headrace.base.decoding import msgpack_decoder
from headrace.seal.snapshot import SnapshotEntry
from headrace.seal.unpacked_list import map_unpacked

_LENGTH_BYTES = 2

Names = tuple[bytes, ...]


class SealedList:
    """The entries of one list, by position. Thread-safe, also in a child after a fork."""

    def __init__(self, path: str) -> None:
        """Map a list that the node unpacked. Raises InvalidImageError and OSError."""
        self._list, self._offsets = map_unpacked(path)
        self._decoder = msgpack_decoder(SnapshotEntry)
        self._file_numbers: array[int] | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    def entry(self, position: int) -> SnapshotEntry:
        offset = self._offsets[position]
        start = offset + _LENGTH_BYTES
        body = self._list[start : start + int.from_bytes(self._list[offset:start], "little")]
        return cast("SnapshotEntry", self._decoder.decode(body))

    def find(self, path: bytes) -> int | None:
        """Return the position of a path below the top; None if the list has none. b"" is the top."""
        names = names_of_sealed(path)
        position = bisect.bisect_left(range(len(self)), names, key=self._names)
        return position if position < len(self) and self._names(position) == names else None

    def children(self, position: int, after: bytes = b"") -> Iterator[tuple[bytes, int]]:
        """Yield the names in a directory and their positions, in byte order, starting after a name."""
        top = self._names(position)
        depth = len(top)
        child = self._behind((*top, after), position) if after else position + 1
        while child < len(self):
            names = self._names(child)
            if names[:depth] != top:
                return
            yield names[depth], child
            child = self._behind(names, child) if not self.entry(child).is_file else child + 1

    def file_number(self, position: int) -> int:
        """Return the number of files before an entry. The first call reads the whole list."""
        if self._file_numbers is None:
            numbers, count = array("I"), 0
            for index in range(len(self)):
                numbers.append(count)
                count += self.entry(index).is_file
            self._file_numbers = numbers
        return self._file_numbers[position]

    def _behind(self, names: Names, start: int) -> int:
        """Return the position behind a path and everything below it."""
        depth = len(names)
        rows = range(start, len(self))
        return start + bisect.bisect_right(rows, names, key=lambda index: self._names(index)[:depth])

    def _names(self, position: int) -> Names:
        return names_of_sealed(self.entry(position).path)


def names_of_sealed(path: bytes) -> Names:
    return tuple(path.split(b"/")) if path else ()
