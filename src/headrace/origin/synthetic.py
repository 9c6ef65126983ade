"""Compute files instead of storing them, for benchmarks and load tests: the bytes follow from key and offset.

`synthetic://FILES/SIZE?directories=N` has FILES files of SIZE each (`1000/4MiB`), in N directories or none.
"""

from __future__ import annotations

import random
import re
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass

import xxhash

from headrace.base.deadline import Deadline
from headrace.base.errors import PathNotFoundError, UsageError, VersionChangedError
from headrace.base.model import Arrived, ObjectInfo, Version
from headrace.origin.origin import Body, ListPage, check_range
from headrace.origin.read_only import ReadOnlyCalls

_PATTERN_BYTES = (1 << 20) + 4099  # not a multiple of a block, so no two blocks of a file are equal
_PAGE = 1000
_MTIME_NS = 1_700_000_000 * 10**9
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_COUNT = re.compile(r"[0-9]{1,18}")
_FORM = "synthetic://FILES/SIZE?directories=N, for example synthetic://1000/4MiB?directories=10"


@dataclass(frozen=True, slots=True)
class DataSetShape:
    files: int
    size_bytes: int
    directories: int


def parse_shape(url: str) -> DataSetShape:
    """Parse a synthetic URL. Raise UsageError if it is invalid."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:  # for example an incomplete IPv6 address
        raise UsageError(url, why="the URL is no synthetic origin", hint=f"write {_FORM}") from None
    size = re.fullmatch(r"/([0-9]{1,18})([kmgt]?)(i?b)?", parts.path.lower())
    query = dict(urllib.parse.parse_qsl(parts.query))
    directories = query.pop("directories", "0")
    if size is None or query or not _COUNT.fullmatch(parts.netloc) or not _COUNT.fullmatch(directories):
        raise UsageError(url, why="the URL is no synthetic origin", hint=f"write {_FORM}")
    return DataSetShape(int(parts.netloc), int(size[1]) * _UNITS[size[2]], int(directories))


class SyntheticOrigin(ReadOnlyCalls):
    """Serves computed files. Reads cost a copy of memory; listings are made page by page."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._shape = parse_shape(url)
        pattern = random.Random(1).randbytes(_PATTERN_BYTES)
        self._pattern = memoryview(pattern)
        self._version = Version(self._shape.size_bytes, _MTIME_NS, f'"synthetic-{self._shape.size_bytes}"')

    def key(self, number: int) -> str:
        """Return the key of a file by its number."""
        name = f"f{number:08d}.bin"
        if not self._shape.directories:
            return name
        return f"d{number % self._shape.directories:06d}/{name}"

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        deadline.check(f"{self.url} {key}")
        if not self._exists(key):
            raise PathNotFoundError(f"{self.url} {key}", why="no such object")
        return ObjectInfo(key, self._version)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        deadline.check(f"{self.url} {key}")
        if version != self._version or not self._exists(key):
            raise VersionChangedError(f"{self.url} {key}", why="the origin has another version")
        check_range(f"{self.url} {key}", start, end, version)
        return Arrived(self.content(key, start, end))

    def content(self, key: str, start: int, end: int) -> Body:
        """Return the bytes of a range, as a read does."""
        offset = (start + xxhash.xxh3_64_intdigest(key.encode())) % _PATTERN_BYTES
        left = end - start
        if offset + left <= _PATTERN_BYTES:
            return self._pattern[offset : offset + left]
        parts = []
        while left > 0:
            part = self._pattern[offset : offset + left]
            parts.append(part)
            left -= len(part)
            offset = 0
        return b"".join(parts)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        shape = self._shape
        if key == "" and shape.directories:
            count = min(shape.directories, shape.files)
            for first in range(0, count, _PAGE):
                deadline.check(f"{self.url} {key}")
                yield ListPage((), tuple(f"d{n:06d}" for n in range(first, min(count, first + _PAGE))))
            return
        numbers = self._numbers_in(key)
        for first in range(0, len(numbers), _PAGE):
            deadline.check(f"{self.url} {key}")
            yield ListPage(
                tuple(ObjectInfo(self.key(n), self._version) for n in numbers[first : first + _PAGE]), ()
            )

    async def close(self) -> None:
        return None

    def _numbers_in(self, directory: str) -> range:
        shape = self._shape
        if not shape.directories:
            return range(shape.files if directory == "" else 0)
        match = re.fullmatch(r"d(\d{6,})", directory)
        if match is None or int(match[1]) >= shape.directories:
            return range(0)
        return range(int(match[1]), shape.files, shape.directories)

    def _exists(self, key: str) -> bool:
        match = re.fullmatch(r"(?:d\d{6,}/)?f(\d{8,})\.bin", key)
        return match is not None and int(match[1]) < self._shape.files and self.key(int(match[1])) == key
