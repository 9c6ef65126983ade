"""Directories that only this process's user may enter: caches, and what running processes keep for each other.

They hold bytes of files that other users may not read, and what lies in them is believed. So nobody else may own one,
enter it, or put another directory in its place.
"""

from __future__ import annotations

import logging
import os
import stat

from headrace.base.trusted_owner import check_above, only_root_moves, refused_folder

log = logging.getLogger(__name__)

MODE = 0o700
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
            raise refused_folder(path, "it is a link", "name the directory that it leads to") from None
    _check_owner(os.lstat(path), path)  # who owns it, where another user's can't even be opened
    fd = os.open(path, _FOLDER)
    try:
        _narrow(fd, path)
    finally:
        os.close(fd)


def hand_over(folder: str, uid: int, gid: int, *, mode: int = MODE) -> None:
    """Give a user a directory: a missing one is made, and an empty one of root's taken. Any other is left as it is, for
    the user's own process to make or refuse: root goes no way that somebody else may lay. OSError."""
    path = os.path.abspath(folder)
    missing: list[str] = []
    at = path
    while not os.path.lexists(at):
        missing.append(at)
        at = os.path.dirname(at)
    if not only_root_moves(missing[-1] if missing else path):
        return
    for one in reversed(missing):
        os.mkdir(one, 0o755 if one != path else MODE)
    try:
        fd = os.open(path, _FOLDER)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid == 0 and not os.listdir(fd):
            os.fchmod(fd, mode)
            os.fchown(fd, uid, gid)
    finally:
        os.close(fd)


def private(path: str, flags: int) -> int:
    """Opens for this user only: the `opener` of Python's open()."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _check_owner(status: os.stat_result, path: str) -> None:
    if status.st_uid != os.geteuid():
        raise refused_folder(
            path,
            f"it belongs to user {status.st_uid}, and this is {os.geteuid()}",
            "chown it, or name another",
        )


def _narrow(fd: int, path: str) -> None:
    status = os.fstat(fd)
    _check_owner(status, path)
    mode = stat.S_IMODE(status.st_mode)
    if mode != MODE:
        os.fchmod(fd, MODE)
        if mode & 0o077 and os.stat(os.path.dirname(path)).st_mode & 0o077:  # else nobody came so far
            log.warning(
                "a folder could be entered by other users, and is closed to them folder=%s mode=%04o",
                path,
                mode,
            )
