"""Write files into a local directory: a new file beside the old one is filled, synced, and then takes its name in one
step.

Blocks; runs in threads. The new file's name begins with HIDDEN, which listings hide. A crash may leave such a file
behind. The first put of a later process into that directory removes it, once it is STALE_S old by the directory's own
clock. OSErrors come out unchanged; `translate_write` translates them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator

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
from headrace.origin.local_links import follow
from headrace.origin.origin import HIDDEN, Absent, Condition, PutSource, check_condition, hidden_name
from headrace.origin.source import FilePutSource

STALE_S = 24 * 3600
CHUNK_BYTES = 16 << 20
"""Bytes that are copied between two checks for an abandoned put: some 10 ms on a local disk."""

LOCK_S = 20
"""Most seconds that a put waits while another process has its directory locked."""
_LOCK_RETRY_S = 0.001

Identity = tuple[int, int] | None
"""File system and inode number of a file; None if it is missing."""

_UNSUPPORTED = (
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EPERM,
    errno.EBADF,
    errno.ETXTBSY,
)
_RENAME_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def put_file(
    path: SafePath,
    target: str,
    source: PutSource,
    *,
    top: SafePath,
    condition: Condition,
    attributes: Attributes,
    commit: CommitPoint,
    version_of: Callable[[os.stat_result], Version],
) -> os.stat_result:
    """Write a file, durable together with its name, and return its stat. `target` is the path in messages. `top` is
    the directory that must exist; missing directories between it and the file are created. A symbolic link stays, and
    the file that it points to is replaced."""
    follow(directory_of(path), top)
    path = path.resolved()
    directory = _open_directory(directory_of(path), top)
    try:
        return _put_in(
            *(directory, path.path[path.path.rfind(b"/") :], target, source),
            condition=condition,
            attributes=attributes,
            commit=commit,
            version_of=version_of,
        )
    finally:
        directory.close()


def _open_directory(directory: SafePath, top: SafePath) -> Root:
    """Open a directory, and create it if it is missing."""
    try:
        return directory.held()
    except FileNotFoundError:
        if directory.path == top.path:
            raise
    make_directories(directory, top)
    return directory.held()


def _put_in(
    directory: Root,
    name: bytes,
    target: str,
    source: PutSource,
    *,
    condition: Condition,
    attributes: Attributes,
    commit: CommitPoint,
    version_of: Callable[[os.stat_result], Version],
) -> os.stat_result:
    """Write the file in an open directory. `name` begins with a slash."""
    path = directory.at(name)
    old = _stat(path)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise IsADirectoryPathError(target, why="a directory or special file has this name")
    check_condition(target, condition, None if old is None else version_of(old))
    temporary = directory.at(f"/{hidden_name()}".encode())
    file = temporary.open(os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        fill(file, source, commit)
        _set_attributes(file, attributes, old)
        commit.check()
        os.fsync(file)
        failpoint.hit("origin.filled")
        with locked(directory, target):
            commit.begin()
            _publish(temporary, path, target, condition, version_of)
        failpoint.hit("origin.named")
        written = os.fstat(file)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(file)
    try:
        sync_directory(directory.at(b"/"))
    except OSError as error:  # no retry: its condition would fail because of this very put
        why = f"the file was written, but a crash may undo it: {os.strerror(error.errno or 0)}"
        raise OriginError(target, why=why) from error
    return written


def fill(file: int, source: PutSource, commit: CommitPoint) -> None:
    """Copy the source into the file. For an open file the kernel copies, or shares the extents where the file system
    can."""
    methods = [_copy_range, _send, _write] if isinstance(source, FilePutSource) else [_write]
    offset, size = 0, source.size_bytes
    while offset < size:
        commit.check()
        try:
            offset += methods[0](file, source, offset, min(size, offset + CHUNK_BYTES))
        except OSError as error:
            if len(methods) == 1 or error.errno not in _UNSUPPORTED:
                raise
            methods.pop(0)
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
    """Set the attributes; those not given are taken from the old file. Changing owners needs privileges: without them
    the owners are dropped, and with them the set-uid and set-gid bits. A process of a user keeps its own read
    permission."""
    uid = attributes.uid if attributes.uid is not None else old.st_uid if old else -1
    gid = attributes.gid if attributes.gid is not None else old.st_gid if old else -1
    is_owner_set = True
    if uid != -1 or gid != -1:
        try:
            os.chown(file, uid, gid)
        except OSError:
            is_owner_set = False
    mode = attributes.mode if attributes.mode is not None else old.st_mode if old else None
    if mode is not None:
        readable = (
            0 if os.geteuid() == 0 else stat.S_IRUSR
        )  # else this node could not read its own file again
        os.chmod(file, (stat.S_IMODE(mode) if is_owner_set else stat.S_IMODE(mode) & 0o1777) | readable)
    if attributes.mtime_ns is not None:
        os.utime(file, ns=(attributes.mtime_ns, attributes.mtime_ns))


def _publish(
    temporary: SafePath,
    path: SafePath,
    target: str,
    condition: Condition,
    version_of: Callable[[os.stat_result], Version],
) -> None:
    if condition is None:
        temporary.rename(path)
    elif isinstance(condition, Absent):
        try:
            _rename_new(temporary, path)
        except FileExistsError:
            check_condition(target, condition, Version(0, 0))
    else:
        current = _stat(path)
        check_condition(target, condition, None if current is None else version_of(current))
        _exchange(temporary, path, target, condition, version_of)


@contextlib.contextmanager
def locked(directory: Root, target: str) -> Iterator[None]:
    """Keep other puts and removals, of any process, from changing names in the directory until the block ends. Waits
    at most LOCK_S; then raises OriginError. Where the file system can't lock a directory (NFS), nothing is locked."""
    file = directory.at(b"/").open(os.O_RDONLY | os.O_DIRECTORY)
    try:
        _lock(file, target)
        yield
    finally:
        os.close(file)


def _lock(file: int, target: str) -> None:
    end = time.monotonic() + LOCK_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                why = f"another process has locked its directory for {LOCK_S} s"
                raise OriginError(target, why=why, hint="see /proc/locks for the process") from None
            time.sleep(_LOCK_RETRY_S)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return None


def _rename_new(temporary: SafePath, path: SafePath) -> None:
    """Rename without replacing. Raise FileExistsError if the name exists."""
    try:
        temporary.rename(path, NOREPLACE)
    except OSError as error:
        if error.errno not in _RENAME_UNSUPPORTED:
            raise
        temporary.link(path)  # for example on NFS
        temporary.unlink()


def _exchange(
    temporary: SafePath,
    path: SafePath,
    target: str,
    condition: Version,
    version_of: Callable[[os.stat_result], Version],
) -> None:
    """Exchange the two files, so that the replaced one can still be compared, and exchanged back. The directory is
    locked: of two puts that exchange back at once, the later one would put the earlier one's file there."""
    own = _stat(temporary)
    try:
        temporary.rename(path, EXCHANGE)
    except OSError as error:
        if error.errno not in (*_RENAME_UNSUPPORTED, errno.ENOENT):
            raise
        if error.errno == errno.ENOENT:
            check_condition(target, condition, None)
        temporary.rename(path)
        return
    replaced = _stat(temporary)
    if replaced is None or version_of(replaced) != condition:
        _undo(temporary, path, _identity(own), _identity(replaced))
        check_condition(target, condition, None if replaced is None else version_of(replaced))
    temporary.unlink()


def _undo(temporary: SafePath, path: SafePath, expected: Identity, held: Identity) -> None:
    """Exchange the files back: afterwards `path` has the file that another program put there last. If that program
    replaced our file meanwhile, the exchange yields its newer file, and is repeated."""
    while True:
        try:
            temporary.rename(path, EXCHANGE)
        except FileNotFoundError:
            return  # removed meanwhile, and with it what it had replaced
        out = _identity(_stat(temporary))
        if out == expected:
            return
        expected, held = held, out


def _identity(status: os.stat_result | None) -> Identity:
    return None if status is None else (status.st_dev, status.st_ino)


def _stat(path: SafePath) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def directory_of(path: SafePath) -> SafePath:
    return path.root.at(path.path[: path.path.rfind(b"/")] or b"/")


def make_directories(directory: SafePath, top: SafePath) -> None:
    """Create a directory and its missing parents, durably. Raise FileExistsError if a file has the name,
    FileNotFoundError if the top does not exist: the disk mounted there may be missing, and nothing may be written
    beneath."""
    missing = [directory]
    while missing:
        directory = missing[-1]
        try:
            directory.mkdir(0o777)
        except FileNotFoundError:
            if directory.path == top.path or not top.is_directory():
                raise
            missing.append(directory_of(directory))
            continue
        except FileExistsError:
            try:
                is_directory = follow(directory, top).is_directory()
            except NotADirectoryError:
                is_directory = False
            if not is_directory:
                raise
        else:
            sync_directory(directory_of(directory))
        missing.pop()


def sync_directory(directory: SafePath) -> None:
    """Make the names in a directory durable, where the file system supports that."""
    try:
        directory.sync()
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def sweep(directory: SafePath, now_s: float) -> None:
    """Remove temporary files that crashed puts left. `now_s` is the time of the directory's file system. The age
    follows from ctime, because a put sets the mtime."""
    for name in directory.names():
        if name.startswith(HIDDEN.encode()):
            with contextlib.suppress(OSError):
                leftover = directory / name
                if leftover.lstat().st_ctime < now_s - STALE_S:
                    leftover.unlink()


def translate_write(error: OSError, target: str) -> HeadraceError | None:
    """Return the error of a write; None if it means the same as for a read."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno == errno.EISDIR:
        return IsADirectoryPathError(target, why=why)
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return NotADirectoryPathError(target, why="a parent of the path is a file")
    if error.errno == errno.EROFS:
        return OriginReadOnlyError(target, why=why)
    if error.errno in (errno.ENAMETOOLONG, errno.EILSEQ):
        return NotSupportedError(target, why=why)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OriginError(target, why=why, hint="free space at the origin")
    return None
