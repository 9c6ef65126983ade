"""A folder that training data lies in: in the namespace of this host's node (`headrace:///PATH`, no mount needed), or
any folder of this host's file systems, mounts among them. Data sets (`integrations/torch_data.py`) read both the same
way.

Places may be pickled, and used by a child after a fork. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from headrace.base.errors import NotADirectoryPathError, UsageError
from headrace.sdk.cache import Cache, connect
from headrace.sdk.mapped_files import URL, mapped, told
from headrace.sdk.streams import Content

THREADS = 16


class Folder(Protocol):
    """Names are text, relative to it, with slashes."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def names(self) -> list[str]:
        """Of all files in it and below, sorted. PathNotFoundError, NotADirectoryPathError."""

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        """In that order. PathNotFoundError, OriginError and its kinds."""

    def map(self, name: str) -> memoryview:
        """All of a file; blocks until it is here. Writing to it changes this process's memory only."""

    def open(self, name: str) -> Content:
        """For ranges: only what is asked for is fetched. The caller closes it."""


def open_folder(where: str, *, cache: str | None = None, socket: str | None = None) -> Folder:
    """where: `headrace:///PATH`, of the node that `headrace.connect` finds by `cache` and `socket`; or a folder."""
    if not where.startswith(URL):
        return LocalFolder(os.path.abspath(where))
    host, slash, path = where[len(URL) :].partition("/")
    if host or not slash:
        raise UsageError(where, why="not a path of a node", hint=f"write {URL}/FOLDER, with three slashes")
    return NodeFolder("/" + path.strip("/"), cache=cache, socket=socket)


def files_at(where: str, *, cache: str | None = None, socket: str | None = None) -> tuple[Folder, list[str]]:
    """As place_at; `where` may also be one file. The folder, and the names of the files that are meant."""
    place = open_folder(where, cache=cache, socket=socket)
    try:
        return place, place.names()
    except NotADirectoryPathError:
        folder, _, name = (
            where.rpartition("/") if where.startswith(URL) else os.path.abspath(where).rpartition("/")
        )
        return open_folder(f"{folder}/", cache=cache, socket=socket), [name]


class NodeFolder:
    def __init__(self, path: str, *, cache: str | None, socket: str | None) -> None:
        self._path = path
        self._chosen = (cache, socket)
        self._cache: Cache | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    @property
    def name(self) -> str:
        return URL + self._path

    @property
    def _connected(self) -> Cache:
        if self._cache is None:
            cache, socket = self._chosen
            self._cache = connect(cache=cache, socket=socket)
        return self._cache

    def names(self) -> list[str]:
        found = []
        for folder, _, files in self._connected.walk(self._path):
            below = folder[len(self._path.rstrip("/")) :].strip("/")
            found += [f"{below}/{name}" if below else name for name in files]
        return sorted(found)

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        return [part.data for part in self._connected.read_many(map(self._at, names))]

    def map(self, name: str) -> memoryview:
        return self._connected.map(self._at(name))

    def open(self, name: str) -> Content:
        return self._connected.content(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"


class LocalFolder:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_folder"])  # type: ignore[misc]

    @property
    def name(self) -> str:
        return self._folder

    def names(self) -> list[str]:
        if not os.path.isdir(self._folder):
            with told(self._folder):
                os.stat(self._folder)
            raise NotADirectoryPathError(self._folder, why="it is no directory")
        with told(self._folder):
            return sorted(self._names_below())

    def _names_below(self) -> Iterator[str]:
        pending = [(self._folder, "")]
        while pending:
            folder, below = pending.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        pending.append((entry.path, f"{below}{entry.name}/"))
                    else:
                        yield below + entry.name

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        if len(names) == 1:
            return [self._read(names[0])]
        return list(self._threads().map(self._read, names))

    def _read(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        with told(path), open(path, "rb", buffering=0) as file:
            return file.read()

    def _threads(self) -> ThreadPoolExecutor:
        """A fork's child has none of its parent's. Without a lock, which a fork could leave locked: two pools are no
        harm."""
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            pool = self._pool = os.getpid(), ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-place")
        return pool[1]

    def map(self, name: str) -> memoryview:
        content = self.open(name)
        try:
            return mapped(content.fd, content.size_bytes)
        finally:
            content.close()

    def open(self, name: str) -> Content:
        path = os.path.join(self._folder, name)
        with told(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return Content(os.fstat(fd).st_size, fd=fd, grows=True)
