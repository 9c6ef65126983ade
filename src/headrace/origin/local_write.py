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
from collections.abc import Callable, Iterator

from headrace.base import failpoint
from headrace.base.errors import (
    HeadraceError,
    IsADirectoryPathError,
    NotADirectoryPathError,
    NotSupportedError,
    OriginError,
    OriginReadOnlyError,
)
from headrace.base.model import Attributes, Version
from headrace.layer.calls import EXCHANGE, NOREPLACE, rename
from headrace.origin.origin import HIDDEN, Absent, Condition, Source, check_condition
from headrace.origin.source import FileSource
from headrace.origin.turn import Turn

STALE_S = 24 * 3600
CHUNK_BYTES = 16 << 20
"""Copied between two looks at whether the put was given up: some 10 ms of a local disk."""

_UNABLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM, errno.EBADF, errno.ETXTBSY)
_NOT_RENAMED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def put_file(
    path: str,
    what: str,
    source: Source,
    *,
    root: str,
    condition: Condition,
    attributes: Attributes,
    turn: Turn,
    version_of: Callable[[os.stat_result], Version],
) -> os.stat_result:
    """What the new file is, durable with its name. what: the path, for messages. root: the folder that must be
    there; those between it and the file are made. A symbolic link stays, and what it
    leads to is replaced."""
    path = os.path.realpath(path) if os.path.islink(path) else path
    parent = os.path.dirname(path)
    old = _stat(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise IsADirectoryPathError(what, why="a folder, or something else that is no file, has this name")
    check_condition(what, condition, None if old is None else version_of(old))
    if parent != root:
        make_folders(parent, root)
    temporary = os.path.join(parent, HIDDEN + secrets.token_hex(8))
    file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
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
            os.unlink(temporary)
        raise
    finally:
        os.close(file)
    try:
        sync_folder(parent)
    except OSError as error:  # not to be tried again: it would meet itself
        why = f"put, but a crash may undo it: {os.strerror(error.errno or 0)}"
        raise OriginError(what, why=why) from error
    return found


def fill(file: int, source: Source, turn: Turn) -> None:
    """Of an open file the kernel makes the copy, or shares the extents where the file system can."""
    ways = [_copy_range, _send, _write] if isinstance(source, FileSource) else [_write]
    at, size = 0, source.size_bytes
    while at < size:
        turn.check()
        try:
            at += ways[0](file, source, at, min(size, at + CHUNK_BYTES))
        except OSError as error:
            if len(ways) == 1 or error.errno not in _UNABLE:
                raise
            ways.pop(0)
    if isinstance(source, FileSource):
        source.settle()


def _copy_range(file: int, source: Source, start: int, end: int) -> int:
    assert isinstance(source, FileSource)
    count = os.copy_file_range(source.file, file, end - start, start, start)
    if not count:
        raise source.ended(start)
    return count


def _send(file: int, source: Source, start: int, end: int) -> int:
    assert isinstance(source, FileSource)
    os.lseek(file, start, os.SEEK_SET)
    count = os.sendfile(file, source.file, start, end - start)
    if not count:
        raise source.ended(start)
    return count


def _write(file: int, source: Source, start: int, end: int) -> int:
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
    temporary: str,
    path: str,
    what: str,
    condition: Condition,
    version_of: Callable[[os.stat_result], Version],
) -> None:
    if condition is None:
        os.rename(temporary, path)
    elif isinstance(condition, Absent):
        try:
            _rename_new(temporary, path)
        except FileExistsError:
            check_condition(what, condition, Version(0, 0))
    else:
        found = _stat(path)
        check_condition(what, condition, None if found is None else version_of(found))
        _exchange(temporary, path, what, condition, version_of)


def _rename_new(temporary: str, path: str) -> None:
    """FileExistsError when the name is taken."""
    try:
        _renameat2(temporary, path, NOREPLACE)
    except OSError as error:
        if error.errno not in _NOT_RENAMED:
            raise
        os.link(temporary, path)  # NFS, for one
        os.unlink(temporary)


def _exchange(
    temporary: str, path: str, what: str, condition: Version, version_of: Callable[[os.stat_result], Version]
) -> None:
    """The two files change places, so that what was replaced can still be looked at, and put back."""
    try:
        _renameat2(temporary, path, EXCHANGE)
    except OSError as error:
        if error.errno not in (*_NOT_RENAMED, errno.ENOENT):
            raise
        if error.errno == errno.ENOENT:
            check_condition(what, condition, None)
        os.rename(temporary, path)
        return
    replaced = _stat(temporary)
    if replaced is None or version_of(replaced) != condition:
        _renameat2(temporary, path, EXCHANGE)
        check_condition(what, condition, None if replaced is None else version_of(replaced))
    os.unlink(temporary)


def _renameat2(old: str, new: str, flags: int) -> None:
    rename(os.fsencode(old), os.fsencode(new), flags)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def make_folders(folder: str, root: str) -> None:
    """With those above it, durable. FileExistsError when a file has the name. FileNotFoundError when the root isn't
    there: the disk that is mounted at it may be away, and nothing may be written beneath."""
    try:
        os.mkdir(folder)
    except FileNotFoundError:
        if folder == root or not os.path.isdir(root):
            raise
        make_folders(os.path.dirname(folder), root)
        make_folders(folder, root)
        return
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    sync_folder(os.path.dirname(folder))


def sync_folder(folder: str) -> None:
    """Makes the names in it durable, where the file system has a way to."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(file)


def leftovers(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as listing:
        yield from (entry for entry in listing if entry.name.startswith(HIDDEN))


def sweep(folder: str, now_s: float) -> None:
    """Removes what crashed puts left. now_s: by the clock of the folder's file system. ctime tells the age, as a put
    sets the mtime."""
    for entry in leftovers(folder):
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_ctime < now_s - STALE_S:
                os.unlink(entry.path)


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
