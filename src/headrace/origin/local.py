"""Serve a directory of this host, or of a network file system mounted on it, as an origin.

obstore's local store is not used, because it refuses names that are not UTF-8. Calls run in threads. A version
consists of mtime, size and inode; a read compares them before and after, and waits for a file that was written this
moment. local_write.py writes files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

from headrace.base.beneath import Root, SafePath
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
    VersionChangedError,
)
from headrace.base.file_times import stored_ns
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.commit_point import AbandonedError, CommitPoint
from headrace.origin.file_ticks import tick_left_s
from headrace.origin.local_links import follow, leads_back, real_directories
from headrace.origin.local_write import (
    directory_of,
    locked,
    make_directories,
    put_file,
    sweep,
    sync_directory,
    translate_write,
)
from headrace.origin.origin import (
    HIDDEN,
    Body,
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
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_DENIED = (errno.EACCES, errno.EPERM)
_LEADS_OUT = "a symbolic link leads out of the origin's directory"
_LEADS_OUT_UNSHOWN = f"{_LEADS_OUT}, only unsafe_links=true follows it"
_LEADS_BACK = "a symbolic link leads back to a directory above it"
_UNSAFE_LINKS = "the origin's option unsafe_links=true follows such links"
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_SWEPT_MAX = 10_000

Result = TypeVar("Result")
log = logging.getLogger(__name__)


def version_of(status: os.stat_result) -> Version:
    token = f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"
    return Version(status.st_size, stored_ns(status.st_mtime_ns), token)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    version, mode = version_of(status), stat.S_IMODE(status.st_mode)
    return ObjectInfo(key, version, Attributes(version.mtime_ns, mode, status.st_uid, status.st_gid))


def _translate(error: OSError, target: str) -> HeadraceError:
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _ABSENT:
        return PathNotFoundError(target, why=why)
    if error.errno == errno.EXDEV:
        return OriginDeniedError(target, why=_LEADS_OUT, hint=_UNSAFE_LINKS)
    if error.errno in _DENIED:
        return OriginDeniedError(target, why=why, hint="grant the node's user read access")
    if error.errno in TRANSIENT:
        return OriginUnavailableError(target, why=why)
    return OriginError(target, why=why)


class LocalOrigin:
    """Serves a local directory as an origin. Symbolic links are followed within the directory. A link out of it is
    refused and not listed. With unsafe_links it is followed, also for writing, to any place this process may reach.
    A link that leads back to a directory above it is neither followed nor listed. Nor are sockets, devices and
    dangling links listed."""

    writable = True

    def __init__(self, directory: str, *, unsafe_links: bool = False) -> None:
        self._directory = os.path.abspath(directory)
        self._unsafe_links = unsafe_links
        self._warned_of_links: set[str] = set()
        self._swept: set[bytes] = set()
        self.url = f"file://{self._directory}"
        self._threads = Threads()

    async def head(self, key: str, *, deadline: Deadline) -> ObjectInfo:
        return await self._in_thread(lambda: self._head(key), self._where(key), deadline)

    async def read_range(
        self, key: str, start: int, end: int, *, version: Version, deadline: Deadline
    ) -> Arrived:
        body = await self._in_thread(lambda: self._read(key, start, end, version), self._where(key), deadline)
        return Arrived(body)

    async def put(
        self, key: str, source: PutSource, *, condition: Condition, attributes: Attributes, deadline: Deadline
    ) -> ObjectInfo:
        """Put a file. To replace a given version, the two files exchange names; the replaced file is then compared,
        and exchanged back if it is another version. Where the file system can't exchange, the version is compared
        just before the rename."""
        target, commit = self._where(key), CommitPoint()
        check_new_key(target, key)
        return await self._writing(
            lambda: self._put(key, source, condition, attributes, commit), target, deadline, commit.abandon
        )

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """Remove a file. Its version is compared just before."""
        await self._writing(lambda: self._remove(key, condition), self._where(key), deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        target = self._where(key)
        check_new_key(target, key)
        await self._writing(lambda: self._make_directory(key), target, deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        target = self._where(key)
        if key and is_path(key):
            await self._writing(lambda: self._remove_directory(key), target, deadline)

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

    async def _writing(
        self,
        call: Callable[[], Result],
        target: str,
        deadline: Deadline,
        abandon: Callable[[], None] = lambda: None,
    ) -> Result:
        try:
            return await self._threads.finish(lambda: self._in_directory(call), abandon, target, deadline)
        except HeadraceError:
            raise
        except AbandonedError:
            raise DeadlineExceededError(target, why="not completed before the deadline") from None
        except OSError as error:
            raise translate_write(error, target) or _translate(error, target) from error

    def _in_directory(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            if error.errno in _ABSENT and not os.path.isdir(self._directory):
                raise BucketNotFoundError(self.url, why="the directory does not exist") from error
            raise

    async def _in_thread(self, call: Callable[[], Result], target: str, deadline: Deadline) -> Result:
        try:
            return await self._threads.call(call, target, deadline)
        except HeadraceError:
            raise
        except OSError as error:
            raise _translate(error, target) from error

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}".encode(errors="surrogateescape").decode(errors="backslashreplace")

    def _path(self, key: str) -> SafePath:
        """Return the path of a key. The directory is opened for each call, because another disk may be mounted on it
        by now."""
        if not is_path(key):
            raise PathNotFoundError(self._where(key), why="no such object")
        top = self._top()
        return top.root.at(top.path.rstrip(b"/") + b"/" + os.fsencode(key)) if key else top

    def _top(self) -> SafePath:
        directory = os.fsencode(self._directory)
        return Root(b"/").at(directory).resolved() if self._unsafe_links else Root(directory).at(b"/")

    def _head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        status = _following(path, self._top, lambda link: link.lstat())
        if stat.S_ISLNK(status.st_mode):
            status = path.resolved().lstat()
        if not stat.S_ISREG(status.st_mode):
            raise PathNotFoundError(self._where(key), why="the path is not a file")
        return _info(key, status)

    def _put(
        self, key: str, source: PutSource, condition: Condition, attributes: Attributes, commit: CommitPoint
    ) -> ObjectInfo:
        path = self._path(key)
        status = put_file(
            path,
            self._where(key),
            source,
            top=self._top(),
            condition=condition,
            attributes=attributes,
            commit=commit,
            version_of=version_of,
        )
        self._sweep_once(path, status.st_ctime)
        return _info(key, status)

    def _sweep_once(self, path: SafePath, now_s: float) -> None:
        """Remove stale temporary files from the directory of a file that was put, once for each directory."""
        directory = directory_of(path)
        if directory.path in self._swept:
            return
        if len(self._swept) >= _SWEPT_MAX:
            self._swept.clear()
        self._swept.add(directory.path)
        with contextlib.suppress(OSError):
            sweep(directory_of(path.resolved()), now_s)

    def _remove(self, key: str, condition: Condition) -> None:
        where = self._where(key)
        try:
            path = follow(self._path(key), self._top(), last=False)
            directory = directory_of(path).held()
        except NotADirectoryError:
            raise PathNotFoundError(where, why="the file does not exist") from None
        with contextlib.closing(directory), locked(directory, where):
            try:
                info = self._head(key)
            except NotADirectoryError:
                raise PathNotFoundError(where, why="the file does not exist") from None
            check_condition(where, condition, info.version)
            path.unlink()
        sync_directory(directory_of(path))

    def _make_directory(self, key: str) -> None:
        path = follow(self._path(key), self._top(), last=False)
        try:
            make_directories(path, self._top())
        except FileExistsError:
            if not path.exists():
                raise  # a parent of the path is a file
            raise PathExistsError(self._where(key), why="a file has this name") from None

    def _remove_directory(self, key: str) -> None:
        path = follow(self._path(key), self._top(), last=False)
        try:
            try:
                path.rmdir()
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    raise
                sweep(path, math.inf)  # of any age: a put into a directory that is being removed retries
                path.rmdir()
        except NotADirectoryError:
            if not _unlink_directory(path, self._top()):
                raise
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            raise DirectoryNotEmptyError(self._where(key), why="the directory is not empty") from None
        sync_directory(directory_of(path))

    def _read(self, key: str, start: int, end: int, version: Version) -> Body:
        try:
            file = _following(self._path(key), self._top, lambda link: link.open(os.O_RDONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno in _ABSENT:
                raise VersionChangedError(self._where(key), why="the file was removed") from None
            raise
        try:
            _check_version(file, version, self._where(key))
            check_range(self._where(key), start, end, version)
            if (left_s := tick_left_s(version.mtime_ns, time.time_ns())) > 0:
                time.sleep(left_s)
            body = _read_all(file, start, end)
            _check_version(file, version, self._where(key))
        finally:
            os.close(file)
        if len(body) != end - start:
            raise OriginUnavailableError(self._where(key), why=f"received {len(body)} of {end - start} bytes")
        return body

    def _pages(self, key: str) -> Iterator[ListPage]:
        """Yield the listing, page by page, and read the open directory only as far as needed for a page."""
        with contextlib.ExitStack() as stack:
            try:
                path = self._path(key)
                listing = _following(path, self._top, lambda link: stack.enter_context(link.entries()))
            except PathNotFoundError:
                return
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                if key == "":
                    raise BucketNotFoundError(self.url, why=os.strerror(error.errno or 0)) from None
                return
            objects: list[ObjectInfo] = []
            directories: list[str] = []
            above = functools.cache(lambda: real_directories(path, self._top()))
            for entry in listing:
                self._classify(entry, path, key, above, objects, directories)
                if len(objects) + len(directories) >= _PAGE:
                    yield ListPage(tuple(objects), tuple(directories))
                    objects, directories = [], []
            if objects or directories:
                yield ListPage(tuple(objects), tuple(directories))

    def _classify(
        self,
        entry: os.DirEntry[bytes],
        directory: SafePath,
        key: str,
        above: Callable[[], list[bytes]],
        objects: list[ObjectInfo],
        directories: list[str],
    ) -> None:
        name = os.fsdecode(entry.name)
        if name.startswith(HIDDEN):
            return
        try:
            if entry.is_symlink():
                target = (directory / entry.name).resolved()
                status = target.lstat()
                if stat.S_ISDIR(status.st_mode) and leads_back(target.path, above()):
                    self._warn_of_links(_LEADS_BACK, f"{key}/{name}" if key else name)
                    return
            elif entry.is_dir(follow_symlinks=False):
                directories.append(name)
                return
            else:
                status = entry.stat(follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EXDEV:
                self._warn_of_links(_LEADS_OUT_UNSHOWN, f"{key}/{name}" if key else name)
            elif error.errno in TRANSIENT and not entry.is_symlink():
                raise  # a listing without the name would say that the file was removed
            return  # removed meanwhile, or a dangling link
        if stat.S_ISDIR(status.st_mode):
            directories.append(name)
        elif stat.S_ISREG(status.st_mode):
            objects.append(_info(f"{key}/{name}" if key else name, status))

    def _warn_of_links(self, why: str, key: str) -> None:
        """Log that a link is not shown, once for each reason."""
        if why not in self._warned_of_links:
            self._warned_of_links.add(why)
            log.warning("a symbolic link is not shown path=%s error=%s", self._where(key), why)


def _following(path: SafePath, top: Callable[[], SafePath], call: Callable[[SafePath], Result]) -> Result:
    """Call with the path; if that fails because of a symbolic link, call again with the resolved path."""
    try:
        return call(path)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return call(follow(path, top()))


def _unlink_directory(path: SafePath, top: SafePath) -> bool:
    """Remove a link to a directory; the directory stays. Return False if the path is no such link."""
    try:
        path.readlink()
        if not follow(path, top).is_directory():
            return False
    except OSError:
        return False
    path.unlink()
    return True


def _read_all(file: int, start: int, end: int) -> Body:
    body = os.pread(file, end - start, start)
    if len(body) == end - start:
        return body
    # Short after a signal, on a network file system, or beyond 2 GiB: read the rest in pieces.
    parts = [body]
    offset = start + len(body)
    while offset < end and parts[-1]:
        parts.append(os.pread(file, end - offset, offset))
        offset += len(parts[-1])
    return b"".join(parts)


def _check_version(file: int, version: Version, where: str) -> None:
    if version_of(os.fstat(file)) != version:
        raise VersionChangedError(where, why="the origin has another version")
