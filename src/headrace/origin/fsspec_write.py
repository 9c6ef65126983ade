"""Writing through an fsspec driver. Blocks; runs in threads; what the driver raises comes out as it is.

A driver with a rename of its own (local, sftp, smb, hdfs) gets the file under a hidden name, which is then renamed; one
without is taken for an object store, whose files appear whole when they are closed. None decides a condition: the file
is looked at just before. A hidden file that a crash left stays, and is not listed.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Any

from headrace.base.errors import BucketNotFoundError, IsADirectoryPathError, NotADirectoryPathError
from headrace.origin.commit_point import CommitPoint
from headrace.origin.origin import HIDDEN, PutSource

SINGLE_MAX_BYTES = 64 << 20
PART_BYTES = 16 << 20


def info_of(files: Any, path: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = files.info(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found


def put_file(
    files: Any,
    root: str,
    path: str,
    what: str,
    source: PutSource,
    *,
    check: Callable[[], None],
    turn: CommitPoint,
) -> dict[str, Any]:
    """The driver's info of what is there then. check: raises when the condition does not hold."""
    found = info_of(files, path)
    if found is not None and found.get("type") == "directory":
        raise IsADirectoryPathError(what, why="a folder has this name")
    check()
    try:
        try:
            _write(files, path, source, check, turn)
        except FileNotFoundError:
            if not files.exists(root or "/"):
                raise BucketNotFoundError(what, why="no such folder") from None
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            _write(files, path, source, check, turn)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryPathError(what, why="a file stands where a folder is needed") from None
    after: dict[str, Any] = files.info(path)
    return after


def _write(files: Any, path: str, source: PutSource, check: Callable[[], None], turn: CommitPoint) -> None:
    from fsspec import AbstractFileSystem

    if type(files).mv is not AbstractFileSystem.mv:
        _write_and_rename(files, path, source, check, turn)
    elif source.size_bytes <= SINGLE_MAX_BYTES:
        body = bytes(source.pread(0, source.size_bytes)) if source.size_bytes else b""
        check()
        turn.take()
        files.pipe_file(path, body)
    else:
        _write_in_parts(files, path, source, check, turn)


def _write_and_rename(
    files: Any, path: str, source: PutSource, check: Callable[[], None], turn: CommitPoint
) -> None:
    parent, _, _ = path.rpartition("/")
    hidden = f"{parent}/{HIDDEN}{secrets.token_hex(8)}"
    try:
        with files.open(hidden, "wb") as out:
            _copy(out, source, turn)
        check()
        turn.take()
        _rename(files, hidden, path)
    except BaseException:
        with contextlib.suppress(Exception):
            files.rm_file(hidden)
        raise


def _rename(files: Any, hidden: str, path: str) -> None:
    try:
        files.mv(hidden, path)
    except OSError:
        if info_of(files, path) is None:
            raise
        files.rm_file(path)  # a driver that doesn't rename over a file: for a moment there is none
        files.mv(hidden, path)


def _write_in_parts(
    files: Any, path: str, source: PutSource, check: Callable[[], None], turn: CommitPoint
) -> None:
    out = files.open(path, "wb", autocommit=False)
    try:
        _copy(out, source, turn)
        check()
        turn.take()
        out.close()
        out.commit()
    except BaseException:
        with contextlib.suppress(Exception):
            out.discard()
        out.closed = True  # else it would be flushed, and be there, when it is collected
        raise


def _copy(out: Any, source: PutSource, turn: CommitPoint) -> None:
    for start in range(0, source.size_bytes, PART_BYTES):
        turn.check()
        out.write(source.pread(start, min(source.size_bytes, start + PART_BYTES)))
    turn.check()
