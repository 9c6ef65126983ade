"""Build the contents of directories: blocks of sorted dirents with "." and ".." among them."""

from __future__ import annotations

import functools
import itertools
import stat
from array import array
from struct import Struct

from headrace.base.errors import InvalidImageError
from headrace.seal.erofs import BLOCK_BYTES, DIRENT, FILE_TYPES, NAME_BYTES_MAX, ImageEntry

_DIRECTORY = FILE_TYPES[stat.S_IFDIR]
_DOTS = (b".", b"..")


class DirectoryBuilder:
    """Collects the entries of one directory, in the order of their names as bytes.

    It holds full blocks as bytes, so an entry takes 12 bytes and its name.
    """

    def __init__(self, entry: ImageEntry) -> None:
        self.entry = entry
        self.dots: dict[bytes, int] = {}
        """The offsets of the dirents of "." and ".." in the content. They have the nid 0 until theirs are known."""
        self.parent_offsets = array("Q")
        """The offsets in the image of the dirents ".." of subdirectories."""
        self._blocks: list[bytes] = []
        self._names: list[bytes] = []
        self._nids: list[int] = []
        self._types: list[int] = []
        self._used_bytes = 0
        self._last_name = b""
        self._next_dot = b"."

    def add(self, name: bytes, nid: int, file_type: int) -> None:
        """Add an entry. Raises InvalidImageError if its name is none, or does not come after the last one."""
        self.check(name)
        if self._next_dot and name >= self._next_dot:
            self._add_dots(name)
        self._append(name, nid, file_type)
        self._last_name = name

    def check(self, name: bytes) -> None:
        """Refuse a name that can't come next."""
        if name <= self._last_name or name in _DOTS or len(name) > NAME_BYTES_MAX:
            raise InvalidImageError(
                f"name {name!r} in an image", why="it is no name, or not in the order of names"
            )

    def add_directory(self, name: bytes, nid: int, parent_offset: int) -> None:
        """Add a subdirectory. parent_offset: of its dirent "..", in the image."""
        self.add(name, nid, _DIRECTORY)
        self.parent_offsets.append(parent_offset)

    def finish(self) -> bytearray:
        """Return the content. It ends with the last name, so its size is the directory's."""
        self._add_dots(b"")
        return bytearray().join([*self._blocks, self._pack()])

    def _add_dots(self, name: bytes) -> None:
        """Add the dots that come before a name, or those that are missing if it is empty."""
        for dot in _DOTS[len(self.dots) :]:
            if name and name < dot:
                self._next_dot = dot
                return
            self._append(dot, 0, _DIRECTORY)
            offset = len(self._blocks) * BLOCK_BYTES + (len(self._names) - 1) * DIRENT.size
            self.dots[dot] = offset
        self._next_dot = b""

    def _append(self, name: bytes, nid: int, file_type: int) -> None:
        used_bytes = self._used_bytes + DIRENT.size + len(name)
        if used_bytes > BLOCK_BYTES:
            self._blocks.append(self._pack().ljust(BLOCK_BYTES, b"\0"))
            self._names, self._nids, self._types = [], [], []
            used_bytes = DIRENT.size + len(name)
        self._used_bytes = used_bytes
        self._names.append(name)
        self._nids.append(nid)
        self._types.append(file_type)

    def _pack(self) -> bytes:
        count = len(self._names)
        offsets = itertools.accumulate(map(len, self._names), initial=count * DIRENT.size)
        rows = zip(self._nids, offsets, self._types, strict=False)  # the last offset is the end of the names
        return _dirents(count).pack(*itertools.chain.from_iterable(rows)) + b"".join(self._names)


@functools.cache
def _dirents(count: int) -> Struct:
    return Struct("<" + DIRENT.format[1:] * count)
