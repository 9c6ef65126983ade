"""Open a directory of training data: in the namespace of this host's node (`headrace:///PATH`, which needs no mount),
or any directory of this host's file systems, including mounts. Data sets (`integrations/torch_data.py`) read both in
the same way.

A `Folder` may be pickled, and used by a child after a fork. Thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from headrace.base.errors import NotADirectoryPathError, UsageError
from headrace.base.os_errors import PLAIN_FILES, translating_os_errors
from headrace.sdk.cache import Cache, connect
from headrace.sdk.mapped_files import URL, mapped
from headrace.vfs.streams import Content

THREADS = 16


class Folder(Protocol):
    """Lists and reads the files of a directory. Names are text, relative to it, with slashes."""

    @property
    def name(self) -> str:
        """Return the name that messages use for it."""

    def names(self) -> list[str]:
        """Return the names of all files in and below it, sorted. Raise PathNotFoundError or NotADirectoryPathError."""

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        """Read files and return their bytes in the order of the names. Raise PathNotFoundError, OriginError and its
        subclasses."""

    def map(self, name: str) -> memoryview:
        """Return a whole file; block until it is on this host. Writing to it changes this process's memory only."""

    def open(self, name: str) -> Content:
        """Open a file for reads of ranges; only those are fetched. The caller closes it."""


def open_folder(where: str, *, cache: str | None = None, socket: str | None = None) -> Folder:
    """Open a directory. where: `headrace:///PATH`, of the node that `headrace.connect` finds by `cache` and `socket`;
    or a path."""
    if not where.startswith(URL):
        return LocalFolder(os.path.abspath(where))
    host, slash, path = where[len(URL) :].partition("/")
    if host or not slash:
        raise UsageError(where, why="not a path of a node", hint=f"write {URL}/FOLDER, with three slashes")
    return NodeFolder("/" + path.strip("/"), cache=cache, socket=socket)


def files_at(where: str, *, cache: str | None = None, socket: str | None = None) -> tuple[Folder, list[str]]:
    """Open a directory as open_folder does; `where` may also be one file. Return the directory and the names of the
    files."""
    folder = open_folder(where, cache=cache, socket=socket)
    try:
        return folder, folder.names()
    except NotADirectoryPathError:
        parent, _, name = (
            where.rpartition("/") if where.startswith(URL) else os.path.abspath(where).rpartition("/")
        )
        return open_folder(f"{parent}/", cache=cache, socket=socket), [name]


class NodeFolder:
    """Reads a directory of the namespace through this host's node."""

    def __init__(self, path: str, *, cache: str | None, socket: str | None) -> None:
        self._path = path
        self._cache_and_socket = (cache, socket)
        self._cache: Cache | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}

    @property
    def name(self) -> str:
        return URL + self._path

    @property
    def _connected(self) -> Cache:
        if self._cache is None:
            cache, socket = self._cache_and_socket
            self._cache = connect(cache=cache, socket=socket)
        return self._cache

    def names(self) -> list[str]:
        names = []
        for folder, _, files in self._connected.walk(self._path):
            prefix = folder[len(self._path.rstrip("/")) :].strip("/")
            names += [f"{prefix}/{name}" if prefix else name for name in files]
        return sorted(names)

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        return [result.data for result in self._connected.read_many(map(self._path_of, names))]

    def map(self, name: str) -> memoryview:
        return self._connected.map(self._path_of(name))

    def open(self, name: str) -> Content:
        return self._connected.content(self._path_of(name))

    def _path_of(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"


class LocalFolder:
    """Reads a directory of this host's file systems."""

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
            with translating_os_errors(self._folder, PLAIN_FILES):
                os.stat(self._folder)
            raise NotADirectoryPathError(self._folder, why="it is not a directory")
        with translating_os_errors(self._folder, PLAIN_FILES):
            return sorted(self._names_below())

    def _names_below(self) -> Iterator[str]:
        pending = [(self._folder, "")]
        while pending:
            folder, prefix = pending.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        pending.append((entry.path, f"{prefix}{entry.name}/"))
                    else:
                        yield prefix + entry.name

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        if len(names) == 1:
            return [self._read(names[0])]
        return list(self._threads().map(self._read, names))

    def _read(self, name: str) -> bytes:
        path = os.path.join(self._folder, name)
        with translating_os_errors(path, PLAIN_FILES), open(path, "rb", buffering=0) as file:
            return file.read()

    def _threads(self) -> ThreadPoolExecutor:
        """Return the pool of this process; a child has no threads of its parent. There is no lock, which a fork could
        leave locked: a second pool does no harm."""
        pool = self._pool
        if pool is None or pool[0] != os.getpid():
            pool = self._pool = os.getpid(), ThreadPoolExecutor(THREADS, thread_name_prefix="headrace-folder")
        return pool[1]

    def map(self, name: str) -> memoryview:
        content = self.open(name)
        try:
            return mapped(content.fd, content.size_bytes)
        finally:
            content.close()

    def open(self, name: str) -> Content:
        path = os.path.join(self._folder, name)
        with translating_os_errors(path, PLAIN_FILES):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return Content(os.fstat(fd).st_size, fd=fd, grows=True)
