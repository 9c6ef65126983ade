"""Any fsspec file system as an origin: hdfs, oss, sftp and what else has a driver.

fsspec has no conditional read: a version is compared before and after. Its listings come whole, so a folder's
listing takes memory for all of its entries. Calls run in threads. How files are written is in fsspec_write.py.
"""

from __future__ import annotations

import contextlib
import threading
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
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.commit_point import CommitPoint, GivenUpError
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

_PAGE = 1000
_TOKENS = ("ETag", "etag", "e_tag", "checksum", "md5", "md5Hash", "content_md5", "sha256")
_TIMES = ("mtime", "LastModified", "last_modified", "modified", "updated", "created")
_SECRET_LENGTH_MIN = 4  # shorter ones would blot out half of every message, and are no secrets


def check_driver(url: str) -> None:
    """UsageError when fsspec, or the driver of that scheme, isn't installed. Connects to nothing."""
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
    """(file system, root path) of an URL. Some drivers connect here: blocks. Raises what they raise."""
    import fsspec.core

    file_system, root = fsspec.core.url_to_fs(
        url, skip_instance_cache=True, use_listings_cache=False, **options
    )
    return file_system, str(root)


def version_of(info: dict[str, Any]) -> Version:
    """Beside a token the time is in whole seconds, as many a driver's HEAD knows no more than that; without one, in
    microseconds: some drivers give a float in one call and a datetime in the other."""
    token = next((str(info[name]) for name in _TOKENS if info.get(name)), "")
    mtime_us = _mtime_us(info)
    mtime_ns = mtime_us // 10**6 * 10**9 if token else mtime_us * 1000
    return Version(int(info.get("size") or 0), mtime_ns, token)


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


def _translate(error: Exception, what: str, why: str) -> HeadraceError:
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return PathNotFoundError(what, why="no such object")
    if isinstance(error, PermissionError):
        return OriginDeniedError(what, why=why)
    if isinstance(error, ConnectionError | TimeoutError) or "connect" in type(error).__name__.lower():
        return OriginUnavailableError(what, why=why)
    return OriginError(what, why=why)


class FsspecOrigin:
    """open: (any AbstractFileSystem, the attached path in it), asked for with the first call, in a thread.
    hidden: what a driver may say in an error and we may not repeat: the values of its options."""

    writable = True

    def __init__(self, url: str, open: Callable[[], tuple[Any, str]], *, hidden: Iterable[str] = ()) -> None:
        self.url = url
        self._open = open
        self._hidden = [text for text in hidden if len(text) >= _SECRET_LENGTH_MIN]
        self._opening = threading.Lock()
        self._files: Any = None
        self._root = ""
        self._threads = Threads()

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        what = f"{self.url}/{key}"
        deadline.check(what)
        if not key or not is_path(key):
            raise PathNotFoundError(what, why="no such object")
        info = await self._call(lambda: self._files.info(self._path(key)), what, deadline)
        if info.get("type") != "file":
            raise PathNotFoundError(what, why="not a file")
        return ObjectInfo(key, version_of(info))

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        what = f"{self.url}/{key}"
        try:
            before = await self.head(key, deadline=deadline)
            self._compare(before, version, what)
            check_range(what, start, end, version)
            body: bytes = await self._call(
                lambda: self._files.cat_file(self._path(key), start=start, end=end), what, deadline
            )
            self._compare(await self.head(key, deadline=deadline), version, what)
        except PathNotFoundError:
            raise VersionChangedError(what, why="it is gone") from None
        if len(body) != end - start:
            raise OriginUnavailableError(what, why=f"{len(body)} of {end - start} bytes came")
        return Arrived(body)

    async def list_directory(self, key: str, *, deadline: Deadline) -> AsyncIterator[ListPage]:
        what = f"{self.url}/{key}"
        deadline.check(what)
        if not is_path(key):
            return
        try:
            infos = await self._call(lambda: self._files.ls(self._path(key), detail=True), what, deadline)
        except PathNotFoundError:
            if key:
                return
            raise BucketNotFoundError(self.url, why="no such folder") from None
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
        found, folders = list(objects.values()), list(directories)
        for at in range(0, max(len(found), len(folders)), _PAGE):
            yield ListPage(tuple(found[at : at + _PAGE]), tuple(folders[at : at + _PAGE]))

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """Attributes are dropped: fsspec has no words for them."""
        what, turn = f"{self.url}/{key}", CommitPoint()
        deadline.check(what)
        check_new_key(what, key)

        def check() -> None:
            found = info_of(self._files, self._path(key))
            check_condition(what, condition, None if found is None else version_of(found))

        def call() -> dict[str, Any]:
            path = self._path(key)
            return put_file(self._files, self._root, path, what, source, check=check, turn=turn)

        return ObjectInfo(key, version_of(await self._call(call, what, deadline, give_up=turn.give_up)))

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        what = f"{self.url}/{key}"
        found = (await self.head(key, deadline=deadline)).version
        check_condition(what, condition, found)
        await self._call(lambda: self._files.rm_file(self._path(key)), what, deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        what = f"{self.url}/{key}"
        check_new_key(what, key)

        def call() -> None:
            found = info_of(self._files, self._path(key))
            if found is not None and found.get("type") != "directory":
                raise PathExistsError(what, why="a file has this name")
            self._files.makedirs(self._path(key), exist_ok=True)

        await self._call(call, what, deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        what = f"{self.url}/{key}"
        if not key or not is_path(key):
            return
        async for page in self.list_directory(key, deadline=deadline):
            if page.objects or page.directories:
                raise DirectoryNotEmptyError(what, why="something is in it")
        with contextlib.suppress(PathNotFoundError):  # also of a driver to which folders are only prefixes
            await self._call(lambda: self._files.rmdir(self._path(key)), what, deadline)

    async def close(self) -> None:
        self._threads.close()

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else (self._root or "/")

    def _compare(self, found: ObjectInfo, version: Version, what: str) -> None:
        if found.version != version:
            raise VersionChangedError(what, why="it is not the version that was asked for")

    def _with_files(self, call: Callable[[], Any]) -> Any:
        """In a thread."""
        with self._opening:
            if self._files is None:
                self._files, root = self._open_checked()
                self._root = root.rstrip("/")
        return call()

    def _open_checked(self) -> tuple[Any, str]:
        try:
            return self._open()
        except ValueError as error:
            raise UsageError(self.url, why=self._say(error)) from None
        except TypeError:
            raise UsageError(self.url, why="its driver does not take one of the options") from None

    def _say(self, error: BaseException) -> str:
        why = _why(error)
        for text in self._hidden:
            why = why.replace(text, "…")
        return why

    async def _call(
        self,
        call: Callable[[], Any],
        what: str,
        deadline: Deadline,
        give_up: Callable[[], None] | None = None,
    ) -> Any:
        """give_up: how a put is told that its caller has gone; it is then waited for."""
        try:
            if give_up is not None:
                return await self._threads.finish(lambda: self._with_files(call), give_up, what, deadline)
            return await self._threads.call(lambda: self._with_files(call), what, deadline)
        except HeadraceError:
            raise
        except GivenUpError:
            raise DeadlineExceededError(what, why="not done within the time allowed") from None
        except Exception as error:  # noqa: BLE001 - each driver raises errors of its own
            raise _translate(error, what, self._say(error)) from None
