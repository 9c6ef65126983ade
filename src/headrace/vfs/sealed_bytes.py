"""Compare the bytes of a sealed file with the checksum of its content list, before anybody reads them.

A version of an origin need not name bytes: an object without an ETag may be replaced with equal size and time. Then the
cache file of that version is right for the plain path, and wrong for the seal. The cache recorded the checksums when it
was filled, so nothing is read for the comparison.

A strong ETag names bytes. A file that has one is read while it is fetched, and compared when it is whole. Any other
file is fetched as a whole first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from headrace.base.errors import EvictedError, VersionChangedError
from headrace.base.model import Entry, FileId
from headrace.client.file import OpenFile
from headrace.store.reader import CacheReader
from headrace.vfs.streams import Content

log = logging.getLogger(__name__)

OPENS_MAX = 10
"""Attempts to open a file that is evicted each time between the open and the comparison."""

REMEMBERED_MAX = 1 << 16


class SealedBytes:
    """Opens files whose bytes must have a checksum. reader_of: opens a cache file with its checksums. Thread-safe."""

    def __init__(self, reader_of: Callable[[FileId], CacheReader | None]) -> None:
        self._reader_of = reader_of
        self._right: dict[FileId, tuple[int, int, int, int]] = {}
        """The inodes of cache files that were right, each with its checksum: comparing again would double a hit."""

    def open(
        self, path: bytes, entry: Entry, checksum: int, open_below: Callable[[Entry], Content]
    ) -> Content:
        """Open a file. path: of the seal, for errors. open_below: opens it whatever bytes it has. Raises
        VersionChangedError for other bytes; where the file is still being fetched, a read raises it, too."""
        for _ in range(OPENS_MAX):
            content = open_below(entry)
            try:
                file = content.file
                if file is not None and not file.complete and _names_bytes(entry.version.token):
                    check = _Check(self, path, entry, checksum)
                    check(file)
                    return Content(content.size_bytes, file=file, check=check, cancel=content.cancel)
                is_right = self.compare(entry.id, checksum, content.wait_whole())
                if is_right is False:
                    raise _other_bytes(path)
            except BaseException:
                content.close()
                raise
            if is_right:
                return content
            content.close()
        raise EvictedError(
            f"cache file of {entry.id:x}",
            why="the cache evicts it as soon as it is fetched",
            hint="increase the capacity of the cache",
        )

    def compare(self, id: FileId, checksum: int, fd: int) -> bool | None:
        """Return whether an open cache file, which is whole, has a checksum. None: it was evicted meanwhile."""
        opened = os.fstat(fd)
        identity = opened.st_dev, opened.st_ino, opened.st_ctime_ns, checksum
        if self._right.get(id) == identity:
            return True
        is_right = self._compare_now(id, checksum, fd)
        if is_right:
            if len(self._right) >= REMEMBERED_MAX:
                self._right.clear()
            self._right[id] = identity
        return is_right

    def _compare_now(self, id: FileId, checksum: int, fd: int) -> bool | None:
        reader = self._reader_of(id)
        if reader is None:
            return None
        try:
            status = os.fstat(reader.fd)
            if not os.path.sameopenfile(fd, reader.fd) or not reader.present(0, status.st_size):
                return None
            return reader.file_checksum() == checksum
        finally:
            reader.close()


class _Check:
    """Compares a file with its checksum once, when it is whole."""

    def __init__(self, opener: SealedBytes, path: bytes, entry: Entry, checksum: int) -> None:
        self._opener = opener
        self._path = path
        self._entry = entry
        self._checksum = checksum
        self._is_right: bool | None = None

    def __call__(self, file: OpenFile) -> None:
        size_bytes = self._entry.version.size_bytes
        if self._is_right is None and file.present(0, size_bytes):
            whole = file.wait(0, size_bytes)
            self._is_right = self._opener.compare(self._entry.id, self._checksum, whole)
        if self._is_right is False:
            raise _other_bytes(self._path)


def _names_bytes(token: str) -> bool:
    """Return whether a token is a strong ETag, which no other bytes may have."""
    return token.startswith('"')


def _other_bytes(path: bytes) -> VersionChangedError:
    error = VersionChangedError(
        os.fsdecode(path),
        why="the object was replaced at its origin by one with the same version, and other bytes",
        hint="seal the directory again, as the next version",
    )
    log.error("a file of a seal can't be read error=%s", error)
    return error
