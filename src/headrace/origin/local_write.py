"""Writing into a folder: a new file beside the old one, filled and synced, which then takes its name in one step.

Blocks; runs in threads. The new file's name begins with HIDDEN, which listings hide. One that a crash left behind
is removed by the first put into that folder of a later process, when it is STALE_S old by the folder's own clock.
OSErrors come out as they are; `translate_write` knows them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Callable

from headrace.base import failpoint
from headrace.base.beneath import EXCHANGE, NOREPLACE, Root, SafePath
from headrace.base.errors import (
    HeadraceError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    OriginError,
    OriginReadOnlyError,
)
from headrace.base.model import Attributes, Version
from headrace.origin.commit_point import CommitPoint
from headrace.origin.origin import HIDDEN, Absent, Condition, PutSource, check_condition
from headrace.origin.source import FilePutSource

STALE_S = 24 * 3600
CHUNK_BYTES = 16 << 20
"""Copied between two looks at whether the put was given up: some 10 ms of a local disk."""

_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM, errno.EBADF, errno.ETXTBSY)
_NOT_RENAMED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def put_file(
    path: SafePath,
    what: str,
    source: PutSource,
    *,
    top: SafePath,
    condition: Condition,
    attributes: Attributes,
    turn: CommitPoint,
    version_of: Callable[[os.stat_result], Version],
) -> os.stat_result:
    """What the new file is, durable with its name. what: the path, for messages. top: the folder that must be there;
    those between it and the file are made. A symbolic link stays, and what it leads to is replaced."""
    path = path.resolved()
    folder = _held(folder_of(path), top)
    try:
        return _put_in(
            *(folder, path.path[path.path.rfind(b"/") :], what, source),
            condition=condition,
            attributes=attributes,
            turn=turn,
            version_of=version_of,
        )
    finally:
        folder.close()


def _held(folder: SafePath, top: SafePath) -> Root:
    """Made, where it is not there."""
    try:
        return folder.held()
    except FileNotFoundError:
        if folder.path == top.path:
            raise
    make_folders(folder, top)
    return folder.held()


def _put_in(
    folder: Root,
    name: bytes,
    what: str,
    source: PutSource,
    *,
    condition: Condition,
    attributes: Attributes,
    turn: CommitPoint,
    version_of: Callable[[os.stat_result], Version],
) -> os.stat_result:
    """name: with the slash before it."""
    path = folder.at(name)
    old = _stat(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise IsADirectoryPathError(what, why="a folder, or something else that is no file, has this name")
    check_condition(what, condition, None if old is None else version_of(old))
    temporary = folder.at(f"/{HIDDEN}{secrets.token_hex(8)}".encode())
    file = temporary.open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fill(file, source, turn)
        _set_attributes(file, attributes, old)
        turn.check()
        os.fsync(file)
        failpoint.hit("origin.filled")
        turn.take()
        _take_name(temporary, path, what, condition, version_of)
        failpoint.hit("origin.named")
        found = os.fstat(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(file)
    try:
        sync_folder(folder.at(b"/"))
    except OSError as error:  # not to be tried again: it would meet itself
        why = f"put, but a crash may undo it: {os.strerror(error.errno or 0)}"
        raise OriginError(what, why=why) from error
    return found


def fill(file: int, source: PutSource, turn: CommitPoint) -> None:
    """Of an open file the kernel makes the copy, or shares the extents where the file system can."""
    ways = [_copy_range, _send, _write] if isinstance(source, FilePutSource) else [_write]
    at, size = 0, source.size_bytes
    while at < size:
        turn.check()
        try:
            at += ways[0](file, source, at, min(size, at + CHUNK_BYTES))
        except OSError as error:
            if len(ways) == 1 or error.errno not in _UNABLE:
                raise
            ways.pop(0)
    if isinstance(source, FilePutSource):
        source.settle()


def _copy_range(file: int, source: PutSource, start: int, end: int) -> int:
    assert isinstance(source, FilePutSource)
    count = os.copy_file_range(source.file, file, end - start, start, start)
    if not count:
        raise source.ended(start)
    return count


def _send(file: int, source: PutSource, start: int, end: int) -> int:
    assert isinstance(source, FilePutSource)
    os.lseek(file, start, os.SEEK_SET)
    count = os.sendfile(file, source.file, start, end - start)
    if not count:
        raise source.ended(start)
    return count


def _write(file: int, source: PutSource, start: int, end: int) -> int:
    view, done = memoryview(source.pread(start, end)), 0
    while done < len(view):
        done += os.pwrite(file, view[done:], start + done)
    return done


def _set_attributes(file: int, attributes: Attributes, old: os.stat_result | None) -> None:
    """What isn't said stays as the old file had it. Owners need privileges: without, they are dropped, and with them
    the bits that mean the owner."""
    uid = attributes.uid if attributes.uid is not None else old.st_uid if old else -1
    gid = attributes.gid if attributes.gid is not None else old.st_gid if old else -1
    owned = True
    if uid != -1 or gid != -1:
        try:
            os.chown(file, uid, gid)
        except OSError:
            owned = False
    mode = attributes.mode if attributes.mode is not None else old.st_mode if old else None
    if mode is not None:
        os.chmod(file, stat.S_IMODE(mode) if owned else stat.S_IMODE(mode) & 0o1777)
    if attributes.mtime_ns is not None:
        os.utime(file, ns=(attributes.mtime_ns, attributes.mtime_ns))


def _take_name(
    temporary: SafePath,
    path: SafePath,
    what: str,
    condition: Condition,
    version_of: Callable[[os.stat_result], Version],
) -> None:
    if condition is None:
        temporary.rename(path)
    elif isinstance(condition, Absent):
        try:
            _rename_new(temporary, path)
        except FileExistsError:
            check_condition(what, condition, Version(0, 0))
    else:
        found = _stat(path)
        check_condition(what, condition, None if found is None else version_of(found))
        _exchange(temporary, path, what, condition, version_of)


def _rename_new(temporary: SafePath, path: SafePath) -> None:
    """FileExistsError when the name is taken."""
    try:
        temporary.rename(path, NOREPLACE)
    except OSError as error:
        if error.errno not in _NOT_RENAMED:
            raise
        temporary.link(path)  # NFS, for one
        temporary.unlink()


def _exchange(
    temporary: SafePath,
    path: SafePath,
    what: str,
    condition: Version,
    version_of: Callable[[os.stat_result], Version],
) -> None:
    """The two files change places, so that what was replaced can still be looked at, and put back."""
    try:
        temporary.rename(path, EXCHANGE)
    except OSError as error:
        if error.errno not in (*_NOT_RENAMED, errno.ENOENT):
            raise
        if error.errno == errno.ENOENT:
            check_condition(what, condition, None)
        temporary.rename(path)
        return
    replaced = _stat(temporary)
    if replaced is None or version_of(replaced) != condition:
        temporary.rename(path, EXCHANGE)
        check_condition(what, condition, None if replaced is None else version_of(replaced))
    temporary.unlink()


def _stat(path: SafePath) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def folder_of(path: SafePath) -> SafePath:
    return path.root.at(path.path[: path.path.rfind(b"/")] or b"/")


def make_folders(folder: SafePath, top: SafePath) -> None:
    """With those above it, durable. FileExistsError when a file has the name. FileNotFoundError when the top isn't
    there: the disk that is mounted at it may be away, and nothing may be written beneath."""
    missing = [folder]
    while missing:
        folder = missing[-1]
        try:
            folder.mkdir(0o777)
        except FileNotFoundError:
            if folder.path == top.path or not top.is_folder():
                raise
            missing.append(folder_of(folder))
            continue
        except FileExistsError:
            if not folder.resolved().is_folder():
                raise
        else:
            sync_folder(folder_of(folder))
        missing.pop()


def sync_folder(folder: SafePath) -> None:
    """Makes the names in it durable, where the file system has a way to."""
    try:
        folder.sync()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sweep(folder: SafePath, now_s: float) -> None:
    """Removes what crashed puts left. now_s: by the clock of the folder's file system. ctime tells the age, as a put
    sets the mtime."""
    for name in folder.names():
        if name.startswith(HIDDEN.encode()):
            with contextlib.suppress(OSError):
                left = folder / name
                if left.lstat().st_ctime < now_s - STALE_S:
                    left.unlink()


def translate_write(error: OSError, what: str) -> HeadraceError | None:
    """None: it means the same as of a read."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EISDIR:
        return IsADirectoryPathError(what, why=why)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return NotADirectoryPathError(what, why="a file stands where a folder is needed")
    if error.errno == errno.EROFS:
        return OriginReadOnlyError(what, why=why)
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        return NotSupportedError(what, why=why)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OriginError(what, why=why, hint="make room at the origin")
    return None
