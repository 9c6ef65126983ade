"""Number file ids densely, in arrays: 13 bytes a file, where a dict of Python needs a hundred.

Hashing is linear (Litwin 1980): the table grows by one bucket at a time, so no call takes long.
"""

from __future__ import annotations

from array import array

from headrace.base.model import FileId

_BUCKET_FILES = 4
_END = 0xFFFF_FFFF


class IdTable:
    """File ids and their numbers, below 2^32. Numbers of removed ids are used again."""

    def __init__(self) -> None:
        self._ids = array("Q")
        self._chain = array("I")  # the next number in the bucket, or in the list of free numbers
        self._buckets = array("I", [_END])
        self._mask = 0
        self._split = 0  # buckets before this one are split already
        self._free = _END
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def id_of(self, number: int) -> FileId:
        return FileId(self._ids[number])

    def find(self, id: FileId) -> int | None:
        """Return the number of an id, or None."""
        number = self._buckets[self._bucket(id)]
        while number != _END:
            if self._ids[number] == id:
                return number
            number = self._chain[number]
        return None

    def add(self, id: FileId) -> int:
        """Add an id that is not in the table, and return its number."""
        number = self.add_unnamed()
        bucket = self._bucket(id)
        self._ids[number] = id
        self._chain[number] = self._buckets[bucket]
        self._buckets[bucket] = number
        self._count += 1
        if self._count > _BUCKET_FILES * len(self._buckets):
            self._split_next()
        return number

    def add_unnamed(self) -> int:
        """Return a number that belongs to no id."""
        number = self._free
        if number == _END:
            self._ids.append(0)
            self._chain.append(_END)
            return len(self._ids) - 1
        self._free = self._chain[number]
        return number

    def remove(self, id: FileId) -> int | None:
        """Remove an id. Return the number that it had, or None."""
        bucket = self._bucket(id)
        number, last = self._buckets[bucket], _END
        while number != _END:
            if self._ids[number] == id:
                if last == _END:
                    self._buckets[bucket] = self._chain[number]
                else:
                    self._chain[last] = self._chain[number]
                self._count -= 1
                self.remove_unnamed(number)
                return number
            number, last = self._chain[number], number
        return None

    def remove_unnamed(self, number: int) -> None:
        self._chain[number] = self._free
        self._free = number

    def _bucket(self, id: int) -> int:
        hashed = id ^ id >> 13 ^ id >> 32
        bucket = hashed & self._mask
        return bucket if bucket >= self._split else hashed & (self._mask << 1 | 1)

    def _split_next(self) -> None:
        """Divide the next bucket in two."""
        bucket = self._split
        number = self._buckets[bucket]
        self._buckets[bucket] = _END
        self._buckets.append(_END)
        self._split += 1
        while number != _END:
            following = self._chain[number]
            target = self._bucket(self._ids[number])
            self._chain[number] = self._buckets[target]
            self._buckets[target] = number
            number = following
        if self._split > self._mask:
            self._mask, self._split = self._mask << 1 | 1, 0
