"""Serve objects in this process's memory as an origin, with true semantics: versions, pages, directories by prefix."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from headrace.base.deadline import Deadline
from headrace.base.errors import DirectoryNotEmptyError, PathNotFoundError, VersionChangedError
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.origin import (
    Condition,
    ListPage,
    PutSource,
    check_condition,
    check_new_key,
    check_range,
    is_path,
)

_PART_BYTES = 8 << 20

_SHARED: dict[str, MemoryOrigin] = {}
"""Origins by name: `memory://name` is the same origin in the whole process; otherwise puts would be lost."""


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    version: Version
    attributes: Attributes | None = None


class MemoryOrigin:
    """Serves objects in memory. `hold` and `delete` take effect at once, from any thread, so that tests can change it
    beside its calls. Each put makes a new version, even with equal bytes."""

    writable = True

    def __init__(self, name: str = "", *, page_size: int = 1000) -> None:
        self.url = f"memory://{name}"
        self._page_size = page_size
        self._objects: dict[str, _Stored] = {}
        self._puts = itertools.count(1)
        self._prefix = ""

    @classmethod
    def shared(cls, name: str) -> MemoryOrigin:
        """Return the origin of that name in this process. `name/prefix` is the part of `name` below a prefix."""
        name, _, prefix = name.partition("/")
        origin = _SHARED.setdefault(name, cls(name))
        return origin.below(prefix) if prefix else origin

    def below(self, prefix: str) -> MemoryOrigin:
        """Return an origin of the same objects, with this prefix as its root."""
        part = MemoryOrigin(page_size=self._page_size)
        part.url = f"{self.url}/{prefix}"
        part._objects, part._puts = self._objects, self._puts
        part._prefix = f"{self._prefix}{prefix}/"
        return part

    def hold(
        self, key: str, data: bytes, attributes: Attributes | None = None, *, token: str = ""
    ) -> Version:
        """Store an object at once, with a certain token if one is given."""
        token = token or f'"{next(self._puts)}-{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        version = Version(len(data), time.time_ns(), token)
        self._objects[self._prefix + key] = _Stored(data, version, attributes)
        return version

    def delete(self, key: str) -> None:
        self._objects.pop(self._prefix + key, None)

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        deadline.check(f"{self.url}/{key}")
        stored = self._objects.get(self._prefix + key)
        if stored is None or not key or not is_path(key):
            raise PathNotFoundError(f"{self.url}/{key}", why="no such object")
        return ObjectInfo(key, stored.version, stored.attributes)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        deadline.check(f"{self.url}/{key}")
        stored = self._objects.get(self._prefix + key)
        if stored is None or stored.version != version:
            raise VersionChangedError(f"{self.url}/{key}", why="the origin has another version")
        check_range(f"{self.url}/{key}", start, end, version)
        extras = stored.attributes.extras if stored.attributes is not None else None
        return Arrived(memoryview(stored.data)[start:end], extras)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        deadline.check(f"{self.url}/{key}")
        prefix = self._prefix + (f"{key}/" if key else "")
        objects: list[ObjectInfo] = []
        directories: dict[str, None] = {}
        for path, stored in sorted(self._objects.items()):
            if not path.startswith(prefix) or path == prefix:
                continue
            name, slash, _ = path[len(prefix) :].partition("/")
            if not slash:
                objects.append(ObjectInfo(path[len(self._prefix) :], stored.version))
            elif name:
                directories[name] = None
        size = self._page_size
        for start in range(0, max(len(objects), len(directories)), size):
            deadline.check(f"{self.url}/{key}")
            await asyncio.sleep(0)  # other tasks run between two pages, as with any origin
            yield ListPage(tuple(objects[start : start + size]), tuple(directories)[start : start + size])

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        target = f"{self.url}/{key}"
        deadline.check(target)
        check_new_key(target, key)
        parts = []
        for start in range(0, source.size_bytes, _PART_BYTES):
            end = min(start + _PART_BYTES, source.size_bytes)
            parts.append(await asyncio.to_thread(source.pread, start, end))
            deadline.check(target)
        data = b"".join(parts)
        check_condition(target, condition, self._version(key))  # no await from here on
        return ObjectInfo(key, self.hold(key, data, attributes), attributes)

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        current = (await self.head(key, deadline=deadline)).version
        check_condition(f"{self.url}/{key}", condition, current)
        self.delete(key)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        deadline.check(f"{self.url}/{key}")
        check_new_key(f"{self.url}/{key}", key)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        deadline.check(f"{self.url}/{key}")
        prefix = f"{self._prefix}{key}/"
        if any(path.startswith(prefix) and path != prefix for path in list(self._objects)):
            raise DirectoryNotEmptyError(f"{self.url}/{key}", why="the directory is not empty")
        self._objects.pop(prefix, None)

    def _version(self, key: str) -> Version | None:
        stored = self._objects.get(self._prefix + key)
        return stored.version if stored is not None else None

    async def close(self) -> None:
        return None
