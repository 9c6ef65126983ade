"""Open a directory of training data or of a model: in the namespace of a node (`headrace:///PATH`, which needs no
mount), or any directory of this host's file systems, including mounts. Data sets (`integrations/torch_data.py`) and
models (`integrations/safetensors.py`) read both in the same way.

A `Folder` may be pickled, and used by a child after a fork. Thread-safe. Its connections belong to the process, and
stay open.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from headrace.base.cancel import Cancel
from headrace.base.errors import NotADirectoryPathError, UsageError
from headrace.base.fork_safe_pool import ForkSafePool
from headrace.base.os_errors import PLAIN_FILES, translating_os_errors
from headrace.sdk.cache import Cache, connect
from headrace.sdk.mapped_files import map_whole, open_by_node, open_plain, open_regular
from headrace.vfs.streams import Content

URL = "headrace://"
THREADS = 16


class Folder(Protocol):
    """Lists and reads the files of a directory. Names are text, relative to it, with slashes."""

    @property
    def name(self) -> str:
        """Return the name that messages use for it."""

    def check(self) -> None:
        """Raise PathNotFoundError or NotADirectoryPathError unless it is a directory."""

    def names(self, *, recursive: bool = True) -> list[str]:
        """Return the names of all files in it, sorted. recursive: and below it. Raise the errors of `check`."""

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        """Read files and return their bytes in the order of the names. Raise PathNotFoundError, OriginError and its
        subclasses."""

    def are_cached(self, names: Sequence[str]) -> list[bool]:
        """Return for each file whether all its bytes are on this host, without fetching any. Raise UsageError for a
        directory that is not a node's."""

    def map(self, name: str) -> memoryview:
        """Return a whole file; block until it is on this host. Writing to it changes this process's memory only."""

    def fetch(self, name: str, cancel: Cancel) -> memoryview:
        """Return a whole file as `map` does, after the node has fetched it as fast as it can. A file in a mount is not
        read through the mount. Raise the errors of `map_whole`."""

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


def open_folder_or_file(
    where: str, *, cache: str | None = None, socket: str | None = None
) -> tuple[Folder, str]:
    """Open a directory as open_folder does, with ""; or the directory above the file that `where` names, with the name
    of the file. Raise PathNotFoundError."""
    folder = open_folder(where, cache=cache, socket=socket)
    try:
        folder.check()
        return folder, ""
    except NotADirectoryPathError:
        parent, _, name = (where if where.startswith(URL) else os.path.abspath(where)).rpartition("/")
        return open_folder(f"{parent}/", cache=cache, socket=socket), name


def files_at(where: str, *, cache: str | None = None, socket: str | None = None) -> tuple[Folder, list[str]]:
    """Open a directory or a file as open_folder_or_file does. Return the names of the directory's files, or of the
    file."""
    folder, name = open_folder_or_file(where, cache=cache, socket=socket)
    return folder, [name] if name else folder.names()


class NodeFolder:
    """Reads a directory of the namespace that `connect` opens with the same arguments."""

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

    def check(self) -> None:
        next(self._connected.list(self._path), None)

    def names(self, *, recursive: bool = True) -> list[str]:
        names = []
        for folder, folders, files in self._connected.walk(self._path):
            prefix = folder[len(self._path.rstrip("/")) :].strip("/")
            names += [f"{prefix}/{name}" if prefix else name for name in files]
            if not recursive:
                folders.clear()
        return sorted(names)

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        return [result.data for result in self._connected.read_many(map(self._path_of, names))]

    def are_cached(self, names: Sequence[str]) -> list[bool]:
        return self._connected.are_cached(map(self._path_of, names))

    def map(self, name: str) -> memoryview:
        return self._connected.map(self._path_of(name))

    def fetch(self, name: str, cancel: Cancel) -> memoryview:
        return map_whole(lambda: self.open(name), cancel)

    def open(self, name: str) -> Content:
        return self._connected.content(self._path_of(name))

    def _path_of(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"


class LocalFolder:
    """Reads a directory of this host's file systems."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._threads = ForkSafePool(THREADS, "headrace-folder")

    @property
    def name(self) -> str:
        return self._folder

    def check(self) -> None:
        with translating_os_errors(self._folder, PLAIN_FILES):
            mode = os.stat(self._folder).st_mode
        if not stat.S_ISDIR(mode):
            raise NotADirectoryPathError(self._folder, why="it is not a directory")

    def names(self, *, recursive: bool = True) -> list[str]:
        self.check()
        with translating_os_errors(self._folder, PLAIN_FILES):
            return sorted(self._names_below(recursive=recursive))

    def _names_below(self, *, recursive: bool) -> Iterator[str]:
        pending = [(self._folder, "", frozenset([_place_of(self._folder)]))]
        while pending:
            folder, prefix, above = pending.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_endless(entry):
                        continue
                    if not entry.is_dir():
                        yield prefix + entry.name
                    elif (
                        recursive and (place := _place_of(entry.path)) not in above
                    ):  # not a link to one above
                        pending.append((entry.path, f"{prefix}{entry.name}/", above | {place}))

    def read_many(self, names: Sequence[str]) -> list[bytes]:
        if len(names) == 1:
            return [self._read(names[0])]
        return list(self._threads.executor().map(self._read, names))

    def _read(self, name: str) -> bytes:
        path = self._path_of(name)
        with (
            translating_os_errors(path, PLAIN_FILES),
            open(path, "rb", buffering=0, opener=open_regular) as file,
        ):
            return file.read()

    def are_cached(self, names: Sequence[str]) -> list[bool]:
        raise UsageError(
            self._folder, why="nobody says what is cached of a directory of the host", hint=f"use {URL}/PATH"
        )

    def map(self, name: str) -> memoryview:
        return map_whole(lambda: self.open(name))

    def fetch(self, name: str, cancel: Cancel) -> memoryview:
        return map_whole(lambda: open_by_node(self._path_of(name), cancel), cancel)

    def open(self, name: str) -> Content:
        return open_plain(self._path_of(name))

    def _path_of(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _place_of(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _is_endless(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a link that leads to itself."""
    try:
        entry.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return True
    return False
