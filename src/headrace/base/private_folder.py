"""Directories that only this process's user may enter: caches, and what running processes keep for each other.

They hold bytes of files that other users may not read, and what lies in them is believed. So nobody else may own one,
enter it, or put another directory in its place.
"""

from __future__ import annotations

import logging
import os
import stat

from headrace.base.errors import UsageError

log = logging.getLogger(__name__)

MODE = 0o700
_LINKS_MAX = 40
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def make_private(folder: str) -> None:
    """Make a directory that only this user enters, and those above that are missing; narrow one that is there.
    UsageError where another user owns it or may exchange it. OSError."""
    path = os.path.abspath(folder)
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    check_above(path)
    try:
        os.mkdir(path, MODE)
    except FileExistsError:
        if os.path.islink(path):
            raise _refused(path, "it is a link", "name the directory that it leads to") from None
    fd = os.open(path, _FOLDER)
    try:
        _narrow(fd, path)
    finally:
        os.close(fd)


def private(path: str, flags: int) -> int:
    """Opens for this user only: the `opener` of Python's open()."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _narrow(fd: int, path: str) -> None:
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise _refused(
            path,
            f"it belongs to user {status.st_uid}, and this is {os.geteuid()}",
            "chown it, or name another",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode != MODE:
        os.fchmod(fd, MODE)
        if mode & 0o077 and os.stat(os.path.dirname(path)).st_mode & 0o077:  # else nobody came so far
            log.warning(
                "a folder could be entered by other users, and is closed to them folder=%s mode=%04o",
                path,
                mode,
            )


def check_above(path: str) -> None:
    """Refuse a path below a directory in which another user may exchange what lies on the way. path: absolute.
    UsageError; OSError."""
    pending, at, links = _names(os.path.dirname(path)), "/", 0
    _check_directory("/", path)
    while pending:
        name = pending.pop(0)
        if name == "..":
            at = os.path.dirname(at)
            continue
        below = os.path.join(at, name)
        status = os.lstat(below)
        if not stat.S_ISLNK(status.st_mode):
            at = below
            _check_directory(at, path)
            continue
        links += 1
        if links > _LINKS_MAX:
            raise _refused(path, "too many symbolic links lead there", "name the directory itself")
        if status.st_uid not in (0, os.geteuid()):
            raise _refused(path, f"the link {below} belongs to user {status.st_uid}", _ELSEWHERE)
        target = os.readlink(below)
        at = "/" if target.startswith("/") else at
        pending = _names(target) + pending


_ELSEWHERE = "name a folder that only root and this user can move"


def _check_directory(at: str, path: str) -> None:
    status = os.lstat(at)
    if status.st_uid not in (0, os.geteuid()):
        raise _refused(path, f"{at} belongs to user {status.st_uid}, who may exchange it", _ELSEWHERE)
    if status.st_mode & stat.S_ISVTX:
        return  # everybody moves what is his own only
    if status.st_mode & 0o002:
        raise _refused(path, f"everybody may exchange what is in {at}", _ELSEWHERE)
    if status.st_mode & 0o020 and status.st_gid not in (0, os.getegid()):
        log.warning("a group may exchange a folder folder=%s above=%s gid=%d", path, at, status.st_gid)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _refused(path: str, why: str, hint: str) -> UsageError:
    return UsageError(f"folder {path}", why=why, hint=hint)
