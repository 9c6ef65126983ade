"""A folder of this host, or of a network file system mounted on it, as an origin.

Not obstore's local store: that refuses names that are not UTF-8. Calls run in threads. A version is named by
mtime, size and inode; a read compares them before and after. How files are written is in local_write.py.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import stat
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
from headrace.base.model import Arrived, Attributes, ObjectInfo, Version
from headrace.origin.commit_point import CommitPoint, GivenUpError
from headrace.origin.local_write import (
    folder_of,
    make_folders,
    put_file,
    sweep,
    sync_folder,
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

_PAGE = 1000
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_DENIED = (errno.EACCES, errno.EPERM)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EMFILE, errno.ENFILE)

_LEADS_OUT = "a symbolic link leads out of the origin's folder"
_UNSAFE_LINKS = "the origin's option unsafe_links=true follows those"
_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_SWEPT_MAX = 10_000

Result = TypeVar("Result")
log = logging.getLogger(__name__)


def version_of(found: os.stat_result) -> Version:
    return Version(
        found.st_size, found.st_mtime_ns, f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    )


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    mode = stat.S_IMODE(found.st_mode)
    return ObjectInfo(key, version_of(found), Attributes(found.st_mtime_ns, mode, found.st_uid, found.st_gid))


def _translate(error: OSError, what: str) -> HeadraceError:
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _ABSENT:
        return PathNotFoundError(what, why=why)
    if error.errno == errno.EXDEV:
        return OriginDeniedError(what, why=_LEADS_OUT, hint=_UNSAFE_LINKS)
    if error.errno in _DENIED:
        return OriginDeniedError(what, why=why, hint="the node's user needs to read it")
    if error.errno in _PASSING:
        return OriginUnavailableError(what, why=why)
    return OriginError(what, why=why)


class LocalOrigin:
    """Symbolic links are followed within the folder. One that leads out of it is not listed, and refused; unsafe_links:
    it is followed, also for writing, to whatever this process may reach. Sockets, devices and links to nothing are not
    listed."""

    writable = True

    def __init__(self, folder: str, *, unsafe_links: bool = False) -> None:
        self._folder = os.path.abspath(folder)
        self._unsafe_links = unsafe_links
        self._told_of_links = False
        self._swept: set[bytes] = set()
        self.url = f"file://{self._folder}"
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
        """When a version is to be replaced, the two files change places, and the old one is looked at and put back
        if it is not that version; a file system that can't do that has it compared just before the rename."""
        what, turn = self._where(key), CommitPoint()
        check_new_key(what, key)
        return await self._writing(
            lambda: self._put(key, source, condition, attributes, turn), what, deadline, turn.give_up
        )

    async def remove(self, key: str, *, condition: Condition, deadline: Deadline) -> None:
        """The version is compared just before."""
        await self._writing(lambda: self._remove(key, condition), self._where(key), deadline)

    async def make_directory(self, key: str, *, deadline: Deadline) -> None:
        what = self._where(key)
        check_new_key(what, key)
        await self._writing(lambda: self._make_directory(key), what, deadline)

    async def remove_directory(self, key: str, *, deadline: Deadline) -> None:
        what = self._where(key)
        if key and is_path(key):
            await self._writing(lambda: self._remove_directory(key), what, deadline)

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
        what: str,
        deadline: Deadline,
        give_up: Callable[[], None] = lambda: None,
    ) -> Result:
        try:
            return await self._threads.finish(lambda: self._in_folder(call), give_up, what, deadline)
        except HeadraceError:
            raise
        except GivenUpError:
            raise DeadlineExceededError(what, why="not done within the time allowed") from None
        except OSError as error:
            raise translate_write(error, what) or _translate(error, what) from error

    def _in_folder(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            if error.errno in _ABSENT and not os.path.isdir(self._folder):
                raise BucketNotFoundError(self.url, why="the folder isn't there") from error
            raise

    async def _in_thread(self, call: Callable[[], Result], what: str, deadline: Deadline) -> Result:
        try:
            return await self._threads.call(call, what, deadline)
        except HeadraceError:
            raise
        except OSError as error:
            raise _translate(error, what) from error

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}".encode(errors="surrogateescape").decode(errors="backslashreplace")

    def _path(self, key: str) -> SafePath:
        """The folder is opened for each call: another disk may be mounted there by now."""
        if not is_path(key):
            raise PathNotFoundError(self._where(key), why="no such object")
        top = self._top()
        return top.root.at(top.path.rstrip(b"/") + b"/" + os.fsencode(key)) if key else top

    def _top(self) -> SafePath:
        folder = os.fsencode(self._folder)
        return Root(b"/").at(folder).resolved() if self._unsafe_links else Root(folder).at(b"/")

    def _head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        found = _following(path, lambda at: at.lstat())
        if stat.S_ISLNK(found.st_mode):
            found = path.resolved().lstat()
        if not stat.S_ISREG(found.st_mode):
            raise PathNotFoundError(self._where(key), why="not a file")
        return _info(key, found)

    def _put(
        self, key: str, source: PutSource, condition: Condition, attributes: Attributes, turn: CommitPoint
    ) -> ObjectInfo:
        path = self._path(key)
        found = put_file(
            path,
            self._where(key),
            source,
            top=self._top(),
            condition=condition,
            attributes=attributes,
            turn=turn,
            version_of=version_of,
        )
        self._sweep_once(path, found.st_ctime)
        return _info(key, found)

    def _sweep_once(self, path: SafePath, now_s: float) -> None:
        """The folder that a file was put into."""
        folder = folder_of(path)
        if folder.path in self._swept:
            return
        if len(self._swept) >= _SWEPT_MAX:
            self._swept.clear()
        self._swept.add(folder.path)
        with contextlib.suppress(OSError):
            sweep(folder_of(path.resolved()), now_s)

    def _remove(self, key: str, condition: Condition) -> None:
        try:
            found = self._head(key)
        except NotADirectoryError:
            raise PathNotFoundError(self._where(key), why="no such file") from None
        check_condition(self._where(key), condition, found.version)
        path = self._path(key).resolved(last=False)
        path.unlink()
        sync_folder(folder_of(path))

    def _make_directory(self, key: str) -> None:
        path = self._path(key).resolved(last=False)
        try:
            make_folders(path, self._top())
        except FileExistsError:
            if not path.exists():
                raise  # a file stands in the place of one above
            raise PathExistsError(self._where(key), why="a file has this name") from None

    def _remove_directory(self, key: str) -> None:
        path = self._path(key).resolved(last=False)
        try:
            try:
                path.rmdir()
            except OSError as error:
                if error.errno not in _NOT_EMPTY:
                    raise
                sweep(path, math.inf)  # of whatever age: who is putting into a folder that goes puts again
                path.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            raise DirectoryNotEmptyError(self._where(key), why="something is in it") from None
        sync_folder(folder_of(path))

    def _read(self, key: str, start: int, end: int, version: Version) -> Body:
        try:
            file = _following(self._path(key), lambda at: at.open(os.O_RDONLY | os.O_NONBLOCK))
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
        if version_of(os.fstat(file)) != version:
            raise VersionChangedError(self._where(key), why="it is not the version that was asked for")

    def _pages(self, key: str) -> Iterator[ListPage]:
        """Reads on in the open directory, a page's worth of names at a time."""
        with contextlib.ExitStack() as held:
            try:
                path = self._path(key)
                listing = _following(path, lambda at: held.enter_context(at.entries()))
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
            for entry in listing:
                self._sort_in(entry, path, key, objects, directories)
                if len(objects) + len(directories) >= _PAGE:
                    yield ListPage(tuple(objects), tuple(directories))
                    objects, directories = [], []
            if objects or directories:
                yield ListPage(tuple(objects), tuple(directories))

    def _sort_in(
        self,
        entry: os.DirEntry[bytes],
        folder: SafePath,
        key: str,
        objects: list[ObjectInfo],
        directories: list[str],
    ) -> None:
        name = os.fsdecode(entry.name)
        if name.startswith(HIDDEN):
            return
        try:
            if entry.is_symlink():
                found = (folder / entry.name).resolved().lstat()
            elif entry.is_dir(follow_symlinks=False):
                directories.append(name)
                return
            else:
                found = entry.stat(follow_symlinks=False)
        except OSError as error:
            if error.errno == errno.EXDEV:
                self._tell_of_links(f"{key}/{name}" if key else name)
            return  # removed since, or a link to nothing
        if stat.S_ISDIR(found.st_mode):
            directories.append(name)
        elif stat.S_ISREG(found.st_mode):
            objects.append(_info(f"{key}/{name}" if key else name, found))

    def _tell_of_links(self, key: str) -> None:
        if not self._told_of_links:
            self._told_of_links = True
            log.warning("%s path=%s hint=%s", _LEADS_OUT, self._where(key), _UNSAFE_LINKS)


def _following(path: SafePath, call: Callable[[SafePath], Result]) -> Result:
    """The call, which fails at a link; then of what the links lead to."""
    try:
        return call(path)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        return call(path.resolved())
