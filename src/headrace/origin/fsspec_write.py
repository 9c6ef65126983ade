"""Write through an fsspec driver. Blocks; runs in threads; exceptions of the driver come out unchanged.

A driver with a rename of its own (local, sftp, smb, hdfs) writes the file under a hidden name and renames it. A
driver without one is treated as an object store, whose files appear complete when they are closed. No driver enforces
a condition, so the file is compared just before. A hidden file that a crash left stays, and is not listed.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

from headrace.base.errors import BucketNotFoundError, IsADirectoryPathError, NotADirectoryPathError
from headrace.origin.commit_point import CommitPoint
from headrace.origin.origin import PutSource, hidden_name

SINGLE_MAX_BYTES = 64 << 20
PART_BYTES = 16 << 20


def info_of(files: Any, path: str) -> dict[str, Any] | None:
    try:
        info: dict[str, Any] = files.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info


def put_file(
    files: Any,
    root: str,
    path: str,
    target: str,
    source: PutSource,
    *,
    check: Callable[[], None],
    commit: CommitPoint,
) -> dict[str, Any]:
    """Write a file and return the driver's info of it. `check` raises if the condition does not hold."""
    current = info_of(files, path)
    if current is not None and current.get("type") == "directory":
        raise IsADirectoryPathError(target, why="a directory has this name")
    check()
    try:
        try:
            _write(files, path, source, check, commit)
        except FileNotFoundError:
            if not files.exists(root or "/"):
                raise BucketNotFoundError(target, why="no such directory") from None
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            _write(files, path, source, check, commit)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryPathError(target, why="a parent of the path is a file") from None
    after: dict[str, Any] = files.info(path)
    return after


def _write(files: Any, path: str, source: PutSource, check: Callable[[], None], commit: CommitPoint) -> None:
    from fsspec import AbstractFileSystem

    if type(files).mv is not AbstractFileSystem.mv:
        _write_and_rename(files, path, source, check, commit)
    elif source.size_bytes <= SINGLE_MAX_BYTES:
        body = bytes(source.pread(0, source.size_bytes)) if source.size_bytes else b""
        check()
        commit.begin()
        files.pipe_file(path, body)
    else:
        _write_in_parts(files, path, source, check, commit)


def _write_and_rename(
    files: Any, path: str, source: PutSource, check: Callable[[], None], commit: CommitPoint
) -> None:
    parent, _, _ = path.rpartition("/")
    hidden = f"{parent}/{hidden_name()}"
    try:
        with files.open(hidden, "wb") as out:
            _copy(out, source, commit)
        check()
        commit.begin()
        _rename(files, hidden, path)
    except BaseException:
        with contextlib.suppress(Exception):
            files.rm_file(hidden)
        raise


def _rename(files: Any, hidden: str, path: str) -> None:
    """Rename the new file. A driver that can't rename over a file gets the old one out of the way, and the name is
    absent for a moment. The old file is removed only when the new one has its name."""
    if _move(files, hidden, path):
        return
    old = f"{hidden}-old"
    try:
        _move(files, path, old)
        if not _move(files, hidden, path):
            raise OSError(errno.EBUSY, "another program makes this file")
    except BaseException:
        with contextlib.suppress(Exception):
            if info_of(files, path) is None:
                files.mv(old, path)
            else:
                files.rm_file(old)
        raise
    with contextlib.suppress(Exception):
        files.rm_file(old)


def _move(files: Any, source: str, target: str) -> bool:
    """Rename a file, also if the response is lost. Return False if the driver can't rename over the target."""
    try:
        files.mv(source, target)
    except OSError:
        if info_of(files, target) is None:
            raise
        return info_of(files, source) is None
    return True


def _write_in_parts(
    files: Any, path: str, source: PutSource, check: Callable[[], None], commit: CommitPoint
) -> None:
    out = files.open(path, "wb", autocommit=False)
    try:
        _copy(out, source, commit)
        check()
        commit.begin()
        out.close()
        out.commit()
    except BaseException:
        with contextlib.suppress(Exception):
            out.discard()
        out.closed = True  # otherwise the garbage collector would flush it and publish the file
        raise


def _copy(out: Any, source: PutSource, commit: CommitPoint) -> None:
    for start in range(0, source.size_bytes, PART_BYTES):
        commit.check()
        out.write(source.pread(start, min(source.size_bytes, start + PART_BYTES)))
    commit.check()
