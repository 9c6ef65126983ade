"""Unpack content lists for the programs of a host, which look paths up without reading a whole list.

    the list (`seal/snapshot.py`), and zeros up to a multiple of 8 bytes
    the offset of each entry in the list, 8 bytes each
    the size of the list, 8 bytes

Numbers have the byte order of the machine, because the file never leaves it. The node checks a list while it writes
the file, in a directory that no other user may change. So programs map the file, and check nothing again.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from array import array
from collections.abc import Sequence
from typing import BinaryIO, cast

from headrace.base.errors import InvalidImageError
from headrace.seal.snapshot import MAGIC, read_snapshot

ENTRIES_MAX = 1 << 26
"""A list of so many names has some 6 GB, and takes two minutes to check."""
OFFSETS_AT_ONCE = 1 << 16
_NUMBER_BYTES = 8
_COPY_BYTES = 1 << 20


class _CopyingReader:
    """Reads a list, and copies what is read. size_bytes: so far."""

    def __init__(self, file: BinaryIO, out: BinaryIO) -> None:
        self._file = file
        self._out = out
        self.size_bytes = 0

    def read(self, size_bytes: int) -> bytes:
        body = self._file.read(size_bytes)
        self._out.write(body)
        self.size_bytes += len(body)
        return body


def write_unpacked(file: BinaryIO, id: str, out: BinaryIO) -> None:
    """Unpack a list while it is checked. file: yields the list. Raises InvalidImageError for a list of another id, or
    of too many entries; then `out` must not be used. Memory is bounded, whatever the list is."""
    list_file, offsets, count, start = _CopyingReader(file, out), array("Q"), 0, len(MAGIC)
    with tempfile.TemporaryFile(dir=os.path.dirname(out.name)) as offsets_file:
        for _ in read_snapshot(cast("BinaryIO", list_file), id):
            offsets.append(start)
            start, count = list_file.size_bytes, count + 1
            if count > ENTRIES_MAX:
                raise InvalidImageError(
                    "the content list of a seal", why=f"it has more than {ENTRIES_MAX} names"
                )
            if len(offsets) == OFFSETS_AT_ONCE:
                offsets_file.write(offsets)
                offsets = array("Q")
        offsets_file.write(offsets)
        out.write(bytes(-start % _NUMBER_BYTES))
        offsets_file.seek(0)
        while piece := offsets_file.read(_COPY_BYTES):
            out.write(piece)
    out.write(array("Q", [start]))


def map_unpacked(path: str) -> tuple[mmap.mmap, Sequence[int]]:
    """Return the bytes of a list, which begin at 0, and the offset of each entry. Raises OSError, and
    InvalidImageError for a file that `write_unpacked` did not finish."""
    with open(path, "rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes % _NUMBER_BYTES or size_bytes < len(MAGIC) + 2 * _NUMBER_BYTES:
            raise _damaged(path)
        content = mmap.mmap(file.fileno(), size_bytes, prot=mmap.PROT_READ)
    numbers = memoryview(content).cast("Q")
    offsets = numbers[-(-numbers[-1] // _NUMBER_BYTES) : -1]
    if content[: len(MAGIC)] != MAGIC or not offsets or offsets[0] != len(MAGIC):
        raise _damaged(path)
    return content, offsets


def _damaged(path: str) -> InvalidImageError:
    return InvalidImageError(f"the content list {path}", why="it is not one that the node unpacked")
