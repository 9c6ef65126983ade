"""A folder of this host, or of a network file system mounted on it, as an origin.

Not obstore's local store: that refuses names that are not UTF-8. Calls run in threads. A version is named by
mtime, size and inode; a read compares them before and after.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    HeadraceError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    PathNotFoundError,
    VersionChangedError,
)
from headrace.base.model import ObjectInfo, Version
from headrace.origin.origin import Body, ListPage, check_range, is_path
from headrace.origin.threads import Threads

_PAGE = 1000
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_DENIED = (errno.EACCES, errno.EPERM)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE)

Result = TypeVar("Result")


def _version(found: os.stat_result) -> Version:
    return Version(
        found.st_size, found.st_mtime_ns, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    )


def _translate(error: OSError, what: str) -> HeadraceError:
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _ABSENT:
        return PathNotFoundError(what, why=why)
    if error.errno in _DENIED:
        return OriginDeniedError(what, why=why, hint="the node's user needs to read it")
    if error.errno in _PASSING:
        return OriginUnavailableError(what, why=why)
    return OriginError(what, why=why)


class LocalOrigin:
    """Symbolic links are followed, also out of the folder: whoever attaches it trusts it. Sockets, devices and
    links to nothing are not listed."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self.url = f"file://{self._folder}"
        self._threads = Threads()

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        return await self._in_thread(lambda: self._head(key), self._where(key), deadline)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Body:
        return await self._in_thread(lambda: self._read(key, start, end, version), self._where(key), deadline)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        where = self._where(key)
        pages = self._pages(key)
        try:
            while True:
                page = await self._in_thread(lambda: next(pages, None), where, deadline)
                if page is None:
                    return
                yield page
        finally:
            if not getattr(pages, "gi_running", False):
                pages.close()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._threads.close()

    async def _in_thread(self, call: Callable[[], Result], what: str, deadline: Deadline) -> Result:
        try:
            return await self._threads.call(call, what, deadline)
        except HeadraceError:
            raise
        except OSError as error:
            raise _translate(error, what) from error

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}".encode(errors="surrogateescape").decode(errors="backslashreplace")

    def _path(self, key: str) -> str:
        if not is_path(key):
            raise PathNotFoundError(self._where(key), why="no such object")
        return os.path.join(self._folder, key) if key else self._folder

    def _head(self, key: str) -> ObjectInfo:
        found = os.stat(self._path(key))
        if not stat.S_ISREG(found.st_mode):
            raise PathNotFoundError(self._where(key), why="not a file")
        return ObjectInfo(key, _version(found))

    def _read(self, key: str, start: int, end: int, version: Version) -> Body:
        try:
            file = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in _ABSENT:
                raise VersionChangedError(self._where(key), why="it is gone") from None
            raise
        try:
            self._compare(file, key, version)
            check_range(self._where(key), start, end, version)
            body = self._pread(file, start, end)
            self._compare(file, key, version)
        finally:
            os.close(file)
        if len(body) != end - start:
            raise OriginUnavailableError(self._where(key), why=f"{len(body)} of {end - start} bytes")
        return body

    def _pread(self, file: int, start: int, end: int) -> Body:
        body = os.pread(file, end - start, start)
        if len(body) == end - start:
            return body
        parts = [body]  # a signal, a network file system, or more than 2 GiB: the rest comes in pieces
        at = start + len(body)
        while at < end and parts[-1]:
            parts.append(os.pread(file, end - at, at))
            at += len(parts[-1])
        return b"".join(parts)

    def _compare(self, file: int, key: str, version: Version) -> None:
        if _version(os.fstat(file)) != version:
            raise VersionChangedError(self._where(key), why="it is not the version that was asked for")

    def _pages(self, key: str) -> Iterator[ListPage]:
        """Reads on in the open directory, a page's worth of names at a time."""
        try:
            listing = os.scandir(self._path(key))
        except PathNotFoundError:
            return
        except OSError as error:
            if error.errno not in _ABSENT:
                raise
            if key == "":
                raise BucketNotFoundError(self.url, why=os.strerror(error.errno or 0)) from None
            return
        with listing:
            objects: list[ObjectInfo] = []
            directories: list[str] = []
            for entry in listing:
                self._sort_in(entry, key, objects, directories)
                if len(objects) + len(directories) >= _PAGE:
                    yield ListPage(tuple(objects), tuple(directories))
                    objects, directories = [], []
            if objects or directories:
                yield ListPage(tuple(objects), tuple(directories))

    def _sort_in(
        self, entry: os.DirEntry[str], key: str, objects: list[ObjectInfo], directories: list[str]
    ) -> None:
        try:
            if entry.is_dir():
                directories.append(entry.name)
                return
            found = entry.stat()
        except OSError:
            return  # removed since, or a link to nothing
        if stat.S_ISREG(found.st_mode):
            objects.append(ObjectInfo(f"{key}/{entry.name}" if key else entry.name, _version(found)))
