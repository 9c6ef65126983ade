"""Adapt any fsspec file system as an origin: hdfs, oss, sftp and every other driver.

fsspec has no conditional read, so a version is compared before and after. Where it is a time and a size, a read waits
for a file that was written this moment. Its listings come complete, so a
directory's listing takes memory for all of its entries. Calls run in threads. fsspec_write.py writes files.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any

from headrace.base.deadline import Deadline
from headrace.base.errors import (
    BucketNotFoundError,
    DeadlineExceededError,
    DirectoryNotEmptyError,
    HeadraceError,
    OriginDeniedError,
    OriginError,
    OriginUnavailableError,
    PathExistsError,
    PathNotFoundError,
    UsageError,
    VersionChangedError,
)
from headrace.base.file_times import stored_ns
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.commit_point import AbandonedError, CommitPoint
from headrace.origin.file_ticks import tick_left_s
from headrace.origin.fsspec_write import info_of, put_file
from headrace.origin.origin import (
    HIDDEN,
    Condition,
    ListPage,
    PutSource,
    check_condition,
    check_new_key,
    check_range,
    is_path,
)
from headrace.origin.threads import Threads
from headrace.origin.transient_errors import TRANSIENT

_PAGE = 1000
_TOKENS = ("ETag", "etag", "e_tag", "checksum", "md5", "md5Hash", "content_md5", "sha256")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")
_SECRET_LENGTH_MIN = 4  # shorter values are no secrets, and hiding them would garble messages


def check_driver(url: str) -> None:
    """Raise UsageError if fsspec or the driver of the scheme isn't installed. Connects to nothing."""
    scheme = url.partition("://")[0]
    try:
        import fsspec

        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        raise UsageError(
            url, why=f"no driver for {scheme}://: {_why(error)}", hint="pip install 'headrace[fsspec]'"
        ) from None
    except ValueError as error:
        raise UsageError(url, why=_why(error)) from None


def open_file_system(url: str, options: dict[str, str]) -> tuple[Any, str]:
    """Return the file system and the root path of a URL. Blocks: some drivers connect here. Raises the driver's
    exceptions."""
    import fsspec.core

    file_system, root = fsspec.core.url_to_fs(
        url, skip_instance_cache=True, use_listings_cache=False, **options
    )
    return file_system, str(root)


def version_of(info: dict[str, Any]) -> Version:
    """Return the version of an object. With a token the time is in whole seconds, because many a driver's HEAD has no
    more. Without one it is in microseconds: some drivers return a float in one call and a datetime in the other."""
    token = next((str(info[name]) for name in _TOKENS if info.get(name)), "")
    mtime_us = _mtime_us(info)
    mtime_ns = mtime_us // 10**6 * 10**9 if token else mtime_us * 1000
    return Version(int(info.get("size") or 0), stored_ns(mtime_ns), token)


def _mtime_us(info: dict[str, Any]) -> int:
    for name in _TIMES:
        value = info.get(name)
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            return round(value * 10**6)
    return 0


def _why(error: BaseException) -> str:
    return (str(error).split("\n", 1)[0] or type(error).__name__)[:300]


def _translate(error: Exception, target: str, why: str) -> HeadraceError:
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return PathNotFoundError(target, why="no such object")
    if isinstance(error, PermissionError):
        return OriginDeniedError(target, why=why)
    if isinstance(error, ConnectionError | TimeoutError) or "connect" in type(error).__name__.lower():
        return OriginUnavailableError(target, why=why)
    if isinstance(error, socket.gaierror) or (isinstance(error, OSError) and error.errno in TRANSIENT):
        return OriginUnavailableError(target, why=why)
    return OriginError(target, why=why)


class FsspecOrigin:
    """Serves an fsspec file system as an origin. `open` returns any AbstractFileSystem and the attached path in it; the
    first call runs it in a thread. `hidden` are texts that errors must not repeat: the values of the driver's
    options."""

    writable = True

    def __init__(self, url: str, open: Callable[[], tuple[Any, str]], *, hidden: Iterable[str] = ()) -> None:
        self.url = url
        self._open = open
        self._hidden = [text for text in hidden if len(text) >= _SECRET_LENGTH_MIN]
        self._opening = threading.Lock()
        self._files: Any = None
        self._root = ""
        self._threads = Threads(on_stuck=self._open_anew)

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        target = f"{self.url}/{key}"
        deadline.check(target)
        if not key or not is_path(key):
            raise PathNotFoundError(target, why="no such object")
        info = await self._call(lambda: self._files.info(self._path(key)), target, deadline)
        if info.get("type") != "file":
            raise PathNotFoundError(target, why="the path is not a file")
        return ObjectInfo(key, version_of(info))

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        target = f"{self.url}/{key}"
        try:
            before = await self.head(key, deadline=deadline)
            self._compare(before, version, target)
            check_range(target, start, end, version)
            if not version.token:
                await asyncio.sleep(tick_left_s(version.mtime_ns, time.time_ns()))
            body: bytes = await self._call(
                lambda: self._files.cat_file(self._path(key), start=start, end=end), target, deadline
            )
            self._compare(await self.head(key, deadline=deadline), version, target)
        except PathNotFoundError:
            raise VersionChangedError(target, why="the object was removed") from None
        if len(body) != end - start:
            raise OriginUnavailableError(target, why=f"received {len(body)} of {end - start} bytes")
        return Arrived(body)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        target = f"{self.url}/{key}"
        deadline.check(target)
        if not is_path(key):
            return
        try:
            infos = await self._call(lambda: self._files.ls(self._path(key), detail=True), target, deadline)
        except PathNotFoundError:
            if key:
                return
            raise BucketNotFoundError(self.url, why="no such directory") from None
        objects: dict[str, ObjectInfo] = {}
        directories: dict[str, None] = {}
        for info in infos:
            name = str(info["name"]).rstrip("/").rpartition("/")[2]
            child = f"{key}/{name}" if key else name
            if not name or name.startswith(HIDDEN) or str(info["name"]).rstrip("/") == self._path(key):
                continue
            if info.get("type") == "directory":
                directories[name] = None
            else:
                objects[name] = ObjectInfo(child, version_of(info))
        files, names = list(objects.values()), list(directories)
        for start in range(0, max(len(files), len(names)), _PAGE):
            yield ListPage(tuple(files[start : start + _PAGE]), tuple(names[start : start + _PAGE]))

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """Put an object. Attributes are dropped, because fsspec has no place for them."""
        target, commit = f"{self.url}/{key}", CommitPoint()
        deadline.check(target)
        check_new_key(target, key)

        def check() -> None:
            current = info_of(self._files, self._path(key))
            check_condition(target, condition, None if current is None else version_of(current))

        def call() -> dict[str, Any]:
            path = self._path(key)
            return put_file(self._files, self._root, path, target, source, check=check, commit=commit)

        return ObjectInfo(key, version_of(await self._call(call, target, deadline, abandon=commit.abandon)))

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        target = f"{self.url}/{key}"
        current = (await self.head(key, deadline=deadline)).version
        check_condition(target, condition, current)
        await self._call(lambda: self._files.rm_file(self._path(key)), target, deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        target = f"{self.url}/{key}"
        check_new_key(target, key)

        def call() -> None:
            current = info_of(self._files, self._path(key))
            if current is not None and current.get("type") != "directory":
                raise PathExistsError(target, why="a file has this name")
            self._files.makedirs(self._path(key), exist_ok=True)

        await self._call(call, target, deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        target = f"{self.url}/{key}"
        if not key or not is_path(key):
            return
        async for page in self.list_directory(key, deadline=deadline):
            if page.objects or page.directories:
                raise DirectoryNotEmptyError(target, why="the directory is not empty")
        with contextlib.suppress(PathNotFoundError):  # some drivers treat directories as mere prefixes
            await self._call(lambda: self._files.rmdir(self._path(key)), target, deadline)

    async def close(self) -> None:
        self._threads.close()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else (self._root or "/")

    def _compare(self, info: ObjectInfo, version: Version, target: str) -> None:
        if info.version != version:
            raise VersionChangedError(target, why="the origin has another version")

    def _with_files(self, call: Callable[[], Any]) -> Any:
        """Run the call in this thread, and open the file system first if needed."""
        with self._opening:
            if self._files is None:
                self._files, root = self._open_checked()
                self._root = root.rstrip("/")
        return call()

    def _open_anew(self) -> None:
        """Open the file system again with the next call. Many a driver has one connection, and waits for good for a
        server that is gone. A lock that a hanging call holds is left to it."""
        self._opening = threading.Lock()
        self._files = None

    def _open_checked(self) -> tuple[Any, str]:
        try:
            return self._open()
        except ValueError as error:
            raise UsageError(self.url, why=self._redacted(error)) from None
        except TypeError:
            raise UsageError(self.url, why="its driver does not accept one of the options") from None

    def _redacted(self, error: BaseException) -> str:
        why = _why(error)
        for text in self._hidden:
            why = why.replace(text, "…")
        return why

    async def _call(
        self,
        call: Callable[[], Any],
        target: str,
        deadline: Deadline,
        abandon: Callable[[], None] | None = None,
    ) -> Any:
        """Run a call in a thread. `abandon` is called if the caller abandons a put; the put is then awaited."""
        try:
            if abandon is not None:
                return await self._threads.finish(lambda: self._with_files(call), abandon, target, deadline)
            return await self._threads.call(lambda: self._with_files(call), target, deadline)
        except HeadraceError:
            raise
        except AbandonedError:
            raise DeadlineExceededError(target, why="not completed before the deadline") from None
        except Exception as error:  # noqa: BLE001 - each driver raises errors of its own
            raise _translate(error, target, self._redacted(error)) from None
