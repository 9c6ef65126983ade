"""An origin in this process's memory, with true semantics: versions, pages, folders by prefix."""

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
"""By name: `memory://name` means one and the same origin all over a process, or nothing could be put there."""


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    version: Version
    attributes: Attributes | None = None


class MemoryOrigin:
    """hold and delete take effect at once, from any thread: how tests change it beside its calls. Each put makes a
    new version, even of equal bytes."""

    writable = True

    def __init__(self, name: str = "", *, page_size: int = 1000) -> None:
        self.url = f"memory://{name}"
        self._page_size = page_size
        self._objects: dict[str, _Stored] = {}
        self._puts = itertools.count(1)
        self._prefix = ""

    @classmethod
    def shared(cls, name: str) -> MemoryOrigin:
        """The one of that name in this process. `name/prefix` is the part of `name` below a prefix."""
        name, _, prefix = name.partition("/")
        whole = _SHARED.setdefault(name, cls(name))
        return whole.below(prefix) if prefix else whole

    def below(self, prefix: str) -> MemoryOrigin:
        """The same objects, with this prefix as the root."""
        part = MemoryOrigin(page_size=self._page_size)
        part.url = f"{self.url}/{prefix}"
        part._objects, part._puts = self._objects, self._puts
        part._prefix = f"{self._prefix}{prefix}/"
        return part

    def hold(
        self, key: str, data: bytes, attributes: Attributes | None = None, *, token: str = ""
    ) -> Version:
        """token: where it is to be a certain one."""
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
            raise VersionChangedError(f"{self.url}/{key}", why="it is not the version that was asked for")
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
        for at in range(0, max(len(objects), len(directories)), size):
            deadline.check(f"{self.url}/{key}")
            await asyncio.sleep(0)  # others run between two pages, as with any origin
            yield ListPage(tuple(objects[at : at + size]), tuple(directories)[at : at + size])

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        what = f"{self.url}/{key}"
        deadline.check(what)
        check_new_key(what, key)
        parts = []
        for start in range(0, source.size_bytes, _PART_BYTES):
            end = min(start + _PART_BYTES, source.size_bytes)
            parts.append(await asyncio.to_thread(source.pread, start, end))
            deadline.check(what)
        data = b"".join(parts)
        check_condition(what, condition, self._version(key))  # no await from here on: nobody is between
        return ObjectInfo(key, self.hold(key, data, attributes), attributes)

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        found = (await self.head(key, deadline=deadline)).version
        check_condition(f"{self.url}/{key}", condition, found)
        self.delete(key)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        deadline.check(f"{self.url}/{key}")
        check_new_key(f"{self.url}/{key}", key)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        deadline.check(f"{self.url}/{key}")
        prefix = f"{self._prefix}{key}/"
        if any(path.startswith(prefix) and path != prefix for path in list(self._objects)):
            raise DirectoryNotEmptyError(f"{self.url}/{key}", why="something is in it")
        self._objects.pop(prefix, None)

    def _version(self, key: str) -> Version | None:
        stored = self._objects.get(self._prefix + key)
        return stored.version if stored is not None else None

    async def close(self) -> None:
        return None
